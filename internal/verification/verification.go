// Package verification is what the commands that compute have in common in having it checked: the flag, and what
// follows from a result that was wrong.
//
// It wires cuda.Verified to a command line and to the health of GPUs, and knows neither jobs nor batches.
package verification

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/spf13/pflag"

	"gradbus/cuda"
	"gradbus/internal/gpu"
	"gradbus/internal/process"
	"gradbus/schema"
)

// Flags are the flags of verification.
type Flags struct {
	OneIn int
}

// Add adds the flag.
func (f *Flags) Add(set *pflag.FlagSet) {
	set.IntVar(&f.OneIn, "verify", cuda.VerifyAuto,
		"`N`: check one block in N by another backend, bit by bit; 0: none; -1: 1000 on a GPU, else none")
}

// Options completes those of a backend. Each process has other blocks checked than its like. wrongBits is when some are
// to be injected.
func (f *Flags) Options(o cuda.Options, wrongBits []time.Duration) cuda.Options {
	h := fnv.New64a()
	h.Write([]byte(process.HostAndID()))
	o.Verify, o.VerifySeed, o.WrongBits = f.OneIn, h.Sum64(), wrongBits
	return o
}

// GPUs tells of the GPUs, and of the one in use that it is broken once a result was wrong on it: one that a processor
// has computed says nothing of a GPU, whichever the process counts as its own. It is called once a second.
func GPUs(b cuda.Backend, m *gpu.Monitor) func() []schema.GPUReport {
	checked, ok := b.(*cuda.Verified)
	if !ok || b.Name() != "cuda" {
		return m.GPUs
	}
	seen := uint64(0)
	return func() []schema.GPUReport {
		if blocks, n := checked.Checked(); n > seen {
			seen = n
			m.Mismatch("", count(blocks, n), checked.Injected())
		}
		return m.GPUs()
	}
}

// Fit returns a function that says why a process must not compute any more: the error of fit, or, for a processor
// without a monitor, that a result was wrong on it. The state of a GPU reports that itself until an operator
// acknowledges it.
func Fit(b cuda.Backend, fit func() error) func() error {
	checked, ok := b.(*cuda.Verified)
	if !ok || b.Name() == "cuda" {
		return fit
	}
	return func() error {
		if blocks, n := checked.Checked(); n > 0 {
			injected := ""
			if checked.Injected() {
				injected = " (Injected.)"
			}
			return fmt.Errorf("this machine computes wrongly: %s gave other bits than another backend. Its memory or processor "+
				"may be broken: "+
				"test it, and start this process again elsewhere.%s", count(blocks, n), injected)
		}
		return fit()
	}
}

func count(blocks, mismatches uint64) string {
	return fmt.Sprintf("%d of the %d optimizer blocks that were computed again", mismatches, blocks)
}
