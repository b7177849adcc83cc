#!/usr/bin/env bash
# Installs what is missing, and nothing else: `setup.sh build` the Debian packages that build Quire,
# `setup.sh test` those of the tests too, and the Python environment .venv. `setup.sh all` installs those of the
# sanitizers and fuzzers, and clang-tidy, beside them. `setup.sh clients` makes .venv-server and .venv-frameworks, with
# clients of the server, and `setup.sh docs` installs what builds the documentation site, in .venv-docs; nothing else.
# Does nothing, quickly, when all is there. The lists: packaging/apt-*.txt, requirements/*.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

stage=${1:-}
case $stage in
  build) lists=(packaging/apt-build.txt) ;;
  test) lists=(packaging/apt-build.txt packaging/apt-test.txt) ;;
  all) lists=(packaging/apt-build.txt packaging/apt-test.txt packaging/apt-sanitize.txt) ;;
  clients) lists=() ;;
  docs) lists=(packaging/apt-docs.txt) ;;
  *) echo "usage: tools/setup.sh build|test|all|clients|docs" >&2; exit 2 ;;
esac

log=build/logs/setup.log
fail() { echo "error: $*" >&2; exit 1; }

# Runs a command into the log; shows its end when it fails.
logged() {
  mkdir -p build/logs
  "$@" >> "$log" 2>&1 || { tail -n 20 "$log" >&2; return 1; }
}

# The packages of the lists that dpkg does not know as installed, one a line.
missing_packages() {
  local wanted
  wanted=$(cat "${lists[@]}" | grep -v '^#')
  comm -23 <(sort -u <<< "$wanted") \
    <(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | awk '$1 == "ii" { print $2 }' | sort -u)
}

install_packages() {
  local missing line as_root=()
  command -v dpkg-query > /dev/null ||
    fail "this is no Debian system; install by hand what stands in: ${lists[*]}"
  missing=$(missing_packages | xargs)
  [ -n "$missing" ] || return 0
  line="apt-get update && apt-get install -y --no-install-recommends $missing"
  if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2> /dev/null; then
      printf 'Debian packages are missing. Run this as root, then try again:\n\n  %s\n\n' "$line" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "installing: $missing"
  # shellcheck disable=SC2086 # a list of words
  logged "${as_root[@]}" apt-get update -q || fail "cannot fetch Debian's package lists (network?)"
  # shellcheck disable=SC2086
  logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends $missing ||
    fail "apt-get could not install: $missing"
}

# A python3 of at least 3.11, whether it is Debian's or another that comes first on PATH.
find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      2> /dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "no python3 of at least 3.11 with venv"
}

# Installs into an environment, or fails.
pip_install() {
  local folder=$1
  shift
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
    fail "pip could not install requirements/*.txt into $folder (network?)"
}

# Makes an environment from lists of requirements, unless it was made from exactly these.
make_venv() {
  local folder=$1 python stamp=$1/requirements.sum sum list wanted=()
  shift
  sum=$(cat "$@" | cksum)
  [ "$(cat "$stamp" 2> /dev/null)" != "$sum" ] || return 0
  python=$(find_python)
  echo "making $folder with $("$python" --version)"
  "$python" -m venv --clear "$folder"
  for list in "$@"; do
    wanted+=(-r "$list")
  done
  pip_install "$folder" "${wanted[@]}"
  echo "$sum" > "$stamp"
}

# clang-tidy comes later than the rest, so that `make check` does not fetch it.
add_lint() {
  cmp -s requirements/lint.txt .venv/lint.txt && return 0
  pip_install .venv -r requirements/lint.txt
  cp requirements/lint.txt .venv/lint.txt
}

[ ${#lists[@]} = 0 ] || install_packages
case $stage in
  test | all) make_venv .venv requirements/build.txt requirements/test.txt ;;
  clients)
    make_venv .venv-server requirements/test-server.txt
    make_venv .venv-frameworks requirements/test-frameworks.txt
    ;;
  docs) make_venv .venv-docs requirements/docs.txt ;;
esac
if [ "$stage" = all ]; then
  add_lint
fi
