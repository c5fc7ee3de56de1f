#!/usr/bin/env bash
# torch.sh test|demo [ARGUMENT...]   does it with PyTorch and the wheel that `make python` wrote, in a virtual environment below build/
#
#   test   pytest over python/tests and examples/torch, with the arguments
#   demo   trains MovieLens by examples/torch/movielens.py, beside plain PyTorch, with the arguments
#
# The environment sees this machine's PyTorch, that of the first python3 that has one, and takes nothing from the network. With TORCH=2
# it has a current one from the registry of pip's settings instead, which is kept: a build for the CPU where the registry has it,
# else the one with CUDA, of several GB.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { printf 'torch: %s\n' "$*" >&2; exit 1; }

torch2=2.14.1 pytest2=9.2.0 numpy2=2.2.6
what=${1:-}
[[ $what =~ ^(test|demo)$ ]] || fail "want test or demo"
shift
wheels=(build/dist/gradbus-*.whl)
[ -e "${wheels[0]}" ] || fail "no wheel in build/dist: run make python"

venv=build/python/venv
if [ "${TORCH:-}" = 2 ]; then
  venv=build/python/torch-$torch2
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "PyTorch $torch2 needs Python 3.10 or newer"
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
  pip=("$venv/bin/pip" --disable-pip-version-check -q)
  "$venv/bin/python" -c 'import torch, pytest, numpy' 2>/dev/null || "${pip[@]}" install "torch==$torch2+cpu" "pytest==$pytest2" "numpy==$numpy2" 2>/dev/null ||
    "${pip[@]}" install "torch==$torch2" "pytest==$pytest2" "numpy==$numpy2" || fail "pip could not install PyTorch $torch2"
  pip+=(install --force-reinstall)
elif [ -n "${TORCH:-}" ]; then
  fail "TORCH=$TORCH: want 2, or nothing for this machine's PyTorch"
else
  for python in python3 /usr/bin/python3; do
    said=$("$python" scripts/torch_blas.py 2>/dev/null) && break
  done
  [ -n "${said:-}" ] || fail "no python3 here has PyTorch: scripts/deps.sh torch installs Debian's"
  rm -rf "$venv"
  "$python" -m venv --system-site-packages "$venv" || fail "$python makes no virtual environment: scripts/deps.sh python installs what it needs"
  pip=("$venv/bin/pip" --disable-pip-version-check -q install)
fi
"${pip[@]}" --no-deps "${wheels[0]}"

printf '== %s, PyTorch %s\n' "$(basename "${wheels[0]}")" "$("$venv/bin/python" scripts/torch_blas.py)"
case $what in
  test) # apart, since files of both may have one name
    status=0
    for folder in python/tests examples/torch; do
      "$venv/bin/python" -m pytest -c python/pyproject.toml --rootdir=python "$@" $folder || status=1
    done
    exit $status
    ;;
  demo) exec "$venv/bin/python" examples/torch/movielens.py "$@" ;;
esac
