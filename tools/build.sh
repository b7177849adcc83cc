#!/usr/bin/env bash
# Configures the preset `release` and builds TARGETS of it: `build.sh quire_cli`. On a terminal ninja counts on one line;
# elsewhere this says one line, and the output is shown only when the build fails.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/logs
log=build/logs/build.log

fail() {
  grep -nE -m 1 -A 20 'FAILED|error:|Error' "$log" >&2 || tail -n 40 "$log" >&2
  echo "error: the build failed; all of its output: $log" >&2
  exit 1
}

cmake --preset release > "$log" 2>&1 || fail
if [ -t 1 ]; then
  cmake --build --preset release --target "$@"
else
  echo "building (some minutes the first time) ..."
  cmake --build --preset release --target "$@" >> "$log" 2>&1 || fail
fi
