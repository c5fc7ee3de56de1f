#!/usr/bin/env bash
# fuzz.sh SECONDS: runs every fuzz target of the repository for so many seconds each.
# Minimising is bounded: left alone, Go spends a short run on it and tries next to nothing new.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds each}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
while IFS=: read -r file target; do
  echo "fuzz: $target in ./$(dirname "$file") for ${seconds}s"
  for attempt in 1 2 3; do
    go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" -fuzzminimizetime 10x 2>&1 | tee "$log" && break
    # go test fails now and then because its time is over, with no input that failed: that is no finding. Three times is.
    if [ $attempt = 3 ] || grep -q 'Failing input' "$log" || ! grep -q '^ *context deadline exceeded$' "$log"; then
      exit 1
    fi
    echo "fuzz: $target found nothing, but go test did not end in time: once more"
  done
done < <(git grep --untracked -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/:func /:/')
