#!/usr/bin/env bash
# fuzz.sh SECONDS: runs every fuzz target of the repository for so many seconds each.
# Minimising is bounded: left alone, Go spends a short run on it and tries next to nothing new.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds each}
while IFS=: read -r file target; do
  echo "fuzz: $target in ./$(dirname "$file") for ${seconds}s"
  go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" -fuzzminimizetime 10x
done < <(git grep --untracked -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/:func /:/')
