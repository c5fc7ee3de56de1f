#!/usr/bin/env bash
# cuda_toolkit.sh RELEASE FOLDER   puts CUDA 12, 13.0 or 13 (its newest pinned) together in FOLDER/cudaRELEASE; no GPU is needed
#
# CUDA 13 is made of Python wheels: nvcc, nvvm, crt, runtime and cccl. Programs of 13.0 run with every driver of CUDA 13. For CUDA 12 the
# wheels miss the compiler itself (of nvcc they bring ptxas and headers alone, up to 12.9, the last), so it is Debian 13's package, 12.4,
# with the headers of the wheels.
#
# What is fetched, some 120 MB for each, stays in FOLDER. Needs python3 with pip, and for CUDA 12 a Debian mirror of apt's.
set -euo pipefail
fail() {
  printf 'cuda_toolkit: %s\n' "$*" >&2
  exit 1
}
[ $# = 2 ] || fail "usage: scripts/cuda_toolkit.sh 12|13.0|13 FOLDER"
mkdir -p "$2"
work=$(cd "$2" && pwd)

# wheels TO NAME==VERSION... unpacks Python wheels into a folder.
wheels() {
  local to=$1 wheel
  shift
  [ ! -d "$to" ] || return 0
  rm -rf "$to.part"
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

# cuda13 RELEASE NVCC RUNTIME CCCL: versions of wheels.
cuda13() {
  wheels "$work/wheels$1" "nvidia-cuda-nvcc==$2" "nvidia-nvvm==$2" "nvidia-cuda-crt==$2" "nvidia-cuda-runtime==$3" "nvidia-cuda-cccl==$4"
  chmod -R u+x "$work/wheels$1/nvidia/cu13/"{bin,nvvm/bin}
  ln -sfn lib "$work/wheels$1/nvidia/cu13/lib64" # where nvcc looks
  ln -sfn "$work/wheels$1/nvidia/cu13" "$work/cuda$1"
}

# cuda12: the static runtime is of a later wheel: that of 12.4 has none. Kernels start no kernels here, so the library for that is empty.
cuda12() {
  local top=$work/cuda12
  wheels "$work/wheels12" nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-cccl-cu12==12.4.127.post1
  wheels "$work/runtime12" nvidia-cuda-runtime-cu12==12.9.79
  debian "$work/debian12" "pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb" \
    cd5fe85aee38d108b315f408a688641478f2402622a10c677478eb7a6c4e5319
  rm -rf "$top"
  mkdir -p "$top"/{bin,nvvm,include,lib}
  cp "$work"/debian12/usr/bin/{cudafe++,fatbinary,nvlink,ptxas} "$top/bin/"
  cp -r "$work"/debian12/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,cicc,crt} "$top/bin/"
  cp -r "$work/debian12/usr/lib/nvidia-cuda-toolkit/libdevice" "$top/nvvm/"
  cp -r "$work"/wheels12/nvidia/cuda_{nvcc,runtime,cccl}/include/. "$top/include/"
  cp "$work/runtime12/nvidia/cuda_runtime/lib/libcudart_static.a" "$top/lib/"
  ar rc "$top/lib/libcudadevrt.a"
  ln -s lib "$top/lib64"
  cat >"$top/bin/nvcc.profile" <<'EOF'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib"
EOF
}

case $1 in
  12) cuda12 ;;
  13.0) cuda13 13.0 13.0.88 13.0.96 13.0.85 ;;
  13) cuda13 13 13.5.37 13.5.37 13.3.5.0.6 ;;
  *) fail "no CUDA $1: want 12, 13.0 or 13" ;;
esac
