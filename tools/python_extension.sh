#!/usr/bin/env bash
# Compiles the Python extension of this tree against a libquire.so that was built elsewhere, and puts the package together:
#   tools/python_extension.sh LIBRARIES OUT    then    PYTHONPATH=OUT python3 -c 'import quire'
# LIBRARIES holds libquire.so and what of its libraries this machine lacks (tools/gpu_package.sh collects them). For machines whose
# Python is another than the one that the library was built beside, such as a GPU machine without Debian packages: there a
# wheel (pip install .) would need all of the build's. Needs a C++ compiler, Python with its headers, and nanobind.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -eq 2 ] || {
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
libraries=$1 out=$2
python=${PYTHON:-python3}

includes=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
nanobind=$("$python" -c 'import nanobind, os; print(os.path.dirname(nanobind.__file__))')
mkdir -p "$out/quire/lib" "$out/objects"
cp "$root"/bindings/python/quire/*.py "$out/quire/"
cp "$libraries"/*.so* "$out/quire/lib/"
rm -f "$out"/quire/lib/lib{stdc++,gcc_s}.so*  # those of this machine's compiler, which the extension needs

flags="-std=c++20 -O2 -fPIC -fvisibility=hidden -fno-strict-aliasing -ffunction-sections -fdata-sections -DNDEBUG -DNB_COMPACT_ASSERTIONS
  -I$root/include -isystem $nanobind/include -isystem $nanobind/ext/robin_map/include -isystem $includes"
compile() {
  # shellcheck disable=SC2086
  ${CXX:-g++} $flags -c "$1" -o "$out/objects/$(basename "${1%.*}").o"
}
export -f compile
export flags out
printf '%s\0' "$root"/bindings/python/src/*.cc "$nanobind/src/nb_combined.cpp" | xargs -0 -n 1 -P "$(nproc)" bash -ec 'compile "$0"'
# An RPATH, not a RUNPATH, so that it holds for the libraries of libquire.so too.
${CXX:-g++} -shared "$out"/objects/*.o -o "$out/quire/_quire$suffix" -L"$out/quire/lib" -l:libquire.so -Wl,--gc-sections \
  -Wl,--disable-new-dtags,-rpath,'$ORIGIN/lib'
rm -r "$out/objects"
echo "$out/quire/_quire$suffix"
