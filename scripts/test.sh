#!/usr/bin/env bash
# test.sh short|rest|all|PART [SECONDS]   runs the tests part by part, also after one that failed, and lists at its end what failed
#
#   native       the C++ tests
#   race         Go's tests with the native backend, under the race detector
#   long         of these the packages of which short leaves something out, without it
#   cuda         packages that take ten times as long under it, by their arithmetic or their many runs: without it, then with it what
#                goroutines of cuda share
#   portable     Go's tests without cgo
#   hosts        several hosts, in network namespaces (as root)
#   faults       every fault, at its whole volume; jobs that are killed, resumed and replaced; 500 seeds of
#                simulated faults (150 in rest), and planted defects that these have to find
#   page         the page in a real browser
#   prometheus   a real Prometheus
#   python       the PyTorch package as its wheel installs it, with this machine's PyTorch, or TORCH=2
#   fuzz         every fuzzer, for SECONDS each (20)
#
# short is the first four without e2e/faults and what skips by -short, with examples, formats and rules in cuda instead of race, and the
# portable part only where another backend or other files are compiled: the packages above see a backend by its contract alone. rest has
# the other parts, native and cuda for the library that was built, and long for what skips by -short. A single part is whole.
# make calls it, and says how cgo compiles.
set -uo pipefail
cd "$(dirname "$0")/.."

parts=(native race cuda portable)
rest=(hosts faults page prometheus python fuzz)
short=() what=${1:-}
case $what in
  short) short=(-short) ;;
  all) parts+=("${rest[@]}") ;;
  rest) parts=(native long cuda "${rest[@]}") seeds=150 ;;
  *)
    [[ " ${parts[*]} long ${rest[*]} " == *" ${what:-none} "* ]] ||
      { echo "test: want short, rest, all or one of ${parts[*]} long ${rest[*]}" >&2; exit 2; }
    parts=("$what")
    ;;
esac
seconds=${2:-20}
scripts/deps.sh --check go || exit

# What mostly waits begins first, with four tests of a package at a time, and three packages: more starve connections of their greeting.
slow=(./trainer ./e2e ./ps)
export GORACE="atexit_sleep_ms=10 ${GORACE:-}" # by itself each program waits for a second at its end
# make lint vets what these compile.
go_test=(go test -p 3 -parallel 4 -shuffle=on -timeout 20m -vet=off -ldflags=-w)
native=(-tags native,emu)
shared='Concurrent|Goroutines|Closed|Lost|Parks|Stream|^TestBatch|^TestThreads$'

built() { make --no-print-directory deps && make --no-print-directory all TESTS=ON; }
native() { ctest --test-dir build --output-on-failure; }
race() {
  local without=(-e '/cuda$' -e '/bench/exchange$' -e '/cmd/' -e '/shard$' -e '/checkpoint$')
  [ ${#short[@]} = 0 ] || without+=(-e '/e2e/faults$' -e '/examples' -e '/internal/rules$' -e '/schema$' -e '/bench/average$')
  "${go_test[@]}" "${short[@]}" -race "${native[@]}" "${slow[@]}" $(go list ./... | grep -v "${without[@]}")
}
long() { "${go_test[@]}" "${native[@]}" ./trainer ./schema ./fabric ./examples/... ./internal/rules ./bench/average; }
cuda() {
  local packages=(./cuda ./shard ./checkpoint ./bench/exchange ./cmd/...)
  [ ${#short[@]} = 0 ] || packages+=(./examples/... ./internal/rules ./schema ./bench/average)
  "${go_test[@]}" "${short[@]}" "${native[@]}" "${packages[@]}"
  local status=$?
  [ "$what" != rest ] || return $status
  "${go_test[@]}" "${short[@]}" -race "${native[@]}" -run "$shared" ./cuda && return $status
}
portable() {
  local packages=(./cuda/... ./nn ./shard/...)
  [ ${#short[@]} -gt 0 ] || mapfile -t packages < <(go list ./... | grep -v -e /e2e -e /bench/ -e /cmd/) # those run processes
  CGO_ENABLED=0 "${go_test[@]}" "${short[@]}" "${packages[@]}"
}
hosts() { go test -tags native -count 1 ./e2e -run SeveralHosts -need-hosts; }
faults() { # what mostly waits beside what mostly computes
  local status=0 waits out
  out=$(mktemp)
  go test -tags native -timeout 20m -v ./e2e/faults -full >"$out" 2>&1 &
  waits=$!
  go test -tags native -count 1 ./e2e -run KilledAnd || status=1
  go test -count 1 -timeout 20m ./e2e/simulate -run 'Simulate|Reproducible' -seeds "${seeds:-500}" || status=1
  go test -count 1 -timeout 20m ./e2e/simulate -run Planted -planted -v || status=1
  wait $waits || status=1
  cat "$out"
  rm "$out"
  return $status
}
page() { go test -tags native -count 1 ./e2e/page -need-browser; }
prometheus() { go test -tags native -count 1 ./e2e/prometheus -need-prometheus; }
python() {
  local needs=(torch python pytest)
  [ -z "${TORCH:-}" ] || needs=(python)
  scripts/deps.sh "${needs[@]}" && make --no-print-directory python TESTS=ON && scripts/torch.sh test
}
fuzz() { scripts/fuzz.sh "$seconds"; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT
failed=()

# run PART: what it prints, then whether it held, and for the end what of it failed.
run() {
  local from=$SECONDS
  printf '\n== test %s\n' "$1"
  if "$1" 2>&1 | tee "$log"; then
    printf '== test %s: ok, %d s\n' "$1" $((SECONDS - from))
    return
  fi
  printf '== test %s: FAILED after %d s\n' "$1" $((SECONDS - from))
  failed+=("$1")
  mapfile -t -O ${#failed[@]} failed < <(sed -nE 's/^ *(--- FAIL: [^/]*|FAIL\t.*|panic: .*|[ \t]*[0-9]+ - .*\(.*\))$/    \1/p' "$log" | head -30)
  return 1
}

if [[ ! "${parts[*]}" =~ ^(portable|fuzz)$ ]] && ! run built; then
  for part in "${parts[@]}"; do [ "$part" = portable ] || failed+=("$part (needs what was not built)"); done
  [[ " ${parts[*]} " == *" portable "* ]] && parts=(portable) || parts=()
fi
for part in "${parts[@]}"; do run "$part"; done

if [ ${#failed[@]} -gt 0 ]; then
  printf '\n== test: FAILED after %d s:\n' "$SECONDS" >&2
  printf '  %s\n' "${failed[@]}" >&2
  exit 1
fi
printf '\n== test: all ok after %d s: %s\n' "$SECONDS" "${parts[*]}"
