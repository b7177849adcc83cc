#!/bin/sh
# Builds the fuzz targets and runs each for SECONDS on a copy of its corpus, two at a time. Fails on
# a finding, whose input then lies in build/asan/findings.
#   tools/run_fuzz.sh SECONDS [NAME...]        e.g. tools/run_fuzz.sh 30 gguf safetensors
set -eu
seconds=${1:?usage: tools/run_fuzz.sh SECONDS [NAME...]}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/asan
cd "$root"
cmake --preset asan >/dev/null
cmake --build "$build" --target fuzz

if [ $# -eq 0 ]; then
  set -- $(cd tests/fuzz && ls fuzz_*.cc | sed 's/^fuzz_\(.*\)\.cc$/\1/')
fi
findings=$build/findings
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$findings"

# One target: $0 is its name. Quiet unless it fails.
run_one='
  cp -r "$root/tests/fuzz/corpus/$0" "$work/$0"
  if "$build/tests/fuzz/fuzz_$0" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
      -artifact_prefix="$findings/$0-" -print_final_stats=1 "$work/$0" >"$work/$0.log" 2>&1; then
    echo "fuzz_$0: $(sed -n "s/^stat::number_of_executed_units: *//p" "$work/$0.log") runs, no finding"
  else
    tail -n 60 "$work/$0.log"
    echo "fuzz_$0: FINDING, input in $findings"
    exit 1
  fi'
export root build findings work seconds
printf '%s\n' "$@" | xargs -P 2 -I NAME sh -c "$run_one" NAME
