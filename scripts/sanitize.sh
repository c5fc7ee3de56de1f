#!/usr/bin/env bash
# sanitize.sh [FOLDER]: the C++ tests, and the emulated CUDA kernels with them, under the address and the
# undefined-behaviour sanitizer. Builds in FOLDER (build/sanitize) and leaves the libraries in build/ alone.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/sanitize}

mkdir -p "$folder"
cmake -S . -B "$folder" -DGRADBUS_SANITIZE=ON -DGRADBUS_CUDA=OFF -DGRADBUS_EMU=ON \
  -DGRADBUS_STAMP="$folder/native_stamp.h" >"$folder/configure.log" || {
  cat "$folder/configure.log"
  exit 1
}
cmake --build "$folder" --parallel "$(nproc)" --target gradbus_tests
UBSAN_OPTIONS=print_stacktrace=1 ctest --test-dir "$folder" --output-on-failure
