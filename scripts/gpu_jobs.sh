#!/usr/bin/env bash
# gpu_jobs.sh OUT [COMMANDS]: whole jobs on a machine with an NVIDIA GPU, by the ps and trainer in COMMANDS (bin)
#
# Each job runs with the backends cpu and cuda, in turn, and must end with the same weights, bit for bit. The backend cuda
# leaves to the CPU what that ends sooner, of these jobs most; the tests are what has the GPU do every call. A ps
# that asks for a GPU is looked at as its users do: status, the list of GPUs, doctor, metrics, next to what nvidia-smi says.
# OUT gets jobs.txt, a line for each job with samples a second, and what those printed. The status is 0 only if all held.
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
trap 'ended; rm -rf "$work"' EXIT
failed=0
: >"$out/jobs.txt"
wrong() {
  echo "gpu_jobs: $*"
  failed=$((failed + 1))
}

# serve BACKEND: a ps of that backend on free ports; $server and $page are its addresses.
serve() {
  rm -f "$work/url"
  "$bin/ps" --listen 127.0.0.1:0 --http 127.0.0.1:0 --port-file "$work/url" --backend "$1" "${gpu[@]}" \
    --checkpoint-dir "$work/versions-$1" --log-format json >"$out/ps-$1.log" 2>&1 &
  ps=$!
  for _ in $(seq 300); do
    [ ! -s "$work/url" ] || break
    kill -0 "$ps" 2>/dev/null || break
    sleep 0.1
  done
  server=$(head -n 1 "$work/url" 2>/dev/null)
  page=$(grep -oE 'http://127\.0\.0\.1:[0-9]+' "$out/ps-$1.log" | head -n 1)
  [ -n "$server" ] || {
    tail -n 5 "$out/ps-$1.log"
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
for backend in cpu cuda; do
  gpu=(--gpu off)
  [ $backend = cpu ] || gpu=(--gpu require --gpu-state "$work/gpus.json")
  serve $backend || continue
  for job in "${jobs[@]}"; do
    # shellcheck disable=SC2086 # the words of a job are its arguments
    status=0
    line=$("$bin/trainer" $job --input synthetic --epochs 3 --spawn --server "$server" --backend $backend "${gpu[@]}" \
      --job "on-$backend" --json 2>"$work/job.log" | tail -n 1) || status=$?
    digest=$(field weights_sha256 <<<"$line")
    printf '%-70s %-18s %12.0f samples/s %s\n' "$job" "$(field backend <<<"$line")" \
      "$(field samples_per_second <<<"$line")" "${digest:0:16}" | tee -a "$out/jobs.txt"
    if [ -z "$digest" ] || [ $status != 0 ]; then
      tail -n 8 "$work/job.log"
      wrong "$job on $backend: status $status, digest ${digest:-none}"
    elif [ $backend = cpu ]; then
      digests[$job]=$digest
    elif [ "$digest" != "${digests[$job]:-}" ]; then
      wrong "$job: the weights differ between cpu and cuda"
    fi
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
[ $failed = 0 ] || exit 1
