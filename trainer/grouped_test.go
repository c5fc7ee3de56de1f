package trainer

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// pull is a workload of dense parameters alone: every sample pulls every value towards a number of its own. Lanes have
// one to three samples; some have none.
type pull struct {
	job   *schema.Job
	enter func(b schema.Batch, l lane.Lane) // called when a lane begins; nil for nothing
	spoil func(step *LaneStep, grad []float32)
}

func (w *pull) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	return (int(b) + 2*int(l)) % 4, keys
}

func (w *pull) Lane(step *LaneStep) (float64, error) {
	if w.enter != nil {
		w.enter(step.Batch, step.Lane)
	}
	loss := 0.0
	for i := len(w.job.Parameters) - 1; i >= 0; i-- {
		name := w.job.Parameters[i].Name
		values, grad := step.Param(name), step.Grad(name)
		for j, v := range values {
			grad[j] = 0
			for s := range step.Samples {
				to := float32((int(step.Batch)*7+int(step.Lane)*3+s+j)%11) / 8
				grad[j] += v - to
				loss += float64((v - to) * (v - to))
			}
		}
		if w.spoil != nil {
			w.spoil(step, grad)
		}
		step.Done(name)
	}
	return loss, nil
}

func groupedJob(name string, trainers, lanes, group int) *schema.Job {
	return &schema.Job{
		Name: schema.JobName(name), Workload: "pull", Seed: 5, Trainers: trainers, Lanes: lanes,
		Consistency: schema.ConsistencyGrouped, Group: group, Apply: schema.ApplyUpdate, Policy: schema.PolicyFail,
		ChunkBytes: schema.ChunkBytesMin,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.05, Momentum: 0.9},
		Parameters: []schema.Parameter{
			{Name: "weight", Shape: []int{30, 100}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.5}}, // of three chunks
			{Name: "bias", Shape: []int{30}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.1}},
		},
	}
}

// request is one batch of one trainer, as the trainer saw it.
type request struct {
	contributor int
	batch       schema.Batch   // its own
	seen        schema.Version // that it was computed on
	version     schema.Version // that it took part in
}

