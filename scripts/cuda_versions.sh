#!/usr/bin/env bash
# cuda_versions.sh [--all] [FOLDER]   compiles the CUDA backend with CUDA 12 and 13 beside the nvcc of this machine; no GPU is needed
#
# CUDA 13 is put together from Python wheels: nvcc, nvvm, crt, runtime and cccl. For CUDA 12 the wheels lack the compiler itself (of
# nvcc they bring ptxas and headers alone, up to 12.9, the last), so it is Debian 13's package, 12.4, with the headers of the wheels.
# Warnings are errors. One architecture and its PTX are compiled, with --all every one of the build.
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

# wheels TO NAME==VERSION... unpacks Python wheels into a folder.
wheels() {
  local to=$1 wheel
  shift
  [ ! -d "$to" ] || return 0
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$to.part" "$@" || fail "cannot fetch $*"
  for wheel in "$to.part"/*.whl; do python3 -m zipfile -e "$wheel" "$to.part"; done # which forgets who may run what
  rm "$to.part"/*.whl
  mv "$to.part" "$to"
}

# debian TO PATH SHA256 unpacks a package of the mirror that apt uses.
debian() {
  local to=$1 mirror
  [ ! -d "$to" ] || return 0
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(CREATED_BY)' | awk '$2 == "Packages" && $1 ~ /\/debian\/?$/ && !found++ {print $1}')
  [ -n "$mirror" ] || fail "apt knows no mirror of Debian: apt-get update"
  curl -fsSL --retry 3 -o "$to.deb" "${mirror%/}/$2" || fail "cannot fetch ${mirror%/}/$2"
  echo "$3  $to.deb" | sha256sum --quiet -c || fail "$to.deb is not the package that it should be"
  dpkg-deb -x "$to.deb" "$to"
  rm "$to.deb"
}

# cuda13 puts CUDA 13 together in $1.
cuda13() {
  wheels "$work/wheels13" nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37 nvidia-cuda-runtime==13.5.37 \
    nvidia-cuda-cccl==13.3.5.0.6
  chmod -R u+x "$work/wheels13/nvidia/cu13/"{bin,nvvm/bin}
  ln -sfn "$work/wheels13/nvidia/cu13" "$1"
}

# cuda12 puts CUDA 12 together in $1. The static runtime is of a later wheel: that of 12.4 has none. Kernels start no kernels here, so the
# library for that is empty.
cuda12() {
  wheels "$work/wheels12" nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-cccl-cu12==12.4.127.post1
  wheels "$work/runtime12" nvidia-cuda-runtime-cu12==12.9.79
  debian "$work/debian12" "pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb" \
    cd5fe85aee38d108b315f408a688641478f2402622a10c677478eb7a6c4e5319
  rm -rf "$1"
  mkdir -p "$1"/{bin,nvvm,include,lib}
  cp "$work"/debian12/usr/bin/{cudafe++,fatbinary,nvlink,ptxas} "$1/bin/"
  cp -r "$work"/debian12/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,cicc,crt} "$1/bin/"
  cp -r "$work/debian12/usr/lib/nvidia-cuda-toolkit/libdevice" "$1/nvvm/"
  cp -r "$work"/wheels12/nvidia/cuda_{nvcc,runtime,cccl}/include/. "$1/include/"
  cp "$work/runtime12/nvidia/cuda_runtime/lib/libcudart_static.a" "$1/lib/"
  ar rc "$1/lib/libcudadevrt.a"
  cat >"$1/bin/nvcc.profile" <<'EOF'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib"
EOF
}

# build RELEASE compiles both libraries; the shared one is linked without a symbol left open.
build() {
  local top=$work/cuda$1 into=$work/build$1 from=$SECONDS
  "cuda$1" "$top"
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
