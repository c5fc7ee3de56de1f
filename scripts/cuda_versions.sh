#!/usr/bin/env bash
# cuda_versions.sh [--all] [FOLDER]   compiles the CUDA backend with CUDA 12 and 13 beside the nvcc of this machine; no GPU is needed
#
# cuda_toolkit.sh puts them together. Warnings are errors. One architecture and its PTX are compiled, with --all every one of the build.
#
# What is fetched, some 250 MB, stays in FOLDER, where one is given. Needs python3 with pip, CMake, g++, and a Debian mirror of apt's.
set -euo pipefail
cd "$(dirname "$0")/.."

architectures=(-DGRADBUS_CUDA_ARCHITECTURES=90)
if [ "${1:-}" = --all ]; then
  architectures=()
  shift
fi
work=${1:-}
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"
work=$(cd "$work" && pwd)

fail() { printf 'cuda_versions: %s\n' "$*" >&2; exit 1; }

# build RELEASE compiles both libraries; the shared one is linked without a symbol left open.
build() {
  local top=$work/cuda$1 into=$work/build$1 from=$SECONDS
  scripts/cuda_toolkit.sh "$1" "$work"
  rm -rf "$into"
  CUDACXX=$top/bin/nvcc cmake -S . -B "$into" -DGRADBUS_CUDA=ON -DGRADBUS_WERROR=ON \
    -DGRADBUS_TESTS=OFF -DGRADBUS_EMU=OFF -DGRADBUS_STAMP="$into/native_stamp.h" "${architectures[@]}" >"$into.log" 2>&1 &&
    cmake --build "$into" --parallel "$(nproc)" >>"$into.log" 2>&1 || { tail -30 "$into.log" >&2; fail "CUDA $1: FAILED"; }
  grep -h '^-- gradbus:' "$into.log"
  nm -D --defined-only "$into/libgradbus.so" | grep -q ' gb_backend$' || fail "CUDA $1: libgradbus.so has no function gb_backend"
  echo "cuda_versions: CUDA $1: ok, $((SECONDS - from)) s"
}

build 12
build 13