// runGrouped runs a grouped job, trainer i for batches[i] batches, and gives their requests and the weights that each
// saw last.
func runGrouped(t *testing.T, config Config, job *schema.Job, batches []uint64, enter func(contributor int,
	b schema.Batch)) (all []request, last [][][]float32) {
	t.Helper()
	sessions := joinAll(t, config, job)
	of, last := make([][]request, len(sessions)), make([][][]float32, len(sessions))
	var running sync.WaitGroup
	for i, s := range sessions {
		w := &pull{job: job}
		if enter != nil {
			w.enter = func(b schema.Batch, _ lane.Lane) { enter(i, b) }
		}
		running.Go(func() {
			seen := schema.Version(0)
			err := s.Run(testContext(t), w, batches[i], func(p Progress) {
				of[i] = append(of[i], request{i, p.Batch, seen, p.Version})
				seen = p.Version
			})
			if err != nil {
				t.Errorf("trainer %d: %v", i, err)
				return
			}
			for _, p := range job.Parameters {
				last[i] = append(last[i], slices.Clone(s.Param(p.Name)))
			}
			if err := s.Close(); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	running.Wait()
	return slices.Concat(of...), last
}

// replayGroups makes the updates again in one process, in the order that the shard has given them, and returns the
// weights of every version.
func replayGroups(t *testing.T, job *schema.Job, all []request) []*oracle {
	t.Helper()
	slices.SortStableFunc(all, func(a, b request) int { return int(int64(a.version) - int64(b.version)) })
	o, w := newOracle(t, job), &pull{job: job}
	versions := []*oracle{o.clone()}
	for at := 0; at < len(all); {
		v := schema.Version(len(versions))
		grads, samples := make([]*laneGrads, job.Lanes), 0
		for ; at < len(all) && all[at].version == v; at++ {
			r := all[at]
			if r.seen >= v {
				t.Fatalf("%+v was computed on a version that it made", r)
			}
			first, count := lane.Share(r.contributor, job.Trainers, job.Lanes)
			for l := first; int(l) < int(first)+count; l++ {
				g, _, n := versions[r.seen].lane(t, w, r.batch, l)
				if n > 0 {
					grads[l], samples = g, samples+n
				}
			}
		}
		if at < len(all) && all[at].version > v+1 {
			t.Fatalf("nobody took part in version %d", v+1)
		}
		if samples > 0 {
			o.applyParams(func(l lane.Lane) *laneGrads { return grads[l] }, float32(samples))
		}
		versions = append(versions, o.clone())
	}
	return versions
}

// Groups of any size: every update is that of one process that sums up the same requests in the same order, bit for
// bit, and whoever took part was answered with exactly that version. Trainers run different numbers of batches, and
// nobody hangs.
func TestGroupedAgainstReplay(t *testing.T) {
	for _, c := range []struct {
		trainers, lanes, group, shards int
		batches                        []uint64
	}{
		{3, 3, 1, 1, []uint64{6, 6, 6}}, {3, 3, 2, 1, []uint64{8, 5, 8}}, {3, 7, 2, 2, []uint64{4, 4, 9}},
		{5, 5, 3, 1, []uint64{4, 7, 3, 6, 5}}, {4, 6, 4, 3, []uint64{5, 5, 5, 7}},
	} {
		t.Run(fmt.Sprintf("%d of %d trainers/%d lanes/%d shards", c.group, c.trainers, c.lanes, c.shards),
			func(t *testing.T) {
				t.Parallel()
				job := groupedJob("grouped", c.trainers, c.lanes, c.group)
				all, last := runGrouped(t, testConfig(t, startServer(t, c.shards)), job, c.batches, nil)
				want := 0
				for _, n := range c.batches {
					want += int(n)
				}
				if len(all) != want {
					t.Fatalf("%d requests were answered, want %d", len(all), want)
				}
				versions := replayGroups(t, job, all)
				newest := make([]schema.Version, c.trainers)
				taking := map[schema.Version]int{}
				for _, r := range all {
					newest[r.contributor] = max(newest[r.contributor], r.version)
					taking[r.version]++
				}
				for v, n := range taking {
					if n > c.group {
						t.Errorf("%d requests made version %d: groups are of %d", n, v, c.group)
					}
				}
				for i := range last {
					for p := range job.Parameters {
						if !sameBits(last[i][p], versions[newest[i]].params[p]) {
							t.Errorf("trainer %d: parameter %d is not that of version %d", i, p, newest[i])
						}
					}
				}
			})
	}
}

// With groups of all trainers, uneven shares of the lanes and lanes without samples, the weights are those of a single
// process and those of mode sync, bit for bit, after the first step, which momentum does not show in, the second, which
// it does, and more.
func TestGroupedOfAllIsSync(t *testing.T) {
	const trainers, lanes = 3, 5
	server := startServer(t, 2)
	for _, batches := range []uint64{1, 2, 6} {
		job := groupedJob(fmt.Sprintf("all-%d", batches), trainers, lanes, trainers)
		o, w := newOracle(t, job), &pull{job: job}
		without := newOracle(t, job)
		for b := range batches {
			o.step(t, w, schema.Batch(b))
			clear(without.momentum[0])
			without.step(t, w, schema.Batch(b))
		}
		if (batches > 1) == sameBits(o.params[0], without.params[0]) {
			t.Fatalf("after %d steps momentum shows: %v", batches, batches == 1)
		}
		same := *job
		same.Name, same.Consistency, same.Group = job.Name+"-sync", schema.ConsistencySync, 0
		for _, j := range []*schema.Job{job, &same} {
			_, last := runGrouped(t, testConfig(t, server), j, []uint64{batches, batches, batches}, nil)
			for i := range last {
				for p := range last[i] {
					if !sameBits(last[i][p], o.params[p]) {
						t.Errorf("%s: trainer %d: parameter %d differs from that of a single process after %d steps", j.Name,
							i, p, batches)
					}
				}
			}
		}
	}
}

// A grouped job that begins with a model has its bits at once, whatever the size of a group, and is from there on the
// job that drew them.
func TestGroupedStartsFromModel(t *testing.T) {
	const trainers, lanes, batches = 3, 5, 4
	server := startServer(t, 2)
	drawn := groupedJob("drawn", trainers, lanes, trainers)
	o, w := newOracle(t, drawn), &pull{job: drawn}
	m := &Model{job: drawn}
	for _, p := range o.params {
		m.params = append(m.params, slices.Clone(p))
	}
	var err error
	if m.digest, err = m.weigh(); err != nil {
		t.Fatal(err)
	}
	for b := range schema.Batch(batches) {
		o.step(t, w, b)
	}
	for _, size := range []int{1, 2, trainers} {
		for _, start := range []int{1, 3} {
			job := groupedJob(fmt.Sprintf("started-%d-%d", size, start), trainers, lanes, size)
			for i := range job.Parameters {
				job.Parameters[i].Init = schema.Zeros()
			}
			job.Start = &schema.StartModel{Digest: fmt.Sprintf("%x", m.digest), Batches: start}
			with := testConfig(t, server)
			with.From = m
			sessions := joinAll(t, with, job)
			var all sync.WaitGroup
			for i, s := range sessions {
				for p := range m.params {
					if !sameBits(s.Param(job.Parameters[p].Name), m.params[p]) {
						t.Errorf("groups of %d: trainer %d begins with other values of parameter %d", size, i, p)
					}
				}
				all.Go(func() {
					versions := map[schema.Version]bool{}
					err := s.Run(testContext(t), &pull{job: job}, batches, func(p Progress) { versions[p.Version] = true })
					if err != nil {
						t.Errorf("groups of %d: trainer %d: %v", size, i, err)
					}
					if len(versions) != batches || versions[0] {
						t.Errorf("groups of %d: trainer %d: updates %v, want %d of them from 1 on", size, i, versions, batches)
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			for p := range m.params {
				if got := sessions[0].Param(job.Parameters[p].Name); size == trainers && !sameBits(got, o.params[p]) {
					t.Errorf("parameter %d differs from that of a single process after %d steps", p, batches)
				}
			}
		}
	}
}

// Trainers hear what becomes of groups in the order in which it happens: each of their requests before its answer, and
// each group's end before what it made.
func TestGroupEventsComeBeforeAnswers(t *testing.T) {
	const trainers, batches = 3, 5
	job := groupedJob("told", trainers, trainers, 2)
	job.GroupEvents = true
	server := startServer(t, 1)
	heard := make([][]schema.Group, trainers)
	var mu sync.Mutex // guards heard
	var all sync.WaitGroup
	for i := range trainers {
		c := testConfig(t, server)
		c.Member = schema.TrainerMember(i)
		c.OnGroup = func(g schema.Group) {
			mu.Lock()
			defer mu.Unlock()
			heard[i] = append(heard[i], g)
		}
		all.Go(func() {
			s, err := Join(testContext(t), c, job)
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Run(testContext(t), &pull{job: job}, batches, func(p Progress) {
				mu.Lock()
				defer mu.Unlock()
				find := func(is func(g schema.Group) bool) int { return slices.IndexFunc(heard[i], is) }
				parked := find(func(g schema.Group) bool { return g.Member == c.Member && g.Batch == p.Batch })
				closed := find(func(g schema.Group) bool { return g.Closed && g.Update+1 == p.Version })
				if parked < 0 || closed < parked || heard[i][parked].Update+1 != p.Version {
					t.Errorf("trainer %d has update %d and has heard %+v", i, p.Version, heard[i])
				}
			}); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i, events := range heard {
		for k := 1; k < len(events); k++ {
			if events[k].AtNS <= events[k-1].AtNS {
				t.Errorf("trainer %d hears of %d after %d", i, events[k].AtNS, events[k-1].AtNS)
			}
		}
	}
}

// A gradient that is not finite is refused before anything is added up, and fails the round for all with a reason that
// names its place and its trainer.
func TestGroupedFaultEndsTheJobForAll(t *testing.T) {
	t.Parallel()
	server := startServer(t, 1)
	job := groupedJob("fault-grouped", 3, 3, 3)
	sessions := joinAll(t, testConfig(t, server), job)
	errs := make([]error, len(sessions))
	var running, there sync.WaitGroup
	// the others, who have version 3 then: the failure may come on its own way, before the answers that make it
	there.Add(2)
	for i, s := range sessions {
		w := &pull{job: job}
		if i == 1 {
			w.spoil = func(step *LaneStep, grad []float32) {
				if step.Batch == 3 {
					there.Wait()
					grad[5] = float32(math.NaN())
				}
			}
		} else {
			w.enter = func(b schema.Batch, _ lane.Lane) {
				if b == 3 {
					there.Done()
				}
			}
		}
		running.Go(func() {
			errs[i] = s.Run(testContext(t), w, 5, nil)
			if errs[i] != nil {
				_ = s.Abort(errs[i])
			}
		})
	}
	running.Wait()
	checkError(t, errs[1], &Refused{}, "non_finite", "element 5", "NaN")
	for _, i := range []int{0, 2} {
		checkError(t, errs[i], ErrJobFailed, "trainer t1", "non_finite", "element 5")
	}
	if v := sessions[0].Version(); v != 3 {
		t.Errorf("version %d is whole, want 3", v)
	}
}
