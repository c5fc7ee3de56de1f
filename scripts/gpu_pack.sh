#!/usr/bin/env bash
# gpu_pack.sh [FOLDER]: builds what gpu_run.sh needs and a machine without Go cannot build, into FOLDER (build/gpu-pack)
#
# The test binary of package cuda and the commands, stripped. Tests and measurements load the shared library that nvcc over there
# built; jobs run on the kernels that are linked in. Without the emulated device, which a real one makes needless.
# TestGlibc holds how new a glibc they may need. Carry the repository and FOLDER, or FOLDER.tar.xz, then run scripts/gpu_run.sh there.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:-build/gpu-pack}
[ -e build/libgradbus.a ] || {
  echo "gpu_pack: no build/libgradbus.a: run make first" >&2
  exit 1
}
mkdir -p "$to"
go test -c -tags native -ldflags '-s -w' -o "$to/cuda.test" ./cuda/
go build -tags native -ldflags '-s -w' -o "$to/" ./cmd/ps ./cmd/trainer ./cmd/psbench
{
  echo "commit $(git rev-parse HEAD)$([ -z "$(git status --porcelain -- '*.go' '*.h')" ] || echo ' with changes')"
  echo "glibc $(ldd --version | sed -n '1s/.* //p')"
} >"$to/MANIFEST"
tar -C "$to" -c . | xz -T0 -3 --lzma2=preset=3,dict=192MiB >"$to.tar.xz"
echo "gpu_pack: $to: $(du -sh "$to" | cut -f1); $to.tar.xz: $(du -sh "$to.tar.xz" | cut -f1)"
cat "$to/MANIFEST"
