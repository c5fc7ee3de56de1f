package trainer

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

func boundedJob(name string, trainers, lanes, ahead int) *schema.Job {
	job := toyJob(name, trainers, lanes, schema.ApplyUpdate)
	job.Consistency, job.Ahead = schema.ConsistencyBounded, ahead
	return job
}

// sight is which versions a lane of a batch was computed on.
type sight struct {
	dense schema.Version
	rows  []schema.Version // by shard
}

// sights are those of all lanes of a job, as its trainers note them.
type sights struct {
	mu sync.Mutex
	of map[string]sight
}

func sightOf(b schema.Batch, l lane.Lane) string { return fmt.Sprint(b, "/", l) }

// note is called when a trainer begins a lane.
func (s *sights) note(session *Session, b schema.Batch, l lane.Lane) {
	seen := sight{dense: session.Version(), rows: make([]schema.Version, session.Shards())}
	for i := range session.lookups.requests {
		r := &session.lookups.requests[i]
		seen.rows[r.shard] = b - r.behind
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[sightOf(b, l)] = seen
}

// clone is the oracle as it is now.
func (o *oracle) clone() *oracle {
	c := *o
	c.params, c.tables = nil, nil
	for _, p := range o.params {
		c.params = append(c.params, slices.Clone(p))
	}
	for _, table := range o.tables {
		rows := make([][]float32, len(table.rows))
		for i, row := range table.rows {
			rows[i] = slices.Clone(row)
		}
		c.tables = append(c.tables, oracleTable{rows: rows})
	}
	return &c
}

// replay trains like step, but computes each lane on the versions that were seen.
func (o *oracle) replay(t *testing.T, w Workload, place *schema.Placement, batches schema.Batch, seen *sights) {
	t.Helper()
	var versions []*oracle
	var at schema.Batch
	o.sees = func(l lane.Lane) *oracle {
		s, ok := seen.of[sightOf(at, l)]
		if !ok {
			return versions[at] // a lane without samples
		}
		view := versions[s.dense].clone()
		for table := range view.tables {
			for key := range view.tables[table].rows {
				view.tables[table].rows[key] = versions[s.rows[place.OwnerOfKey(schema.Table(table),
					uint64(key))]].tables[table].rows[key]
			}
		}
		return view
	}
	for at = range batches {
		versions = append(versions, o.clone())
		o.step(t, w, at)
	}
}

// However far trainers run ahead, what they compute is determined by the versions that they computed on: an oracle that
// is told these gives the same bits. One trainer is held back, so that the other is known to run ahead as far as it
// may.
func TestBoundedAgainstOracle(t *testing.T) {
	const lanes, batches = 5, 9
	for _, c := range []struct{ trainers, shards, ahead int }{{1, 1, 2}, {2, 1, 1}, {2, 2, 3}, {3, 2, 2}} {
		t.Run(fmt.Sprintf("%d trainers/%d shards/%d ahead", c.trainers, c.shards, c.ahead), func(t *testing.T) {
			t.Parallel()
			server := startServer(t, c.shards)
			job := boundedJob("bounded", c.trainers, lanes, c.ahead)
			seen := runAhead(t, testConfig(t, server), job, batches)
			o := newOracle(t, job)
			o.replay(t, newToy(t, job), schema.NewPlacement(job, c.shards), batches, seen.sights)
			for i, got := range seen.digests {
				if want := o.digest(t); got != want {
					t.Errorf("trainer %d: weights %x, want %x", i, got[:6], want[:6])
				}
			}
			if c.trainers > 1 && seen.behind == 0 {
				t.Error("nobody ran ahead")
			}
		})
	}
}

// aheadRun is what a bounded job did.
type aheadRun struct {
	sights  *sights
	digests [][32]byte
	behind  uint64
}

// runAhead runs a bounded job, whose last trainer begins batch 0 when the others are as far ahead as they may be.
func runAhead(t *testing.T, config Config, job *schema.Job, batches schema.Batch) aheadRun {
	t.Helper()
	sessions := joinAll(t, config, job)
	out := aheadRun{sights: &sights{of: map[string]sight{}}, digests: make([][32]byte, len(sessions))}
	ahead := schema.Batch(job.Ahead)
	var far sync.WaitGroup
	far.Add(len(sessions) - 1)
	var all sync.WaitGroup
	for i, s := range sessions {
		w := newToy(t, job)
		last := i == len(sessions)-1
		var once sync.Once
		w.ask = func(b schema.Batch) {
			if !last && b == ahead+1 {
				once.Do(far.Done)
			}
		}
		w.enter = func(b schema.Batch, l lane.Lane) {
			if b > s.Version()+ahead {
				t.Errorf("trainer %d computes batch %d while version %d is complete", i, b, s.Version())
			}
			if last {
				once.Do(far.Wait)
			}
			out.sights.note(s, b, l)
		}
		all.Go(func() {
			if err := s.Run(testContext(t), w, uint64(batches), nil); err != nil {
				t.Errorf("trainer %d: %v", i, err)
				return
			}
			if s.Version() != batches {
				t.Errorf("trainer %d is at version %d after %d batches", i, s.Version(), batches)
			}
			var err error
			if out.digests[i], err = s.Digest(testContext(t)); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	all.Wait()
	for i, s := range sessions {
		if i < len(sessions)-1 {
			out.behind += s.Stats().Behind
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	return out
}

func asyncJob(name string, trainers, lanes int) *schema.Job {
	job := toyJob(name, trainers, lanes, schema.ApplyUpdate)
	job.Consistency = schema.ConsistencyAsync
	return job
}

// In async everybody goes at its own pace: a trainer that is held in its first batch holds up nobody, and what it sends
// later counts as well.
func TestAsyncWaitsForNobody(t *testing.T) {
	server := startServer(t, 2)
	job := asyncJob("async", 3, 5)
	sessions := joinAll(t, testConfig(t, server), job)
	release := make(chan struct{})
	var fast, all sync.WaitGroup
	for i, s := range sessions {
		w := newToy(t, job)
		run := func() {
			if err := s.Run(testContext(t), w, 12, nil); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
			if s.Version() != 12 {
				t.Errorf("trainer %d has finished %d batches", i, s.Version())
			}
		}
		if i == 2 {
			w.enter = func(schema.Batch, lane.Lane) { <-release }
			all.Go(run)
			continue
		}
		fast.Go(run)
	}
	fast.Wait()
	close(release)
	all.Wait()
	digests := map[[32]byte]bool{}
	for _, s := range sessions {
		d, err := s.tablesDigest(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		digests[d] = true
	}
	if len(digests) != 1 {
		t.Errorf("%d different tables are seen when all is done", len(digests))
	}
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// tablesDigest sums up all rows as this trainer sees them.
func (s *Session) tablesDigest(ctx context.Context) (sum [32]byte, err error) {
	job := *s.job
	job.Parameters = nil
	d := schema.NewWeightsDigest(&job)
	for at, ok := d.Next(); ok; at, ok = d.Next() {
		if err := s.Table(ctx, schema.Table(at.Index), d.Rows); err != nil {
			return sum, err
		}
	}
	return d.Sum()
}

// Every mode learns: with the same gradients, computed on somewhat older weights, the loss falls to where sync takes
// it.
func TestEveryModeLearns(t *testing.T) {
	const batches = 60
	for _, mode := range []struct {
		name  string
		ahead int
	}{{schema.ConsistencySync, 0}, {schema.ConsistencyBounded, 2}, {schema.ConsistencyAsync, 0}} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t, 2)
			job := toyJob("learns", 2, 4, schema.ApplyUpdate)
			job.Consistency, job.Ahead = mode.name, mode.ahead
			job.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.3}
			sessions := joinAll(t, testConfig(t, server), job)
			losses := make([][]float64, len(sessions))
			var all sync.WaitGroup
			for i, s := range sessions {
				w := newToy(t, job)
				w.same = true
				all.Go(func() {
					err := s.Run(testContext(t), w, batches, func(p Progress) {
						if p.Samples > 0 {
							losses[i] = append(losses[i], p.Loss)
						}
					})
					if err != nil {
						t.Errorf("trainer %d: %v", i, err)
					}
				})
			}
			all.Wait()
			for i, l := range losses {
				// Where nobody waits, one may have learnt for both before the other begins: so against the weights that all begin
				// with.
				first, count := lane.Share(i, job.Trainers, job.Lanes)
				w := newToy(t, job)
				w.same = true
				begun, samples := 0.0, 0
				for at := first; int(at) < int(first)+count; at++ {
					_, sum, n := newOracle(t, job).lane(t, w, 0, at)
					begun, samples = begun+sum, samples+n
				}
				if n := len(l); n < 10 || !(mean(l[n-5:]) < begun/float64(samples)/2) {
					t.Errorf("trainer %d: losses %.3f, with the weights of the beginning %.3f", i, l, begun/float64(samples))
				}
			}
			for _, s := range sessions {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	if len(values) == 0 {
		return math.NaN()
	}
	return sum / float64(len(values))
}
