#!/usr/bin/env bash
# Builds every test and benchmark program that needs a GPU (preset `cuda`) and collects them in
# build/gpu, so that they run on a machine that has a driver and glibc, and nothing else of ours:
#   build/gpu/run_tests.sh [--gtest_filter=...]   build/gpu/run_bench.sh   build/gpu/run_sanitizers.sh
set -euo pipefail
cd "$(dirname "$0")/.."

built=build/cuda
out=build/gpu
mkdir -p build
cmake --preset cuda > build/cuda.configure.log 2>&1 || {
  cat build/cuda.configure.log >&2
  exit 1
}
cmake --build --preset cuda

rm -rf "$out"
mkdir -p "$out/lib"
cp "$built"/gpu/* "$out/"
cp -r --parents models/cardfile/model tests/golden/model "$out/"  # what the tests compute
# Libraries that such a machine may lack lie beside the programs, which look there first.
for program in "$out"/*_test "$out"/*_bench; do
  strip "$program"
  ldd "$built/gpu/${program##*/}" | awk '$3 ~ /^\// { print $3 }' |
    { grep -vE '/(libc|libm|libdl|librt|libpthread)\.so' || true; } |
    xargs -r cp -Lt "$out/lib"
done

# run_script FILE PROGRAMS: runs them all, with the arguments given to it; fails when one fails, as a
# test does without a GPU and a benchmark that misses its bar.
run_script() {
  cat > "$out/$1" << END
#!/usr/bin/env bash
cd "\$(dirname "\$0")" || exit 1
failed=0
for program in ./$2; do
  echo "== \${program#./}"
  "\$program" "\$@" || failed=1
done
exit \$failed
END
  chmod +x "$out/$1"
}
run_script run_tests.sh '*_gpu_test'
run_script run_bench.sh '*_bench'

# The kernels' tests under compute-sanitizer, which that machine must have. Calls that tests make fail on purpose are no errors;
# initcheck takes device memory of its own, which one test counts; racecheck is not for cuBLAS's kernels.
cat > "$out/run_sanitizers.sh" << 'END'
#!/usr/bin/env bash
cd "$(dirname "$0")" || exit 1
failed=0
check() {
  echo "== $1 $2"
  compute-sanitizer --tool "$1" --error-exitcode 1 --report-api-errors no "./$2" --gtest_filter="-$3" |
    grep -E '^=========|FAILED'
  [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
}
for program in kernels_gpu_test kv_cache_gpu_test attention_gpu_test; do
  check memcheck "$program" ''
  check initcheck "$program" 'KVCacheTest.AllocationTakesAndReturnsWhatItSays'
  check racecheck "$program" 'Products.*'
done
exit $failed
END
chmod +x "$out/run_sanitizers.sh"
rmdir "$out/lib" 2> /dev/null || true
du -sh "$out" | sed 's/^/packed: /'
