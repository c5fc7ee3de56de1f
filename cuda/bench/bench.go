// Package bench measures the kernels of a backend: how long an operation takes, how many bytes it must move, and what
// share that is of the rate at which the same threads stream memory.
//
// It knows package cuda, ids and byte counts. It must not know flags or where its figures are written. The bytes of an
// operation are counted by formula, each distinct row once, so that a share of one is what no implementation
// can beat while the data come from memory. A share above one means that they came from a cache.
//
// Every measurement is of one synchronous call on memory that was written before, on huge pages where the backend gives
// them; on a GPU of calls queued on a stream, on device memory. Calls go round through several sets of ids and terms.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"gradbus/cuda"
	"gradbus/philox"
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
	// Runs is the number of measurements; Seconds is their median.
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

// Kinds of ids.
const (
	idsUniform   = "uniform"
	idsZipf      = "zipf"
	idsAscending = "ascending"
)

// spec is one measurement to make. What is zero does not apply to its operation.
type spec struct {
	op           string
	rows, dim    int
	bags, length int
	n, terms     int
	ids          string
	dtype        cuda.DType
}

func (s spec) String() string {
	text := s.op
	for _, p := range []struct {
		name  string
		value int
	}{{"rows", s.rows}, {"dim", s.dim}, {"bags", s.bags}, {"length", s.length}, {"n", s.n}, {"terms", s.terms}} {
		if p.value > 0 {
			text += fmt.Sprintf(" %s %s", p.name, thousands(p.value))
		}
	}
	if s.ids != "" {
		text += " " + s.ids
	}
	if s.dtype != cuda.Float32 {
		text += " " + s.dtype.String()
	}
	return text
}

// Ops are the names of the operations that Run measures, but for the streams, which it always does.
func Ops() []string {
	var names []string
	for _, s := range plan(true) {
		if !slices.Contains(names, s.op) {
			names = append(names, s.op)
		}
	}
	return names
}

const (
	million = 1000 * 1000
	// 25 MB of float32, as much as data-parallel training sends at a time.
	averageValues = 25 * million / 4
)

// streams are the reference for shares: read is a search for a NaN that does not occur, copy is a copy. Each is of 1
// GiB.
func streams(quick bool) []spec {
	n := 1 << 28
	if quick {
		n = 1 << 24
	}
	return []spec{{op: opRead, n: n}, {op: opCopy, n: n}}
}

// plan lists the measurements, those of one table next to each other, since it is kept from one to the next.
func plan(quick bool) []spec {
	tables, dims, scale := []int{million, 10 * million}, []int{16, 64, 128, 256}, 1
	if quick {
		tables, dims, scale = []int{million / 10}, []int{64}, 20
	}
	var all []spec
	for _, rows := range tables {
		for _, dim := range dims {
			for _, ids := range []string{idsUniform, idsZipf} {
				all = append(all,
					spec{op: "bag_forward", rows: rows, dim: dim, bags: 8192 / scale, length: 20, ids: ids},
					spec{op: "bag_forward", rows: rows, dim: dim, bags: 65536 / scale, length: 1, ids: ids})
			}
		}
	}
	for _, ids := range []string{idsUniform, idsZipf} {
		all = append(all, spec{op: "bag_forward", rows: 5 * million / scale, dim: 128, bags: 2048 / scale,
			length: 150, ids: ids})
	}
	for _, dtype := range []cuda.DType{cuda.Float16, cuda.BFloat16} {
		all = append(all, spec{op: "bag_forward", rows: million / scale, dim: 128, bags: 8192 / scale, length: 20,
			ids: idsUniform, dtype: dtype})
	}
	rows, n := million/scale, 8192*20/scale
	for _, ids := range []string{idsUniform, idsZipf} {
		all = append(all,
			spec{op: "bag_backward", rows: rows, dim: 64, bags: 8192 / scale, length: 20, ids: ids},
			spec{op: "coalesce", rows: rows, dim: 64, n: n, ids: ids},
			spec{op: "coalesce_apply", rows: rows, dim: 64, n: rows, ids: ids})
	}
	all = append(all,
		spec{op: "merge", rows: rows, dim: 64, n: n, terms: 8, ids: idsUniform},
		spec{op: "apply_rows", rows: rows, dim: 64, n: n, ids: idsAscending},
		spec{op: "apply_dense", n: 64 * million / scale},
		spec{op: "average", terms: 8, n: averageValues / scale},
		spec{op: "average_apply", terms: 8, n: averageValues / scale})
	if !quick {
		all = append(all, spec{op: "coalesce_apply", rows: 10 * million, dim: 64, n: million, ids: idsUniform},
			spec{op: "coalesce_apply", rows: 10 * million, dim: 64, n: million, ids: idsZipf})
	}
	return all
}

