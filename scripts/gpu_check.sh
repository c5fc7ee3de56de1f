#!/usr/bin/env bash
# gpu_check.sh OUT [PACK [STEP...]]: everything that has to hold on a machine with an NVIDIA GPU, in under ten minutes, or these steps
#
# For a machine with nvcc, CMake, a C++ compiler and PyTorch, without Go and without a network. Builds csrc with its nvcc
# for its GPU; runs the carried Go tests (PACK, default build/gpu-pack, made by gpu_pack.sh) and the C++ tests on that very
# library, bit for bit against the CPU; compute-sanitizer with its four tools on a part of them; measures every kernel, and
# next to PyTorch; runs whole jobs by the carried commands (gpu_jobs.sh). OUT gets table.txt, report.json (the steps), kernels.json,
# torch.json, jobs.txt and log.txt. PACK may be an archive that tar reads.
#
# Every step has its own limit and all share one. A step that fails, or cannot run, is said loudly, those after it still run
# where they can, and the status is then not 0.
set -uo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
[ $# -ge 1 ] || {
  echo "usage: scripts/gpu_check.sh OUT [PACK [STEP...]]" >&2
  exit 2
}
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
pack=$(realpath -m "${2:-build/gpu-pack}")
chosen=("${@:3}")
for name in "${chosen[@]}"; do
  [[ " c++-tests go-tests kernels placed jobs torch sanitizers " == *" $name "* ]] || {
    echo "gpu_check: no step $name: want c++-tests, go-tests, kernels, placed, jobs, torch or sanitizers" >&2
    exit 2
  }
done
if [ -f "$pack" ]; then
  mkdir -p build/gpu-packed && tar -C build/gpu-packed -xf "$pack" || exit 2
  pack=$PWD/build/gpu-packed
fi
build=$PWD/build/gpu-check
work=$(mktemp -d) # what each step prints
trap 'rm -rf "$work"' EXIT
library=$build/libgradbus.so
all_seconds=590 # of all steps together
: >"$out/log.txt"
rm -f "$out/jobs.txt" "$out/kernels.json" "$out/torch.json"
names=() results=() seconds=() details=()

# note NAME RESULT SECONDS DETAIL: one line of the table.
note() {
  names+=("$1") results+=("$2") seconds+=("$3") details+=("$4")
  printf '==== %-14s %s, %s s%s\n' "$1" "$2" "$3" "${4:+: $4}"
}

# cannot NAME WHY: a step that this machine or an earlier failure rules out. It counts as a failure.
cannot() { ! wanted "$1" || note "$1" "CANNOT RUN" 0 "$2"; }

# wanted NAME: whether the step is to run; device, configure and build always are.
wanted() { [ ${#chosen[@]} = 0 ] || [[ " device configure build ${chosen[*]} " == *" $1 "* ]]; }

# step NAME LIMIT COMMAND...: runs it with at most so many seconds, into the log.
step() {
  local name=$1 limit=$2 from=$SECONDS status last
  shift 2
  wanted "$name" || return 0
  if [ $((all_seconds - SECONDS)) -lt "$limit" ]; then limit=$((all_seconds - SECONDS)); fi
  if [ "$limit" -lt 3 ]; then
    cannot "$name" "no time left of $all_seconds s"
    return 1
  fi
  printf '\n==== %s: %s\n' "$name" "$*" >>"$out/log.txt"
  timeout -k 5 "$limit" "$@" >"$work/$name" 2>&1
  status=$?
  cat "$work/$name" >>"$out/log.txt"
  last=$(grep -v '^[[:space:]]*$' "$work/$name" | tail -n 1 | cut -c1-160)
  case $status in
    0) note "$name" ok $((SECONDS - from)) "" ;;
    124 | 137) note "$name" FAILED $((SECONDS - from)) "ran past its $limit s; last line: $last" ;;
    *)
      tail -n 15 "$work/$name"
      note "$name" FAILED $((SECONDS - from)) "status $status: $last"
      ;;
  esac
  return $status
}

