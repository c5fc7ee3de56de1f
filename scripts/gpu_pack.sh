#!/usr/bin/env bash
# gpu_pack.sh   build/gpu/gradbus-gpu.tar: all that a machine with an NVIDIA GPU needs for scripts/gpu_run.sh; made without a GPU
#
# There: nvcc, CMake, a C++ compiler and PyTorch, no Go and no network. The archive, which xz has packed, unpacks into a folder gradbus-gpu:
# the checkout's files, and bin/ (ps, trainer, psbench), lib/ (libgradbus.so with CUDA, libgradbus_emu.so with the emulated device), tests/
# (Go's and the C++ tests), python/gradbus with its library, third_party/cuembed, and MANIFEST. The commands are as make built them, so
# without CUDA where there is no nvcc: --kernel-library has them run lib/libgradbus.so. TestGlibc holds how new a glibc they may need.
#
# NVCC is the compiler, else CUDA 13.0 is fetched (scripts/cuda_toolkit.sh). CUEMBED is where cuEmbed is cloned from.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() {
  printf 'gpu_pack: %s\n' "$*" >&2
  exit 1
}
out=$PWD/build/gpu
top=$out/gradbus-gpu
kernels=$out/kernels emulated=$out/emulated
bytes_max=$((60 << 20)) # what is carried to such a machine
[ -e build/libgradbus.a ] && [ -e build/capi/libgradbus.so ] || fail "no build/libgradbus.a or no build/capi/libgradbus.so: run make gpu"
mkdir -p "$out"

# The kernels.
nvcc=${NVCC:-}
if [ -z "$nvcc" ]; then
  scripts/cuda_toolkit.sh 13.0 "$out/toolkit"
  nvcc=$out/toolkit/cuda13.0/bin/nvcc
fi

# built FOLDER TARGETS OPTION...: builds with CMake beside what the Go commands link. The tests find the library in lib/.
built() {
  local folder=$1 targets=$2
  cmake -S . -B "$folder" "-DGRADBUS_STAMP=$folder/native_stamp.h" '-DCMAKE_BUILD_RPATH=$ORIGIN/../lib' "${@:3}" >"$folder.log" 2>&1 || {
    tail -20 "$folder.log" >&2
    fail "cannot configure ${folder##*/}"
  }
  grep '^-- gradbus:' "$folder.log"
  # shellcheck disable=SC2086 # the targets are words
  MAKEFLAGS=--no-print-directory cmake --build "$folder" --parallel "$(nproc)" --target $targets
}
CUDACXX=$nvcc built "$kernels" gradbus -DGRADBUS_CUDA=ON -DGRADBUS_TESTS=OFF -DGRADBUS_EMU=OFF
built "$emulated" "gradbus_emu_library gradbus_abi_test gradbus_threads_test gradbus_apply_test" -DGRADBUS_CUDA=OFF -DGRADBUS_TESTS=ON -DGRADBUS_EMU=ON

# cuEmbed, which is measured beside ours: headers and license of one commit. They are packed, and not committed.
cuembed=90dd84361d63acd83f8482d3b7135a369b7d6a09
if [ ! -e "$out/cuembed-$cuembed/LICENSE" ]; then
  rm -rf "$out"/cuembed*
  git init -q --bare "$out/cuembed.git"
  git -C "$out/cuembed.git" fetch -q --depth 1 "${CUEMBED:-https://github.com/NVIDIA/cuEmbed}" "$cuembed" ||
    fail "cannot fetch cuEmbed: CUEMBED=URL says where a clone of it is"
  mkdir "$out/cuembed.part"
  git -C "$out/cuembed.git" archive "$cuembed" LICENSE README.md cuembed | tar -x -C "$out/cuembed.part"
  mv "$out/cuembed.part" "$out/cuembed-$cuembed"
fi

rm -rf "$top"
mkdir -p "$top"/{bin,lib,tests,third_party}
git ls-files -z | xargs -0 cp --parents -t "$top"
cp -r "$out/cuembed-$cuembed" "$top/third_party/cuembed"
cp "$kernels/libgradbus.so" "$emulated/libgradbus_emu.so" "$top/lib/"
strip --strip-debug "$top"/lib/*.so
cp "$emulated"/gradbus_{abi,threads,apply}_test "$top/tests/"
go build -tags native -ldflags '-s -w' -o "$top/bin/" ./cmd/ps ./cmd/trainer ./cmd/psbench
for package in cuda nn shard; do go test -c -tags native -ldflags '-s -w' -o "$top/tests/$package.test" "./$package"; done
cp build/capi/libgradbus.so "$top/python/gradbus/"
strip --strip-debug "$top/python/gradbus/libgradbus.so"
{
  echo "commit $(git rev-parse HEAD)$([ -z "$(git status --porcelain)" ] || echo ' with changes')"
  echo "kernels $(sed -n 's/^-- gradbus: CUDA backend //p' "$kernels.log")"
  echo "cuembed $cuembed"
  echo "glibc $(ldd --version | sed -n '1s/.* //p')"
} >"$top/MANIFEST"
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$out" -c gradbus-gpu | xz --lzma2=preset=6,dict=192MiB >"$out/gradbus-gpu.tar"
printf 'gpu_pack: %s MiB unpacked, build/gpu/gradbus-gpu.tar %s MiB\n' "$(du -sm "$top" | cut -f1)" "$(du -m "$out/gradbus-gpu.tar" | cut -f1)"
cat "$top/MANIFEST"
[ "$(stat -c %s "$out/gradbus-gpu.tar")" -le $bytes_max ] || fail "the archive has more than $((bytes_max >> 20)) MiB"
