package exchange

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

// sessionTrainer is a trainer as users have them: a Session that runs a workload, which copies gradients that are there
// already.
type sessionTrainer struct {
	spec    *spec
	backend cuda.Backend
	session *trainer.Session
	work    *gradients
	count   atomic.Uint64
	again   int // frames and requests sent again by the end of the last run
}

func newTrainer(s *spec) (*sessionTrainer, error) {
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		return nil, err
	}
	return &sessionTrainer{spec: s, backend: backend, work: newGradients(s)}, nil
}

func (t *sessionTrainer) order(ctx context.Context, o order) (answer, error) {
	switch o.Op {
	case opConnect:
		var err error
		t.session, err = trainer.Join(ctx, trainer.Config{Server: o.URL, Backend: t.backend,
			Member: schema.TrainerMember(t.spec.Index), WindowBytes: t.spec.WindowBytes}, t.spec.Job)
		return answer{}, err
	case opRun:
		r, err := t.run(ctx, o.Rounds)
		return answer{Ran: r}, err
	}
	return answer{}, errors.New("unknown order")
}

func (t *sessionTrainer) run(ctx context.Context, rounds int) (*ran, error) {
	times := make([]float64, 0, rounds)
	t.work.checked = 0
	begin := time.Now()
	err := t.session.Run(ctx, t.work, uint64(rounds), func(p trainer.Progress) {
		times = append(times, p.BatchTime.Seconds())
		t.count.Add(uint64(t.work.bytes))
	})
	took := time.Since(begin).Seconds()
	if err != nil {
		return nil, err
	}
	if err := t.work.check(t.session.Version(), true, t.session.Param); err != nil {
		return nil, err
	}
	r := summary(times)
	stats := t.session.Stats()
	again := int(stats.Resent + stats.Pulls)
	r.Seconds, r.Checked, r.Again, t.again = took, t.work.checked, again-t.again, again
	return r, nil
}

func (t *sessionTrainer) bytes() uint64 { return t.count.Load() }

func (t *sessionTrainer) close() {
	if t.session != nil {
		_ = t.session.Close() // the server may be gone already
	}
	_ = t.backend.Close() // nothing is left to be lost
}

// gradients is a workload whose gradients are known beforehand: a pattern, of one sign in even batches and of the other
// in odd ones, so that parameters go back and forth between zero and its mean; but the first element of every parameter
// has gradient one in every batch, so that it counts them. Parameters are compared element by element after the first
// batch and at the end of a run, and at their first two elements in every batch.
type gradients struct {
	names   []string // backwards, as the backward pass ends
	values  [2][][]float32
	means   [][]float32 // after an odd number of batches
	bytes   int
	checked int
}

func newGradients(s *spec) *gradients {
	g := &gradients{}
	base := 0
	for i := len(s.Job.Parameters) - 1; i >= 0; i-- {
		p := s.Job.Parameters[i]
		n := p.Elements()
		up, down, after := make([]float32, n), make([]float32, n), make([]float32, n)
		for j := range n {
			up[j], after[j] = pattern(s.Index, base+j), -mean(s.Feeders, base+j)
			down[j] = -up[j]
		}
		up[0], down[0] = 1, 1
		g.names, g.means = append(g.names, p.Name), append(g.means, after)
		g.values[0], g.values[1] = append(g.values[0], up), append(g.values[1], down)
		base += n
	}
	g.bytes = 4 * base
	return g
}

// Keys implements trainer.Workload.
func (g *gradients) Keys(_ schema.Batch, _ lane.Lane, keys [][]uint64) (int, [][]uint64) {
	return 1, keys
}

// Lane implements trainer.Workload.
func (g *gradients) Lane(step *trainer.LaneStep) (float64, error) {
	if err := g.check(schema.Version(step.Batch), step.Batch == 1, step.Param); err != nil {
		return 0, err
	}
	for i, name := range g.names {
		copy(step.Grad(name), g.values[step.Batch%2][i])
		step.Done(name)
	}
	return 0, nil
}

// check compares the parameters of a version with what they must be.
func (g *gradients) check(version schema.Version, whole bool, param func(string) []float32) error {
	for i, name := range g.names {
		got := param(name)
		if !whole {
			got = got[:min(2, len(got))]
		}
		for j, x := range got {
			want := float32(0)
			switch {
			case j == 0:
				want = -float32(version)
			case version%2 == 1:
				want = g.means[i][j]
			}
			if x != want {
				return fmt.Errorf("version %d: parameter %s element %d is %v: want %v", version, name, j, x, want)
			}
		}
		g.checked += len(got)
	}
	return nil
}