# to FILE COMMAND...: its standard output goes to the file.
to() {
  local file=$1
  shift
  "$@" >"$file"
}
export -f to

# --- the machine
device= python= sanitizer=
if ! command -v nvidia-smi >/dev/null; then
  cannot device "there is no nvidia-smi: no NVIDIA driver here"
elif ! device=$(timeout 30 nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader 2>&1 | head -n 1) ||
  [[ $device != *,* ]]; then
  cannot device "nvidia-smi finds no GPU: $device"
  device=
else
  note device ok "$SECONDS" "$device"
fi
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
for p in python3 /usr/bin/python3; do
  if [ -z "$python" ] && "$p" -c 'import torch' 2>/dev/null; then python=$p; fi
done
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
# The GPU's own architecture; without one, the newest that every supported nvcc knows, so that building is tested.
arch=$(cut -d, -f2 <<<"$device" | tr -dc 0-9)
arch=${arch:-90}

# --- build
built=
if [ -z "$nvcc" ]; then
  cannot build "there is no nvcc"
elif ! command -v cmake >/dev/null; then
  cannot build "there is no cmake"
elif step configure 60 cmake -S . -B "$build" -DGRADBUS_CUDA=ON "-DGRADBUS_CUDA_ARCHITECTURES=$arch-real" \
  "-DGRADBUS_STAMP=$build/native_stamp.h" -DCMAKE_BUILD_TYPE=Release; then
  step build 240 cmake --build "$build" --parallel "$(nproc)" && built=1
fi

# --- tests
tests() { (cd cuda && "$pack/cuda.test" -library "$library" -require cuda -test.timeout 150s -test.v "$@"); }
export -f tests
export pack library
ready=
if [ -z "$built" ]; then
  cannot c++-tests "the build failed"
  cannot go-tests "the build failed"
else
  step c++-tests 90 ctest --test-dir "$build" --output-on-failure --timeout 60
  if [ ! -x "$pack/cuda.test" ]; then
    cannot go-tests "no $pack/cuda.test: carry what scripts/gpu_pack.sh makes"
  elif ! "$pack/cuda.test" -test.list NONE >/dev/null 2>"$work/start"; then
    cannot go-tests "cuda.test does not start here: $(tail -n 1 "$work/start")"
  elif [ -z "$device" ]; then
    cannot go-tests "no device"
  else
    ready=1
    step go-tests 160 bash -c tests
  fi
fi

# --- measurements
if [ -z "$built" ] || [ -z "$device" ]; then
  cannot kernels "no device or no build"
  cannot placed "no device or no build"
  cannot jobs "no device or no build"
  cannot torch "no device or no build"
else
  if [ -x "$pack/psbench" ]; then
    step kernels 120 bash -c 'to "$0" "$pack/psbench" kernels --backend cuda --kernel-library "$library" --json' "$out/kernels.json"
  else
    cannot kernels "no $pack/psbench: carry what scripts/gpu_pack.sh makes"
  fi
  if [ -x "$pack/cuda.test" ]; then
    step placed 90 bash -c 'cd cuda && "$pack/cuda.test" -library "$library" -test.run NONE -test.bench Placed -test.benchtime 20x'
  else
    cannot placed "no $pack/cuda.test: carry what scripts/gpu_pack.sh makes"
  fi
  if [ -x "$pack/trainer" ]; then
    step jobs 150 scripts/gpu_jobs.sh "$out" "$pack"
  else
    cannot jobs "no $pack/trainer: carry what scripts/gpu_pack.sh makes"
  fi
  if [ -n "$python" ]; then
    step torch 120 "$python" -B csrc/bench/compare_torch.py --device cuda --library "$library" --seconds 1 --json "$out/torch.json"
  else
    cannot torch "no python3 with PyTorch"
  fi
fi

