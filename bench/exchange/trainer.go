package exchange

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/lane"
	"gradbus/ps"
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

// Gradients are made of small whole numbers, which every wire type holds, so that sums and means of powers of two of
// them are exact.
const (
	patternMax = 255 // of a value
	stampMax   = 128 // stamps run from 0 to below this
)

// pattern is the value at an element of the flat space of a member's gradient, 0 to patternMax.
func pattern(member, element int) float32 {
	return float32((uint32(element)*2654435761 + uint32(member)*40503*65536) >> 24 & patternMax)
}

// stamp tells one batch's gradient from the next one's.
func stamp(b schema.Batch) float32 { return float32(b % stampMax) }

// mean returns the shard's result for the values of all members at an element, each a sum over one sample.
func mean(members, element int) float32 {
	sum := float32(0)
	for m := range members {
		sum += pattern(m, element)
	}
	return sum / float32(members)
}

// layers gives a model whose parameters take the given number of bytes: square layers with a bias as far as they fit,
// and the rest in front. 37,781,504 bytes are an embedding of 1024 by 1024 and eight layers of 1024 by 1024.
func layers(bytes int) []schema.Parameter {
	const side = 1024
	elements := bytes / 4
	var p []schema.Parameter
	count := elements / (side*side + side)
	if rest := elements - count*(side*side+side); rest > 0 {
		p = append(p, schema.Parameter{Name: "front", Shape: []int{rest}, Init: schema.Init{Kind: schema.InitZeros}})
	}
	for i := range count {
		p = append(p, schema.Parameter{Name: fmt.Sprintf("layer%d.weight", i), Shape: []int{side, side},
			Init: schema.Init{Kind: schema.InitZeros}},
			schema.Parameter{Name: fmt.Sprintf("layer%d.bias", i), Shape: []int{side},
				Init: schema.Init{Kind: schema.InitZeros}})
	}
	return p
}

// jobOf is the job of a measure: trainers with a lane each, shards that average.
func jobOf(name string, trainers, bytes, chunkBytes int) *schema.Job {
	return &schema.Job{Name: schema.JobName(name), Workload: "psbench", Seed: 1, Trainers: trainers, Lanes: trainers,
		Consistency: schema.ConsistencySync, Apply: schema.ApplyMean,
		Policy:     schema.PolicyFail,
		ChunkBytes: chunkBytes, Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1}, Parameters: layers(bytes)}
}

// Requests are for rows of this table: two rows of two values are 16 bytes, and so are the keys of two.
const (
	askRows, askDim = 4096, 2
	askKeys         = 2
	askPartitions   = 64
)

// withTable adds the table that requests ask for, and with it a small sparse round to every batch.
func withTable(j *schema.Job) *schema.Job {
	j.Tables = []schema.TableSpec{{Name: "asked", Rows: askRows, Dim: askDim, Partitions: askPartitions,
		Init: schema.Init{Kind: schema.InitZeros}}}
	return j
}

// shard is a parameter server, as ./bin/ps is one.
type shard struct {
	backend cuda.Backend
	server  *ps.Server
}

// serverConfig returns the configuration of a server at any free port.
func serverConfig(shards int) ps.Config {
	c := ps.Default()
	c.Port, c.Shards = 0, shards
	return c
}

func newShard(ctx context.Context, s *spec) (*shard, error) {
	config.PaceScheduler()
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		return nil, err
	}
	server, err := ps.Start(ctx, serverConfig(s.Shards), ps.Options{Backend: backend, LimitHeap: config.HeapLimiter()})
	if err != nil {
		return nil, errors.Join(err, backend.Close())
	}
	return &shard{backend, server}, nil
}

func (s *shard) order(_ context.Context, o order) (answer, error) {
	if o.Op != opListen {
		return answer{}, errors.New("unknown order")
	}
	return answer{URL: s.server.URL()}, nil
}

func (s *shard) bytes() uint64 { return s.server.Stats().Bytes }

func (s *shard) close() {
	s.server.Close()
	_ = s.backend.Close() // nothing is left to be lost
}
