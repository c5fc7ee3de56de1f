package faults

import (
	"context"
	"fmt"
	"math"
	"slices"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

const (
	lanes       = 4
	tableDim    = 12
	tableRows   = 3000
	keysOfALane = 60
	// patternLen is a prime, so that values at equal places of different chunks differ.
	patternLen = 8191
)

// ledger is a workload whose outcome is known without training: element i of lane l's gradient in batch b is a small
// integer that follows from (b, l, i). With learning rate 1 and weights that are powers of two, every parameter is at
// any time a multiple of 1/16 below 2^20, so float32 holds it and every sum on the way exactly, in whatever order it is
// taken.
type ledger struct {
	job     *schema.Job
	pattern []float32   // patternLen values, twice, so that every stretch of patternLen is contiguous
	version uint64      // batches that want includes
	want    [][]float32 // parameters at version
	rows    [][]float32 // of the table by key at version; nil where a row was never touched
	checked uint64      // values that were compared
}

func newLedger(job *schema.Job) *ledger {
	l := &ledger{job: job, pattern: make([]float32, 2*patternLen), rows: make([][]float32, tableRows)}
	for i := range l.pattern {
		l.pattern[i] = float32(int(mix(uint64(i%patternLen))%17) - 8)
	}
	for _, p := range job.Parameters {
		l.want = append(l.want, make([]float32, p.Elements()))
	}
	return l
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// stretches calls do for each part of a vector of n values with the gradients of its elements.
func (l *ledger) stretches(param int, b uint64, of lane.Lane, n int, do func(at int, values []float32)) {
	from := int(mix(b<<24|uint64(of)<<16|uint64(param)) % patternLen)
	for at := 0; at < n; at += patternLen {
		m := min(patternLen, n-at)
		do(at, l.pattern[from:from+m])
	}
}

func samples(b uint64) int { return 2 << (b % 2) }

// keys are those of a lane in a batch, in no order and with repetitions.
func keys(b uint64, of lane.Lane) []uint64 {
	all := make([]uint64, keysOfALane)
	for i := range all {
		all[i] = mix(b<<24|uint64(of)<<16|uint64(i)) % tableRows
	}
	return all
}

// rowGrad is the gradient of one value of a row.
func (l *ledger) rowGrad(b uint64, of lane.Lane, key uint64, column int) float32 {
	return l.pattern[mix(b<<32|uint64(of)<<24|key)%patternLen+uint64(column)]
}

func (l *ledger) Keys(b schema.Batch, of lane.Lane, all [][]uint64) (int, [][]uint64) {
	if len(all) > 0 {
		all[0] = append(all[0], keys(uint64(b), of)...)
	}
	return samples(uint64(b)), all
}

func (l *ledger) Lane(step *trainer.LaneStep) (float64, error) {
	b := uint64(step.Batch)
	if l.version < b || b == 0 && step.Lane == 0 {
		l.advance(b)
		if err := l.check(step.Param); err != nil {
			return 0, err
		}
	}
	for i := len(l.job.Parameters) - 1; i >= 0; i-- {
		name := l.job.Parameters[i].Name
		grad := step.Grad(name)
		l.stretches(i, b, step.Lane, len(grad), func(at int, values []float32) { copy(grad[at:], values) })
		step.Done(name)
	}
	if len(l.job.Tables) > 0 {
		return 0, l.lookUp(step)
	}
	return 0, nil
}

// lookUp checks the rows of a lane's keys and gives their gradients.
func (l *ledger) lookUp(step *trainer.LaneStep) error {
	b, rows, ids := uint64(step.Batch), step.Rows(0), step.IDs(0)
	byID := map[int64]uint64{}
	for i, key := range keys(b, step.Lane) {
		id := ids[i]
		byID[id] = key
		if err := l.checkRow(key, rows[int(id)*tableDim:(int(id)+1)*tableDim]); err != nil {
			return err
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	grads := make([]float32, 0, len(ids)*tableDim)
	for _, id := range ids {
		for c := range tableDim {
			grads = append(grads, l.rowGrad(b, step.Lane, byID[id], c))
		}
	}
	step.RowGrad(0, ids, grads)
	return nil
}

// advance brings the books to version b.
func (l *ledger) advance(b uint64) {
	for ; l.version < b; l.version++ {
		weight := float32(lanes * samples(l.version))
		for i, want := range l.want {
			for of := range lane.Lane(lanes) {
				l.stretches(i, l.version, of, len(want), func(at int, values []float32) {
					for j, v := range values {
						want[at+j] -= v / weight
					}
				})
			}
		}
		if len(l.job.Tables) > 0 {
			l.advanceRows(weight)
		}
	}
}

func (l *ledger) advanceRows(weight float32) {
	for of := range lane.Lane(lanes) {
		touched := keys(l.version, of)
		slices.Sort(touched)
		for _, key := range slices.Compact(touched) {
			if l.rows[key] == nil {
				l.rows[key] = make([]float32, tableDim)
			}
			for c := range tableDim {
				l.rows[key][c] -= l.rowGrad(l.version, of, key, c) / weight
			}
		}
	}
}

// check compares all parameters with the books, bit by bit.
func (l *ledger) check(param func(string) []float32) error {
	for i, p := range l.job.Parameters {
		if at := difference(param(p.Name), l.want[i]); at >= 0 {
			return fmt.Errorf("version %d: element %d of %s is %v, and the books say %v", l.version, at, p.Name,
				param(p.Name)[at], l.want[i][at])
		}
		l.checked += uint64(p.Elements())
	}
	return nil
}

func (l *ledger) checkRow(key uint64, row []float32) error {
	want := l.rows[key]
	if want == nil {
		want = make([]float32, tableDim)
	}
	if at := difference(row, want); at >= 0 {
		return fmt.Errorf("version %d: column %d of row %d is %v, and the books say %v", l.version, at, key,
			row[at], want[at])
	}
	l.checked += tableDim
	return nil
}

// checkEnd compares everything with the books after a run, the whole table among it, which is pulled piece by piece.
func (l *ledger) checkEnd(ctx context.Context, s *trainer.Session) error {
	l.advance(uint64(s.Version()))
	if err := l.check(s.Param); err != nil || len(l.job.Tables) == 0 {
		return err
	}
	rows := 0
	err := s.Table(ctx, 0, func(_ schema.Partition, keys []uint64, values []float32) error {
		for i, key := range keys {
			if err := l.checkRow(key, values[i*tableDim:(i+1)*tableDim]); err != nil {
				return err
			}
		}
		rows += len(keys)
		return nil
	})
	if err == nil && rows != tableRows {
		err = fmt.Errorf("a scan gave %d rows of %d", rows, tableRows)
	}
	return err
}

// difference is the first index at which two vectors are not the same bits, -1 where they are.
func difference(a, b []float32) int {
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	for i, x := range a {
		if math.Float32bits(x) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}