# --- compute-sanitizer, on the tests whose vectors are small
small='^(TestBagForward|TestBagBackward|TestCoalesce|TestMerge|TestAverage|TestApply|TestMatMul|TestSoftmaxCrossEntropy'
small+='|TestFirstNonFinite|TestCopy|TestWeights|TestMaximum|TestSkippedIDs|TestSteps|TestAdagrad|TestAdam|TestNonFinite'
small+='|TestRoundedOnce|TestMisaligned|TestOrdersOfIDs|TestMergeInTwoSteps|TestStream|TestStreamBadID)$'
tools=(memcheck racecheck initcheck synccheck)
sanitized() {
  # Go interrupts its threads with signals, which the tool takes for the program's own.
  export GODEBUG=asyncpreemptoff=1
  cd cuda && exec "$sanitizer" --tool "$1" --error-exitcode 86 --print-limit 20 \
    "$pack/cuda.test" -library "$library" -require cuda -test.short -test.run "$small"
}
export -f sanitized
export sanitizer small
if [ -z "$sanitizer" ]; then
  cannot sanitizers "there is no compute-sanitizer"
elif [ -z "$ready" ]; then
  cannot sanitizers "the Go tests cannot run"
else # side by side
  step sanitizers 150 bash -c 'set -o pipefail
    for tool; do (sanitized "$tool" 2>&1 | sed -u "s/^/$tool: /") & tools+=($!); done
    for p in "${tools[@]}"; do wait "$p" || failed=$?; done
    exit "${failed:-0}"' sanitizers "${tools[@]}"
fi

# --- the end: a table, and the same as JSON
text() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"; }
failed=0
{
  printf '%s, nvcc %s, sm_%s, %s\n' "${device:-NO DEVICE}" \
    "$([ -n "$nvcc" ] && "$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')" "$arch" "$(date -u +%Y-%m-%d)"
  cat "$pack/MANIFEST" 2>/dev/null
  if [ -s "$out/kernels.json" ] && [ -n "$python" ]; then
    "$python" - "$out/kernels.json" <<'PYTHON'
import json
import sys

print("%-16s %11s %4s %9s %12s %8s %12s %9s %9s" % ("op", "rows", "dim", "bags", "n", "ids", "ms", "GB/s", "of stream"))
for r in json.load(open(sys.argv[1])):
    print("%-16s %11s %4s %9s %12s %8s %12.4f %9.1f %9.2f" % (
        r["op"], r.get("rows", "-"), r["dim"] or "-", r.get("bags", "-"), r.get("n", "-"), r.get("ids", "-"),
        r["seconds"] * 1e3, r["gb_per_second"], r["share_of_stream"]))
PYTHON
  fi
  cat "$out/jobs.txt" 2>/dev/null
  grep '^Benchmark' "$work/placed" 2>/dev/null
  # What compare_torch.py printed.
  cat "$work/torch" 2>/dev/null
  printf '\n%-14s %-10s %7s\n' step result seconds
  for i in "${!names[@]}"; do
    printf '%-14s %-10s %7s  %s\n' "${names[i]}" "${results[i]}" "${seconds[i]}" "${details[i]}"
  done
} >"$out/table.txt"
cat "$out/table.txt"
{
  printf '{"device":%s,"date":"%s","seconds":%d,"steps":[' "$(text "$device")" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$SECONDS"
  for i in "${!names[@]}"; do
    [ "$i" = 0 ] || printf ','
    printf '{"name":%s,"ok":%s,"seconds":%d,"detail":%s}' "$(text "${names[i]}")" \
      "$([ "${results[i]}" = ok ] && echo true || echo false)" "${seconds[i]}" "$(text "${details[i]}")"
  done
  printf ']}\n'
} >"$out/report.json"
for r in "${results[@]}"; do [ "$r" = ok ] || failed=$((failed + 1)); done
if [ "$failed" -gt 0 ]; then
  printf '==== %d of %d steps FAILED or CANNOT RUN, after %d s\n' "$failed" "${#names[@]}" "$SECONDS" >&2
  exit 1
fi
printf '==== all ok after %d s\n' "$SECONDS"
