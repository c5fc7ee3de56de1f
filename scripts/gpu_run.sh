#!/usr/bin/env bash
# gpu_run.sh right|fast|whole OUT [--emulated] [--only STEP,...]   one phase of what a machine with an NVIDIA GPU is asked, in 9 minutes
#
# For a folder that make gpu packed, on a machine with PyTorch and nvcc, without Go and without a network. OUT gets PHASE.json, written
# again after every step, and PHASE.log. A step that fails ends no phase; the status is 1 if any failed. What is not built, or not on
# the machine, is skipped with its reason. `go run ./bench/gpu OUT` keeps the figures and writes them into docs/benchmarks.md.
#
# right, first on every GPU: tests, compute-sanitizer, digests of jobs by every backend, PyTorch, an XID, NVML's values. fast: kernels.
# whole: jobs. --emulated takes the emulated device and small sizes: it shows that everything runs, and its figures mean nothing.
exec python3 -B "$(dirname "$0")/gpu/run.py" "$@"
