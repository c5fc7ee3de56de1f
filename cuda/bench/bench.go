// Package bench measures the kernels of a backend: how long an operation takes, how many bytes it must move, and what
// share that is of the rate at which the same threads stream memory.
//
// It knows package cuda, ids and byte counts. It must not know flags or where its figures are written. The bytes of an
// operation are counted by formula (bytes.go), each distinct row once, so that a share of one is what no implementation
// can beat while the data come from memory. A share above one means that they came from a cache.
//
// Every measurement is of one synchronous call on memory that was written before, on huge pages where the backend gives
// them; on a GPU of calls queued on a stream, on device memory. Calls go round through several sets of ids and terms.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"gradbus/cuda"
)

// Config of Run.
type Config struct {
	Backend cuda.Backend
	// Quick takes small sizes, a short streaming measurement and few repetitions: to see that everything runs.
	Quick bool
	// Ops are the operations to measure; empty is all of them (see Ops).
	Ops []string
	// Progress gets a line for each operation, and what was left out and why: what the backend lacks, or has no memory
	// for.
	Progress io.Writer
}

// Result is one measurement. Its JSON names are part of the interface of `psbench kernels --json`: fields may be added,
// none changes its meaning.
type Result struct {
	Op      string  `json:"op"`
	Backend string  `json:"backend"`
	ISA     string  `json:"isa"`
	Threads int     `json:"threads"`
	Dim     int     `json:"dim"` // 0 where there are no rows
	Seconds float64 `json:"seconds"`
	// Runs is how many times were measured; Seconds is their median.
	Runs  int   `json:"runs"`
	Bytes int64 `json:"bytes"` // that the operation must move: each distinct row once
	// GBPerSecond is Bytes/Seconds/1e9; ShareOfStream is that over the best streaming rate of the same run.
	GBPerSecond   float64 `json:"gb_per_second"`
	ShareOfStream float64 `json:"share_of_stream"`
	DType         string  `json:"dtype"`          // of rows or values
	Rows          int     `json:"rows,omitempty"` // of the table
	Bags          int     `json:"bags,omitempty"`
	Length        int     `json:"length,omitempty"` // of a bag
	N             int     `json:"n,omitempty"`      // ids, keys, or values of a dense tensor
	Terms         int     `json:"terms,omitempty"`
	IDs           string  `json:"ids,omitempty"`      // "uniform", "zipf" (exponent 1.05) or "ascending"
	Distinct      int     `json:"distinct,omitempty"` // ids or keys
	Quick         bool    `json:"quick,omitempty"`    // small sizes, figures that mean little
}

// Streaming operations: what the shares refer to.
const (
	opRead = "stream_read"
	opCopy = "stream_copy"
)

// errLeftOut says that a measurement needs more memory than there is.
var errLeftOut = errors.New("too little memory")

// Run measures one operation after the other. The streaming rate is measured first and last, and the better counts.
func Run(ctx context.Context, c Config) ([]Result, error) {
	for _, op := range c.Ops {
		if !slices.Contains(Ops(), op) {
			return nil, fmt.Errorf("unknown operation %q (known: %q)", op, Ops())
		}
	}
	m, err := newMachine(c.Backend)
	if err != nil {
		return nil, err
	}
	l := &lab{machine: m, quick: c.Quick, effort: effort{atLeast: 7, atMost: 1000, time: 400 * time.Millisecond}}
	if c.Quick {
		l.effort = effort{atLeast: 3, atMost: 20, time: 30 * time.Millisecond}
	}
	defer l.close()
	var all []Result
	measure := func(s spec) error {
		r, err := l.measure(s)
		switch {
		case errors.Is(err, errLeftOut), errors.Is(err, cuda.ErrUnsupported):
			fmt.Fprintf(c.Progress, "%s: LEFT OUT: %v\n", s, err)
			return nil
		case err != nil:
			return fmt.Errorf("measure %s: %w", s, err)
		}
		r.Backend, r.ISA, r.Threads, r.Quick = c.Backend.Name(), c.Backend.ISA(), c.Backend.Threads(), c.Quick
		fmt.Fprintf(c.Progress, "%s: %s\n", s, duration(r.Seconds))
		all = append(all, r)
		return ctx.Err()
	}
	var todo []spec
	for _, s := range plan(c.Quick) {
		if len(c.Ops) == 0 || slices.Contains(c.Ops, s.op) {
			todo = append(todo, s)
		}
	}
	// The streams of the end are measurements like the others, listed with the first ones.
	for _, s := range slices.Concat(streams(c.Quick), todo, streams(c.Quick)) {
		if err := measure(s); err != nil {
			return nil, err
		}
	}
	return withShares(all)
}

// withShares relates every rate to the best of the streaming ones, and keeps the better measurement of each of those.
func withShares(all []Result) ([]Result, error) {
	best := map[string]Result{}
	var most float64
	for i := range all {
		r := &all[i]
		r.GBPerSecond = float64(r.Bytes) / r.Seconds / 1e9
		if r.Op == opRead || r.Op == opCopy {
			most = max(most, r.GBPerSecond)
			if old, seen := best[r.Op]; !seen || r.GBPerSecond > old.GBPerSecond {
				best[r.Op] = *r
			}
		}
	}
	if most == 0 {
		return nil, errors.New("no memory to measure the streaming rate")
	}
	var kept []Result
	for _, op := range []string{opRead, opCopy} {
		if r, ok := best[op]; ok {
			kept = append(kept, r)
		}
	}
	kept = append(kept, slices.DeleteFunc(all, func(r Result) bool { return r.Op == opRead || r.Op == opCopy })...)
	for i := range kept {
		kept[i].ShareOfStream = kept[i].GBPerSecond / most
	}
	return kept, nil
}

// effort bounds the repetitions of one measurement: at least so many, then until the time is spent.
type effort struct {
	atLeast, atMost int
	time            time.Duration
}

// median of the times of single repetitions; once measures one.
func (e effort) median(once func() (float64, error)) (seconds float64, runs int, err error) {
	var all []float64
	for spent := 0.0; len(all) < e.atLeast || spent < e.time.Seconds() && len(all) < e.atMost; {
		s, err := once()
		if err != nil {
			return 0, 0, err
		}
		all = append(all, s)
		spent += s
	}
	slices.Sort(all)
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2, n, nil
}
