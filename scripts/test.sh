#!/usr/bin/env bash
# test.sh short|rest|all|PART [SECONDS]   runs the tests part by part, also after one that failed, and lists at its end what failed
#
#   native       the C++ tests
#   race         Go's tests with the native backend, under the race detector
#   long         of these the packages of which short leaves something out, without it
#   cuda         packages that take ten times as long under it, by their arithmetic or their many runs: without it, then with it what
#                goroutines of cuda share
#   portable     Go's tests without cgo
#   simulate     500 seeds of simulated faults (100 in rest), the table of recoveries, and planted defects that these have to find
#   hosts        several hosts, in network namespaces (as root)
#   faults       every fault, at its whole volume; jobs that are killed, resumed and replaced
#   page         the page in a real browser
#   prometheus   a real Prometheus
#   python       the PyTorch package as its wheel installs it, with this machine's PyTorch, or TORCH=2
#   fuzz         every fuzzer, for SECONDS each (20)
#
# short is native, race, cuda and portable without e2e/faults, the emulated CUDA kernels and what skips by -short. It has in cuda instead
# of race what shares nothing between goroutines (examples, formats, rules), and what runs processes, which are not under the race detector
# anyway; and the portable part only where another backend or other files are compiled: the packages above see a backend by its contract
# alone. rest has the other parts, native and cuda for the library that was built, and long for what skips by -short. all and rest run
# long and the parts from hosts to python, which mostly wait, beside those that compute. A single part is whole.
# make calls it, and says how cgo compiles.
set -uo pipefail
cd "$(dirname "$0")/.."

parts=(native race cuda portable)
waiting=(hosts faults page prometheus python)
beside=() short=() native=(-tags native,emu) emu=ON what=${1:-}
case $what in
  short) short=(-short) native=(-tags native) emu=OFF ;;
  all) parts+=(simulate fuzz) beside=("${waiting[@]}") ;;
  rest) parts=(native cuda simulate fuzz) beside=(long "${waiting[@]}") seeds=100 ;;
  *)
    [[ " ${parts[*]} long simulate fuzz ${waiting[*]} " == *" ${what:-none} "* ]] ||
      { echo "test: want short, rest, all or one of ${parts[*]} long simulate ${waiting[*]} fuzz" >&2; exit 2; }
    parts=("$what")
    ;;
esac
seconds=${2:-20}
scripts/deps.sh --check go || exit

# What mostly waits begins first, with four tests of a package at a time, and three packages: more starve connections of their greeting.
slow=(./trainer ./ps)
# Of what shares little between goroutines, or runs processes: make test has it without the race detector, test-race with it.
alone=(./e2e ./e2e/page ./e2e/prometheus ./e2e/simulate/disk ./examples/... ./bench/average ./bench/faults/... ./bench/gpu/...
  ./bench/hosted ./bench/hybrid ./bench/machine ./bench/suite ./bench/update ./capi ./cuda/bench/... ./internal/atomicfile/...
  ./internal/certificate/... ./internal/config ./internal/connect/... ./internal/gpu/... ./internal/liveness/... ./internal/loglimit/...
  ./internal/regular/... ./internal/report ./internal/rules ./internal/safetensors ./internal/settings ./internal/spawn
  ./internal/temporary/... ./internal/tensorboard/... ./internal/testkit/... ./internal/timerslack/... ./internal/verification/... ./lane
  ./nn ./philox ./ps/coordinator/... ./ps/ops/doctor/... ./ps/ops/metrics/... ./ps/ops/page/... ./ps/ops/status/... ./ps/ops/terminal/...
  ./schema/... ./shard/round ./trainer/internal/exchange/... ./trainer/shuffle)
export GORACE="atexit_sleep_ms=10 ${GORACE:-}" # by itself each program waits for a second at its end
# make lint vets what these compile.
go_test=(go test -p 3 -parallel 4 -shuffle=on -timeout 20m -vet=off '-ldflags=-s -w')
raced=(-race "${native[@]}" -gcflags=all=-dwarf=false) # what only debuggers read takes time to compile
kind=(-trimpath -buildmode=pie)                         # that of make, whose compiled packages then serve here
native+=("${kind[@]}")
shared='Concurrent|Goroutines|Closed|Lost|Parks|Stream|^TestBatch|^TestThreads$'