// The bytes that an operation must move between memory and the processor: every input value once, of a table each
// distinct row once, and every output value once. docs/kernels.md has these formulas as a table. Ids and keys are 8
// bytes.

const idBytes = 8

// rowsBytes is n rows of dim values of so many bytes.
func rowsBytes(n, dim, value int) int64 { return int64(n) * int64(dim) * int64(value) }

// bagForwardBytes: ids, offsets and the distinct rows are read, a row for each bag is written.
func bagForwardBytes(n, distinct, bags, dim, value int) int64 {
	return idBytes*int64(n+bags+1) + rowsBytes(distinct+bags, dim, value)
}

// bagBackwardBytes: ids, offsets and a gradient for each bag are read, distinct ids and their sums written.
func bagBackwardBytes(n, distinct, bags, dim, value int) int64 {
	return idBytes*int64(n+bags+1+distinct) + rowsBytes(distinct+bags, dim, value)
}

// coalesceBytes: keys and rows are read, distinct keys and their sums written. Merge moves as much.
func coalesceBytes(n, distinct, dim, value int) int64 {
	return idBytes*int64(n+distinct) + rowsBytes(n+distinct, dim, value)
}

// applyRowsBytes: index and gradient are read, of the table and of each slot n rows are read and written.
func applyRowsBytes(n, dim, value, slots int) int64 {
	return idBytes*int64(n) + rowsBytes(n, dim, value)*int64(1+2*(1+slots))
}

// coalesceApplyBytes: keys and rows are read, of the table and of each slot the distinct rows are read and written.
func coalesceApplyBytes(n, distinct, dim, value, slots int) int64 {
	return idBytes*int64(n) + rowsBytes(n, dim, value) + rowsBytes(distinct, dim, value)*int64(2*(1+slots))
}

// applyDenseBytes: the gradient is read, parameters and slots are read and written.
func applyDenseBytes(n, value, slots int) int64 { return rowsBytes(n, 1, value) * int64(1+2*(1+slots)) }

// averageBytes: every term is read, the sum is written.
func averageBytes(terms, n, value int) int64 { return rowsBytes(n, terms+1, value) }

// averageApplyBytes: every term is read, parameters and slots are read and written.
func averageApplyBytes(terms, n, value, slots int) int64 {
	return rowsBytes(n, terms+2*(1+slots), value)
}

const (
	seed         = 20
	zipfExponent = 1.05
)

// zipf draws ranks 1..n, rank k with probability in proportion to k^-zipfExponent, by rejection-inversion: a point
// under the curve x^-s is drawn by inverting its integral, and taken for the rank it is nearest to unless it lies above
// that rank's bar, which is seldom.
//
// Source: Hörmann and Derflinger, Rejection-inversion to generate variates from monotone discrete distributions, ACM
// TOMACS 6, 1996.
type zipf struct {
	source       philox.Source
	n            float64
	low, high, s float64 // the integral at 1.5 less 1, and at n+0.5; below s a point needs no second look
}

func newZipf(n int, source philox.Source) *zipf {
	z := &zipf{source: source, n: float64(n)}
	z.low, z.high = integral(1.5)-1, integral(z.n+0.5)
	z.s = 2 - inverse(integral(2.5)-bar(2))
	return z
}

// bar, integral and inverse are x^-s, its integral from 1, and that one's inverse.
func bar(x float64) float64 { return math.Pow(x, -zipfExponent) }
func integral(x float64) float64 {
	return (math.Pow(x, 1-zipfExponent) - 1) / (1 - zipfExponent)
}
func inverse(y float64) float64 { return math.Pow(1+y*(1-zipfExponent), 1/(1-zipfExponent)) }

