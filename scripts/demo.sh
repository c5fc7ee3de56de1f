#!/usr/bin/env bash
# demo.sh: a server, two trainer processes, four epochs, the result, a prediction
#
# The input is this machine's own package index; where there is none, the trainers say so and use a small generated
# corpus. Everything that it starts has ended when it ends. Status 0 means that the model learnt: accuracy of at least 0.80.
set -euo pipefail
cd "$(dirname "$0")/.."
atLeast=0.80
work=$(mktemp -d)
model=build/demo.safetensors
pids=()

finish() {
  trap - EXIT INT TERM
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

more=()
if [ $# -gt 0 ]; then
  echo "demo: unknown argument $1 (want none)" >&2
  exit 2
elif ! why=$(bin/trainer packages --dump /dev/null 2>&1); then
  echo "== no package index of this machine's own: ${why##*trainer: }"
  echo "== so this is a small generated corpus: synthetic, and its accuracy says nothing about real packages"
  more=(--input synthetic)
fi

mkdir -p build
echo "== a parameter server with two shards, on a free port:  ./bin/ps --listen 127.0.0.1:0"
bin/ps --listen 127.0.0.1:0 --http 127.0.0.1:0 --port-file "$work/url" >"$work/ps.out" 2>"$work/ps.err" &
ps=$!
pids+=("$ps")
for _ in $(seq 1200); do
  [ -s "$work/url" ] && break
  kill -0 "$ps" 2>/dev/null || break
  sleep 0.1
done
[ -s "$work/url" ] || {
  echo "demo: the server did not start:" >&2
  cat "$work/ps.err" >&2
  exit 1
}
url=$(cat "$work/url")
head -n 1 "$work/ps.err"

echo "== two trainers:  ./bin/trainer packages --server $url --trainers 2 --epochs 4"
train=(bin/trainer packages --server "$url" --job demo --trainers 2 --epochs 4 "${more[@]}")
"${train[@]}" >"$work/first.out" 2>"$work/first.err" &
first=$!
pids+=("$first")
"${train[@]}" --save "$model" | tee "$work/result" || {
  echo "demo: the second trainer failed; the first said:" >&2
  tail -n 3 "$work/first.err" >&2
  exit 1
}
wait "$first" || {
  echo "demo: the first trainer failed:" >&2
  tail -n 3 "$work/first.err" >&2
  exit 1
}

text="text editor with syntax highlighting"
echo "== a prediction:  ./bin/trainer packages --load $model --predict \"$text\""
bin/trainer packages --load "$model" --predict "$text"

kill -INT "$ps"
wait "$ps" || {
  echo "demo: the server ended with status $?:" >&2
  tail -n 3 "$work/ps.err" >&2
  exit 1
}
accuracy=$(awk '$1 == "accuracy" {print $2}' "$work/result")
if ! awk -v a="$accuracy" -v b="$atLeast" 'BEGIN {exit !(a != "" && a + 0 >= b + 0)}'; then
  echo "demo: accuracy ${accuracy:-missing}, want at least $atLeast" >&2
  exit 1
fi
echo "== done: accuracy $accuracy. Next:  ./bin/ps   and in another terminal:  ./bin/trainer packages"
