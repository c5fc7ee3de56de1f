package main

import (
	"fmt"
	"log/slog"

	"gradbus/cuda"
	"gradbus/cuda/health"
	"gradbus/schema"
)

// verifyDefault is one block in how many of a GPU's optimizer steps is done again on the CPU: some 0.1 % of the arithmetic.
const verifyDefault = 1000

// openBackend opens the arithmetic, and beside it what checks it, where it is to be checked.
func (f *flags) openBackend(log *slog.Logger) (backend cuda.Backend, close func(), err error) {
	oneIn := f.verify
	if oneIn < verifyAuto {
		return nil, nil, fmt.Errorf("verify %d: want one block in so many, 0 for none, or leave it out", oneIn)
	}
	backend, err = cuda.Open(cuda.Options{Name: f.server.Backend, ISA: f.server.ISA, Threads: f.server.Threads, Log: log})
	if err != nil {
		return nil, nil, err
	}
	if oneIn == verifyAuto {
		oneIn = 0
		if backend.Name() == "cuda" {
			oneIn = verifyDefault
		}
	}
	if oneIn == 0 {
		return backend, func() { backend.Close() }, nil
	}
	oracleName := "go"
	if backend.Name() == "cuda" {
		oracleName = "cpu"
	}
	oracle, err := cuda.Open(cuda.Options{Name: oracleName})
	if err != nil {
		backend.Close()
		return nil, nil, fmt.Errorf("verify: %w", err)
	}
	checked, err := cuda.Verify(backend, oracle, oneIn)
	if err != nil {
		oracle.Close()
		backend.Close()
		return nil, nil, err
	}
	log.Info("optimizer steps are verified", "one_in", oneIn, "by", oracle.Name())
	return checked, func() { backend.Close(); oracle.Close() }, nil
}

// verifyAuto stands for the default, which depends on the backend.
const verifyAuto = -1

// gpusOf tells of the GPUs, and of the one in use that it is broken once a step came out wrong on it. It is called once a second.
func gpusOf(backend cuda.Backend, m *health.Monitor) func() []schema.GPUPulse {
	checked, ok := backend.(*cuda.Verified)
	if !ok {
		return m.GPUs
	}
	seen := uint64(0)
	return func() []schema.GPUPulse {
		if blocks, n := checked.Checked(); n > seen {
			seen = n
			m.Mismatch("", fmt.Sprintf("%d of the %d optimizer blocks that were computed again", n, blocks))
		}
		return m.GPUs()
	}
}