func (z *zipf) rank() int {
	for {
		u := float64(z.source.Uint64()>>11) * 0x1p-53
		y := z.high + u*(z.low-z.high)
		x := inverse(y)
		k := min(max(math.Floor(x+0.5), 1), z.n)
		if k-x <= z.s || y >= integral(k+0.5)-bar(k) {
			return int(k)
		}
	}
}

// idSource draws ids in [0, rows). It keeps the permutation of its rows, 4 bytes each, for the next draw.
type idSource struct {
	order []int32
}

// draw gives n ids: uniform ones, or Zipf ranks, scattered over the rows by a permutation so that frequent rows are not
// neighbours. The same arguments give the same ids.
func (d *idSource) draw(n, rows int, kind string, stream uint64) []int64 {
	ids := make([]int64, n)
	source := philox.New(seed, "bench ids", uint64(n), uint64(rows), stream)
	if kind != idsZipf {
		for i := range ids {
			ids[i] = int64(source.Below(uint32(rows)))
		}
		return ids
	}
	if len(d.order) != rows {
		d.order = philox.Permutation(seed, 0, rows)
	}
	z := newZipf(rows, source)
	for i := range ids {
		ids[i] = int64(d.order[z.rank()-1])
	}
	return ids
}

// ascending gives n different ids in [0, rows), ascending and evenly spread, as a gradient that was summed before;
// those of another shift lie between.
func ascending(n, rows int, shift uint64) []int64 {
	ids := make([]int64, n)
	gap := max(int64(rows/n), 1)
	for i := range ids {
		ids[i] = int64(i)*int64(rows)/int64(n) + int64(shift)%gap
	}
	return ids
}

// distinct counts the different ones of ids in [0, rows).
func distinct(ids []int64, rows int) int {
	seen := make([]uint64, (rows+63)/64)
	n := 0
	for _, id := range ids {
		word, bit := id/64, uint64(1)<<(id%64)
		if seen[word]&bit == 0 {
			seen[word] |= bit
			n++
		}
	}
	return n
}

// PrintJSON writes the results as exactly one line.
func PrintJSON(to io.Writer, all []Result) error {
	line, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	_, err = to.Write(append(line, '\n'))
	return err
}

// Print writes the results as a table for people.
func Print(to io.Writer, all []Result) error {
	if len(all) == 0 {
		return nil
	}
	first := all[0]
	if _, err := fmt.Fprintf(to, "backend %s (%s), threads %d; times are medians, bytes count each distinct row once\n",
		first.Backend, first.ISA, first.Threads); err != nil {
		return err
	}
	if first.Quick {
		if _, err := fmt.Fprintln(to, "quick: small sizes and short runs; these figures mean little"); err != nil {
			return err
		}
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "op\trows\tdim\tbags\tlength\tn\tterms\tids\tdistinct\ttype\ttime\tMB\tGB/s\tof stream\t")
	for _, r := range all {
		cells := []string{r.Op}
		for _, n := range []int{r.Rows, r.Dim, r.Bags, r.Length, r.N, r.Terms} {
			cells = append(cells, orDash(n))
		}
		ids := r.IDs
		if ids == "" {
			ids = "-"
		}
		cells = append(cells, ids, orDash(r.Distinct), r.DType, duration(r.Seconds),
			fmt.Sprintf("%.1f", float64(r.Bytes)/1e6), fmt.Sprintf("%.2f", r.GBPerSecond), fmt.Sprintf("%.2f", r.ShareOfStream))
		fmt.Fprintln(w, strings.Join(cells, "\t")+"\t")
	}
	return w.Flush()
}

func orDash(n int) string {
	if n == 0 {
		return "-"
	}
	return thousands(n)
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// duration is a time with its unit, to four digits.
func duration(seconds float64) string {
	switch {
	case seconds >= 1:
		return fmt.Sprintf("%.3f s", seconds)
	case seconds >= 1e-3:
		return fmt.Sprintf("%.3f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.2f us", seconds*1e6)
}
