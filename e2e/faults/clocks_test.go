package faults

import (
	"context"
	"fmt"
	"testing"

	"gradbus/fabric/chaos"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

// part is what some lanes contribute to a table, batch by batch, where a shard applies it at once: all lanes, or in
// async those of one trainer.
type part struct {
	first lane.Lane
	count int
	rows  map[uint64][]entry // by key, batches ascending
}

// entry is what a part has made of a row by the end of a batch.
type entry struct {
	batch uint64
	row   [tableDim]float32
}

func newPart(l *ledger, first lane.Lane, count int, batches uint64) *part {
	p := &part{first: first, count: count, rows: map[uint64][]entry{}}
	for b := range batches {
		weight := float32(count * samples(b))
		for of := first; of < first+lane.Lane(count); of++ {
			done := map[uint64]bool{}
			for _, key := range keys(b, of) {
				if done[key] {
					continue
				}
				done[key] = true
				e := p.of(key, b)
				for c := range e.row {
					e.row[c] -= l.rowGrad(b, of, key, c) / weight
				}
			}
		}
	}
	return p
}

// of is the entry of a batch, which begins with what the row was.
func (p *part) of(key, b uint64) *entry {
	all := p.rows[key]
	if n := len(all); n == 0 || all[n-1].batch != b {
		all = append(all, entry{b, p.row(key, b)})
		p.rows[key] = all
	}
	return &all[len(all)-1]
}

// row is what the batches before one have made of a row.
func (p *part) row(key, before uint64) (row [tableDim]float32) {
	for _, e := range p.rows[key] {
		if e.batch < before {
			row = e.row
		}
	}
	return row
}

// loose is a ledger of a job whose trainers need not see one version: every row that a lane gets must be that of a
// version which the job's clock allows.
type loose struct {
	*ledger
	session *trainer.Session
	parts   []*part
	batches uint64
}

func newLoose(l *ledger, s *trainer.Session, batches uint64) *loose {
	w := &loose{ledger: l, session: s, batches: batches}
	n := 1
	if asyncTables(l.job) {
		n = l.job.Trainers
	}
	for i := range n {
		w.parts = append(w.parts, newPart(l, lane.Lane(i*lanes/n), lanes/n, batches))
	}
	return w
}

func asyncTables(j *schema.Job) bool {
	return j.Consistency == schema.ConsistencyAsync || j.TableConsistency == schema.ConsistencyAsync
}

func (l *loose) Lane(step *trainer.LaneStep) (float64, error) {
	b, version := uint64(step.Batch), uint64(l.session.Version())
	if version+uint64(l.job.Ahead) < b || version > b {
		return 0, fmt.Errorf("batch %d is computed on version %d, and may be %d behind", b, version, l.job.Ahead)
	}
	if l.job.Consistency != schema.ConsistencyAsync {
		l.advance(version)
		if err := l.check(step.Param); err != nil {
			return 0, err
		}
	}
	for i := len(l.job.Parameters) - 1; i >= 0; i-- {
		grad := step.Grad(l.job.Parameters[i].Name)
		l.stretches(i, b, step.Lane, len(grad), func(at int, values []float32) { copy(grad[at:], values) })
		step.Done(l.job.Parameters[i].Name)
	}
	rows, ids, grads := step.Rows(0), step.IDs(0), []float32(nil)
	seen := map[uint64]bool{}
	for i, key := range keys(b, step.Lane) {
		row := rows[int(ids[i])*tableDim:][:tableDim]
		if !l.possible(key, step.Lane, b, row) {
			return 0, fmt.Errorf("batch %d: row %d is %v, which no version is that the clock allows", b, key, row)
		}
		l.checked += tableDim
		for c := range tableDim {
			g := float32(0) // for a repetition of the key
			if !seen[key] {
				g = l.rowGrad(b, step.Lane, key, c)
			}
			grads = append(grads, g)
		}
		seen[key] = true
	}
	step.AddRowGrad(0, ids, grads)
	return 0, nil
}

// possible reports whether a row can be what a lane sees in a batch. Of its own part it sees every batch before, but
// for as many as its trainer may be ahead; of others any number.
func (l *loose) possible(key uint64, of lane.Lane, b uint64, row []float32) bool {
	own, other := l.parts[0], (*part)(nil)
	for _, p := range l.parts {
		if of >= p.first && of < p.first+lane.Lane(p.count) {
			own = p
		} else {
			other = p
		}
	}
	for n := b - min(b, uint64(l.job.Ahead)); n <= b; n++ {
		mine := own.row(key, n)
		if other == nil && difference(row, mine[:]) < 0 {
			return true
		}
		for theirs := uint64(0); other != nil && theirs <= l.batches; theirs++ {
			sum := other.row(key, theirs)
			for c := range sum {
				sum[c] += mine[c]
			}
			if difference(row, sum[:]) < 0 {
				return true
			}
		}
	}
	return false
}

// checkTable compares the whole table with what all parts have made of it.
func (l *loose) checkTable(ctx context.Context) error {
	return l.session.Table(ctx, 0, func(_ schema.Partition, keys []uint64, values []float32) error {
		for i, key := range keys {
			var want [tableDim]float32
			for _, p := range l.parts {
				for c, v := range p.row(key, l.batches) {
					want[c] += v
				}
			}
			if row := values[i*tableDim:][:tableDim]; difference(row, want[:]) >= 0 {
				return fmt.Errorf("in the end row %d is %v, and the books say %v", key, row, want)
			}
		}
		return nil
	})
}

// Lookups, rows, contributions and results are lost, repeated, late and out of order in jobs whose trainers see
// different versions, too: each gradient counts once, and what a lane sees is of a version that the clock allows. A
// trainer sees its own updates.
func TestClocks(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*schema.Job)
	}{
		{"bounded", func(j *schema.Job) { j.Consistency, j.Ahead = schema.ConsistencyBounded, 2 }},
		{"async", func(j *schema.Job) { j.Consistency = schema.ConsistencyAsync }},
		{"async tables", func(j *schema.Job) {
			j.Apply, j.Reduce, j.TableConsistency = schema.ApplyMean, schema.ReduceTrainers, schema.ConsistencyAsync
		}},
	} {
		for name, rules := range map[string][]chaos.Rule{"every 5": everyFault(0.05), "lookups 40": lookupFaults(0.4)} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				p := small("clock")
				p.change = c.change
				r := newRig(t, p)
				r.proxy.SetRules(rules...)
				ctx, batches := guarded(t), volume(10, 100)
				books := make([]*loose, len(r.sessions))
				r.together(func(i int) error {
					books[i] = newLoose(r.books[i], r.sessions[i], batches)
					err := r.sessions[i].Run(ctx, books[i], batches, nil)
					if err != nil {
						_ = r.sessions[i].Abort(err)
					}
					return err
				})
				if r.job.Consistency != schema.ConsistencyAsync {
					r.together(func(i int) error {
						books[i].advance(batches)
						return books[i].check(r.sessions[i].Param)
					})
				}
				if err := books[0].checkTable(ctx); err != nil {
					t.Error(err)
				}
				r.proxy.SetRules()
				if r.job.Reduce != schema.ReduceTrainers { // whose dense frames pass by the proxy
					r.balance()
				}
				r.report()
				harmed := r.proxy.Counts(chaos.ToServer, "").Harmed() + r.proxy.Counts(chaos.FromServer, "").Harmed()
				if harmed == 0 {
					t.Error("no message was harmed")
				}
			})
		}
	}
}