built() {
  local target=all
  [ "$what" != short ] || target=native # whose tests build commands by themselves
  make --no-print-directory deps && make --no-print-directory $target TESTS=ON EMU=$emu
}
native() { ctest --test-dir build --output-on-failure; }
race() {
  local without=(./cuda ./bench/exchange ./cmd/... ./shard ./checkpoint)
  [ ${#short[@]} = 0 ] || without+=(./e2e/faults "${alone[@]}")
  "${go_test[@]}" "${short[@]}" "${raced[@]}" "${slow[@]}" $(go list ./... | grep -vxFf <(go list "${without[@]}")) 2>&1 |
    tee "$work/detected"
  local status=${PIPESTATUS[0]} broken
  # The detector itself fails now and then in tests in virtual time (Go's issue 78156). That says nothing of them.
  if [ "$status" = 0 ] || ! grep -q '^ThreadSanitizer: CHECK failed' "$work/detected" ||
    grep -qE '^ *--- FAIL|DATA RACE|^panic: ' "$work/detected"; then
    return "$status"
  fi
  mapfile -t broken < <(sed -nE 's/^FAIL\t([^\t]+)\t.*/\1/p' "$work/detected")
  echo "THE RACE DETECTOR ITSELF HAS FAILED, once more: ${broken[*]}"
  "${go_test[@]}" "${short[@]}" "${raced[@]}" "${broken[@]}"
}
long() { # most of it sleeps
  "${go_test[@]}" "${native[@]}" -parallel 8 ./trainer ./local ./schema ./fabric ./examples/... ./internal/rules ./bench/average
}
cuda() {
  local packages=(./cuda ./shard ./checkpoint ./bench/exchange ./cmd/...)
  [ ${#short[@]} = 0 ] || packages=("${alone[@]}" "${packages[@]}")
  "${go_test[@]}" "${short[@]}" "${native[@]}" "${packages[@]}"
  local status=$?
  [ "$what" != rest ] || return $status
  "${go_test[@]}" "${short[@]}" "${raced[@]}" -run "$shared" ./cuda && return $status
}
portable() {
  local packages=(./cuda/... ./nn ./shard ./shard/round ./shard/state) # and no server, which would be compiled without cgo for it
  [ ${#short[@]} -gt 0 ] || mapfile -t packages < <(go list ./... | grep -v -e /e2e -e /bench/ -e /cmd/) # those run processes
  CGO_ENABLED=0 "${go_test[@]}" "${short[@]}" "${kind[@]}" "${packages[@]}"
}
hosts() { go test -tags native "${kind[@]}" -count 1 ./e2e -run SeveralHosts -need-hosts; }
simulate() {
  local status=0
  export GOGC=400 # a tenth less time
  go test -count 1 -timeout 20m ./e2e/simulate -run 'Simulate|Reproducible|Recovery' -seeds "${seeds:-500}" || status=1
  go test -count 1 -timeout 20m ./e2e/simulate -run Planted -planted -v || status=1
  return $status
}
faults() { # both mostly wait
  local status=0 every out
  out=$(mktemp)
  go test -tags native "${kind[@]}" -timeout 20m -v ./e2e/faults -full >"$out" 2>&1 &
  every=$!
  go test -tags native "${kind[@]}" -count 1 -timeout 20m ./e2e -run KilledAnd || status=1
  wait $every || status=1
  cat "$out"
  rm "$out"
  return $status
}
page() { go test -tags native "${kind[@]}" -count 1 ./e2e/page -need-browser; }
prometheus() { go test -tags native "${kind[@]}" -count 1 ./e2e/prometheus -need-prometheus; }
pythons() { if [ -n "${TORCH:-}" ]; then scripts/deps.sh python; else scripts/deps.sh torch python pytest; fi; }
python() {
  pythons && make --no-print-directory python TESTS=ON && scripts/torch.sh test
}
fuzz() { scripts/fuzz.sh "$seconds"; }

work=$(mktemp -d)
touch "$work/failed" "$work/beside"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT

# run PART: what it prints, then whether it held. What of it failed is noted for the end.
run() {
  local from=$SECONDS log=$work/$1
  printf '\n== test %s\n' "$1"
  if "$1" 2>&1 | tee "$log"; then
    printf '== test %s: ok, %d s\n' "$1" $((SECONDS - from))
    return
  fi
  printf '== test %s: FAILED after %d s\n' "$1" $((SECONDS - from))
  printf '%s\n%s\n' "$1" "$(sed -nE 's/^ *(--- FAIL: [^/]*|FAIL\t.*|panic: .*|[ \t]*[0-9]+ - .*\(.*\))$/    \1/p' "$log" |
    head -30)" >>"$work/failed"
  return 1
}

if [[ ! "${parts[*]}" =~ ^(portable|fuzz|simulate)$ ]] && ! run built; then
  for part in "${parts[@]}" "${beside[@]}"; do
    [ "$part" = portable ] || printf '%s (needs what was not built)\n' "$part" >>"$work/failed"
  done
  [[ " ${parts[*]} " == *" portable "* ]] && parts=(portable) || parts=()
  beside=()
fi
if [ ${#beside[@]} -gt 0 ]; then
  [[ " ${beside[*]} " != *" python "* ]] || pythons # which may ask for a password
  set -m # a group of its own, that ends with this script
  (for part in "${beside[@]}"; do run "$part"; done) >"$work/beside" 2>&1 </dev/null &
  set +m
  trap 'kill -- -$! 2>/dev/null && cat "$work/beside"; rm -rf "$work"' EXIT
fi
for part in "${parts[@]}"; do run "$part"; done
wait
cat "$work/beside"

if [ -s "$work/failed" ]; then
  printf '\n== test: FAILED after %d s:\n' "$SECONDS" >&2
  sed 's/^/  /' "$work/failed" >&2
  exit 1
fi
printf '\n== test: all ok after %d s: %s\n' "$SECONDS" "${parts[*]} ${beside[*]}"
