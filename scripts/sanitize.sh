#!/usr/bin/env bash
# sanitize.sh [--go]: the C++ tests, and the emulated CUDA kernels with them, under the address and the
# undefined-behaviour sanitizer; with --go also the Go tests of every backend, against the portable one. Builds in
# build/sanitize and leaves the libraries in build/ alone.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=build/sanitize
tree=$folder/tree

mkdir -p "$folder"
cmake -S . -B "$folder" -DGRADBUS_SANITIZE=ON -DGRADBUS_CUDA=OFF -DGRADBUS_EMU=ON \
  -DGRADBUS_STAMP="$PWD/$folder/native_stamp.h" >"$folder/configure.log" || {
  cat "$folder/configure.log"
  exit 1
}
cmake --build "$folder" --parallel "$(nproc)" --target gradbus_tests
export UBSAN_OPTIONS=print_stacktrace=1
ctest --test-dir "$folder" --output-on-failure
[ "${1:-}" = --go ] || exit 0

# The cuda package links what lies in ../build of its own tree, so it gets a tree of its own.
cmake --build "$folder" --parallel "$(nproc)" --target gradbus_stamp
rm -rf "$tree"
mkdir -p "$tree/build"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$tree"
cp "$folder/libgradbus.a" "$folder/libgradbus_emu.a" "$tree/build/"
cp "$folder/native_stamp.h" "$tree/cuda/"
# Go's own memory is not looked through for leaks, and tests ask for more memory than there is.
cd "$tree"
CGO_LDFLAGS=-fsanitize=undefined ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
  go test -asan -tags native,emu -skip '^TestLibrary$' -timeout 30m ./cuda/
