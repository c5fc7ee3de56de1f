#!/usr/bin/env bash
# gpu_jobs.sh OUT [COMMANDS]: whole jobs on a machine with an NVIDIA GPU, by the ps and trainer in COMMANDS (bin)
#
# Each job runs with the backends cpu and cuda, in turn, and must end with the same weights, bit for bit. One of them
# also begins with a ps of one backend and goes on with a ps of the other, by the last version of the first. The backend
# cuda leaves to the CPU what that ends sooner, of these jobs most; the tests are what has the GPU do every call. A ps
# that asks for a GPU is looked at as its users do: status, the list of GPUs, doctor, metrics, next to what nvidia-smi
# says. OUT gets jobs.txt, a line for each job with samples a second, gpu.txt, what those printed, and ps.log. The status
# is 0 only if all held.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || {
  echo "usage: scripts/gpu_jobs.sh OUT [COMMANDS]" >&2
  exit 2
}
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
bin=$(realpath -m "${2:-bin}")
work=$(mktemp -d)
ps=
ended() {
  [ -z "$ps" ] || { kill -INT "$ps" && wait "$ps"; } 2>/dev/null
  ps=
}
trap 'ended; tail -n +1 "$work"/ps-*.log >"$out/ps.log"; rm -rf "$work"' EXIT
failed=0
: >"$out/jobs.txt"
wrong() {
  echo "gpu_jobs: $*"
  failed=$((failed + 1))
}

# serve BACKEND [ADDRESS]: a ps of that backend, there or on free ports; $server and $page are its addresses.
serve() {
  local log=$work/ps-$1${2:+-after}.log
  rm -f "$work/url"
  gpu=(--gpu off)
  [ "$1" = cpu ] || gpu=(--gpu require --gpu-state "$work/gpus.json")
  "$bin/ps" --listen "${2:-127.0.0.1:0}" --http 127.0.0.1:0 --port-file "$work/url" --backend "$1" "${gpu[@]}" \
    --checkpoint-dir "$work/versions" --log-format json >"$log" 2>&1 &
  ps=$!
  for _ in $(seq 300); do
    [ ! -s "$work/url" ] || break
    kill -0 "$ps" 2>/dev/null || break
    sleep 0.1
  done
  server=$(head -n 1 "$work/url" 2>/dev/null)
  page=$(grep -oE 'http://127\.0\.0\.1:[0-9]+' "$log" | head -n 1)
  [ -n "$server" ] || {
    tail -n 5 "$log"
    wrong "no ps with --backend $1"
    return 1
  }
}

# field NAME: of the line of JSON on standard input.
field() { grep -oE "\"$1\":(\"[^\"]*\"|[0-9.e+-]+)" | head -n 1 | cut -d: -f2- | tr -d '"'; }

jobs=(
  "packages --trainers 2 --dim 64"
  "packages --trainers 2 --optimizer adam --batch 1024"
  "packages --trainers 2 --optimizer rowwise_adagrad --placement rows"
  "packages --trainers 2 --apply mean --reduce trainers"
  "packages --trainers 1 --dim 256 --batch 4096 --lr 5"
)
declare -A digests

# train BACKEND JOB [WORD]: the job, by the ps that is served; WORD tells it from others in the log and by its name.
train() {
  local line digest status=0
  # shellcheck disable=SC2086 # the words of a job are its arguments
  line=$("$bin/trainer" $2 --input synthetic --epochs "$epochs" --spawn --server "$server" --backend "$1" "${gpu[@]}" \
    --job "on-$1${3:+-$3}" --json 2>"$work/job.log" | tail -n 1) || status=$?
  digest=$(field weights_sha256 <<<"$line")
  printf '%-70s %-18s %12.0f samples/s %s %s\n' "$2" "$(field backend <<<"$line")" \
    "$(field samples_per_second <<<"$line")" "${digest:0:16}" "${3:-}" | tee -a "$out/jobs.txt"
  if [ -z "$digest" ] || [ $status != 0 ]; then
    tail -n 8 "$work/job.log"
    wrong "$2 on $1${3:+ $3}: status $status, digest ${digest:-none}"
  elif [ "$1${3:-}" = cpu ]; then
    digests[$2]=$digest
  elif [ "$digest" != "${digests[$2]:-}" ]; then
    wrong "$2 on $1${3:+ $3}: other weights than on the CPU"
  fi
  [ $failed = 0 ]
}

epochs=3
for backend in cpu cuda; do
  serve $backend || continue
  for job in "${jobs[@]}"; do
    train $backend "$job"
  done
  if [ $backend = cuda ]; then
    {
      nvidia-smi
      "$bin/ps" status --ps "$page"
      "$bin/ps" gpu-list --gpu-state "$work/gpus.json"
      "$bin/ps" doctor --ps "$page" --listen 127.0.0.1:0 --http 127.0.0.1:0 --gpu-state "$work/gpus.json"
      timeout 10 bash -c 'exec 3<>"/dev/tcp/${0%:*}/${0#*:}" && printf "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3 && cat <&3' "${page#http://}" |
        grep -i gpu
    } >"$out/gpu.txt" 2>&1
    grep -q '^gradbus_gpu' "$out/gpu.txt" || wrong "no metrics of a GPU"
  fi
  ended
done
# The first ps is asked to end soon after the start. Until it has written a version of some seconds later, training goes on;
# then trainers come back to the second by themselves.
epochs=250
job=${jobs[2]}
serve cpu && { train cpu "$job"; ended; }
for backend in cpu cuda; do
  [ $backend = cpu ] && other=cuda || other=cpu
  serve $backend || continue
  train $backend "$job" then-$other &
  trainer=$!
  sleep 2
  ended
  serve $other "${server#nats://}"
  wait $trainer || failed=$((failed + 1))
  grep -q "goes on that was lost" "$work/ps-$other-after.log" || wrong "$job: did not go on with $other"
  ended
done
[ $failed = 0 ] || exit 1
