package trainer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// Jobs that go back do so with the trainers that are left, under policy recover, and with one more when that comes. All
// is as one trainer alone trains it, to which nothing happens.
func TestGoBackWithFewer(t *testing.T) {
	testkit.Beside(t)
	for name, change := range map[string]func(*schema.Job){
		"hybrid": func(j *schema.Job) { j.Apply, j.Reduce = schema.ApplyMean, schema.ReduceTrainers },
		"replicated": func(j *schema.Job) {
			j.Apply = schema.ApplyMean
			replicateAll(j)
		},
		"by ids":  func(j *schema.Job) { j.Apply, j.Reduce = schema.ApplyMean, schema.ReduceTrainers },
		"bounded": func(j *schema.Job) { j.Consistency, j.Ahead = schema.ConsistencyBounded, 2 },
		"bounded mean": func(j *schema.Job) {
			j.Consistency, j.Ahead, j.Apply = schema.ConsistencyBounded, 2, schema.ApplyMean
		},
		"exact rows": func(j *schema.Job) {
			j.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.01, Momentum: 0.5, Exact: true}
		},
		"async tables": func(j *schema.Job) {
			j.Apply, j.Reduce, j.TableConsistency = schema.ApplyMean, schema.ReduceTrainers, schema.ConsistencyAsync
		},
		"feedback":    func(j *schema.Job) { j.Wire = schema.Wire{Gradients: schema.GradientsBFloat16, ErrorFeedback: true} },
		"killed both": func(j *schema.Job) { j.Apply, j.Reduce = schema.ApplyMean, schema.ReduceTrainers },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Waits(t, func(t *testing.T) {
				job := givenJob(3, 0)
				change(job)
				job.Policy = schema.PolicyRecover
				goBackWithFewer(t, job, name == "killed both", name == "by ids")
			})
		})
	}
}

// goBackWithFewer has three trainers begin, of which one is lost, with its ps or not, and is missed for a while. They
// ask for their places by ids, or not.
func goBackWithFewer(t *testing.T, job *schema.Job, both, byIDs bool) {
	const batches, dies = 440, 120
	kept := ps.Config{Shards: 2, Deadline: 3 * time.Second, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 10}}
	server := startServerWith(t, kept)
	config := testConfig(t, server)
	var all sync.WaitGroup
	out := make([]*rewinder, job.Trainers+1)
	var once sync.Once
	lost, goesOn := make(chan struct{}), make(chan struct{})
	for i := range out {
		out[i] = &rewinder{config: config, job: job, batches: batches}
		if i == 0 {
			out[i].dies = dies
		}
		if byIDs {
			out[i].config.Member = schema.TrainerMember(i % job.Trainers)
		}
		all.Go(func() {
			if i == job.Trainers {
				select {
				case <-goesOn:
				case <-testContext(t).Done():
					return
				}
			}
			if i == 1 {
				out[i].joined = func(n int) {
					if n == 2 {
						once.Do(func() { time.AfterFunc(2*time.Second, func() { close(goesOn) }) })
					}
				}
			}
			if err := out[i].run(t); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
			if i == 0 {
				close(lost)
			}
		})
	}
	if both {
		<-lost
		server.Close()
		kept.Port = fabrictest.PortOf(t, server.URL())
		startServerWith(t, kept)
	}
	all.Wait()
	alone := givenJob(1, 0)
	alone.Optimizer = job.Optimizer
	quiet := joinAll(t, testConfig(t, startServerWith(t, ps.Config{})), alone)
	want := digestAfter(t, quiet, given{}, batches)
	for i, r := range out[1:] {
		with := []int{3, 2, 3}
		if i == job.Trainers-1 {
			with = []int{3}
		}
		if !slices.Equal(r.with, with) || !slices.IsSorted(r.began) || len(r.began) == 3 && r.began[1] == 0 {
			t.Errorf("trainer %d was one of %v, want %v, and began with versions %v", i+1, r.with, with, r.began)
		}
		if job.TableConsistency != "" || job.Wire.ErrorFeedback { // some bits change
			want = out[1].digest
		}
		if r.digest != want {
			t.Errorf("trainer %d: weights %x, want %x", i+1, r.digest[:6], want[:6])
		}
	}
}

// A ps that is lost after a trainer was, and is started again, knows how many trainers were left, whether a version of
// theirs is durable or none: nobody waits for the other one.
func TestGoBackAfterBoth(t *testing.T) {
	testkit.Beside(t)
	for name, after := range map[string]time.Duration{"with a version": 4 * time.Second, "soon": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { goBackAfterBoth(t, after) }) })
	}
}

// goBackAfterBoth has the ps lost a time after the run with fewer trainers has begun.
func goBackAfterBoth(t *testing.T, after time.Duration) {
	const batches = 400
	kept := ps.Config{Shards: 2, Deadline: 3 * time.Second, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 10}}
	server := startServerWith(t, kept)
	job := givenJob(3, 0)
	job.Apply, job.Reduce, job.Policy = schema.ApplyMean, schema.ReduceTrainers, schema.PolicyRecover
	var all sync.WaitGroup
	out := make([]*rewinder, job.Trainers)
	fewer, again := make(chan struct{}), make(chan time.Time, 2)
	for i := range out {
		out[i] = &rewinder{config: testConfig(t, server), job: job, batches: batches}
		switch i {
		case 0:
			out[i].dies = 100
		case 1:
			out[i].joined = func(int) {
				switch r := out[i]; len(r.began) {
				case 2:
					close(fewer)
				case 3:
					again <- time.Now()
				}
			}
		}
		all.Go(func() {
			if err := out[i].run(t); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	<-fewer
	time.Sleep(after)
	server.Close()
	ended := time.Now()
	kept.Port = fabrictest.PortOf(t, server.URL())
	startServerWith(t, kept)
	all.Wait()
	for i, r := range out[1:] {
		if !slices.Equal(r.with, []int{3, 2, 2}) || !slices.IsSorted(r.began) || r.began[len(r.began)-1] == 0 {
			t.Errorf("trainer %d was one of %v, want 3, 2 and 2, and began with versions %v", i+1, r.with, r.began)
		}
	}
	if after := (<-again).Sub(ended); after > 8*time.Second && testkit.InFakeTime(t) {
		t.Errorf("the others go on after %s", after)
	}
}

// So it does where others compute the lanes of who was lost, or nobody does.
func TestGoesOnWithThoseLeft(t *testing.T) {
	testkit.Beside(t)
	for name, job := range map[string]*schema.Job{"sync": givenJob(3, 0), "async": givenJob(3, 0)} {
		if job.Policy = schema.PolicyRecover; name == "async" {
			job.Consistency, job.Policy = schema.ConsistencyAsync, schema.PolicyFail
		}
		t.Run(name, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { goesOnWithThoseLeft(t, job) }) })
	}
}

func goesOnWithThoseLeft(t *testing.T, job *schema.Job) {
	kept := ps.Config{Shards: 2, Deadline: 3 * time.Second, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 10}}
	server := startServerWith(t, kept)
	var all sync.WaitGroup
	again := make(chan time.Time, job.Trainers)
	for i := range job.Trainers {
		r := &rewinder{config: testConfig(t, server), job: job, batches: 400}
		if i == 0 {
			r.dies = 100
		} else {
			r.joined = func(int) {
				if len(r.began) == 2 {
					again <- time.Now()
				}
			}
		}
		all.Go(func() {
			if err := r.run(t); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	time.Sleep(14 * time.Second) // batch 280, and versions since 100
	server.Close()
	ended := time.Now()
	kept.Port = fabrictest.PortOf(t, server.URL())
	startServerWith(t, kept)
	all.Wait()
	if after := (<-again).Sub(ended); after > 8*time.Second && testkit.InFakeTime(t) {
		t.Errorf("the others go on after %s", after)
	}
}

// Where one trainer is interrupted the others go on from a version that is written for that, and compute nothing again.
func TestLeavesWithAVersion(t *testing.T) { testkit.Waits(t, leavesWithAVersion) }

func leavesWithAVersion(t *testing.T) {
	const batches, leaves = 300, 120
	config := testConfig(t, startServerWith(t, ps.Config{Shards: 2, Deadline: 3 * time.Second,
		Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Every: time.Hour}}))
	job := givenJob(3, 0)
	job.Apply, job.Reduce, job.Policy = schema.ApplyMean, schema.ReduceTrainers, schema.PolicyRecover
	var all sync.WaitGroup
	out := []*rewinder{{}, {}}
	for i := range out {
		out[i] = &rewinder{config: config, job: job, batches: batches}
		all.Go(func() {
			if err := out[i].run(t); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	all.Go(func() {
		ctx, interrupt := context.WithCancel(testContext(t))
		defer interrupt()
		s, err := Join(ctx, config, job)
		if err != nil {
			t.Error(err)
			return
		}
		err = s.Run(ctx, given{}, batches, func(p Progress) {
			time.Sleep(50 * time.Millisecond)
			if p.Version == leaves {
				interrupt()
			}
		})
		if left := s.Abort(err); !errors.Is(err, context.Canceled) || left != nil {
			t.Errorf("the interrupted one ends with %v and leaves with %v", err, left)
		}
	})
	all.Wait()
	quiet := joinAll(t, testConfig(t, startServerWith(t, ps.Config{})), givenJob(1, 0))
	want := digestAfter(t, quiet, given{}, batches)
	for i, r := range out {
		if !slices.Equal(r.with, []int{3, 2}) || r.began[1] <= leaves || r.digest != want {
			t.Errorf("trainer %d was one of %v and began with versions %v: weights %x, want %x", i, r.with, r.began,
				r.digest[:6], want[:6])
		}
	}
}

// Where all trainers are interrupted at once nobody goes back: who comes next begins anew. So does a job of the same
// name with other settings, with all of its trainers, while one is to go back.
func TestNobodyGoesBack(t *testing.T) {
	testkit.Beside(t)
	for name, again := range map[string]bool{"interrupted": true, "other settings": false} {
		t.Run(name, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { nobodyGoesBack(t, again) }) })
	}
}

func nobodyGoesBack(t *testing.T, interrupted bool) {
	config := testConfig(t, startServerWith(t, ps.Config{Shards: 2, Deadline: 3 * time.Second,
		Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 10}}))
	job := givenJob(3, 0)
	job.Apply, job.Reduce, job.Policy = schema.ApplyMean, schema.ReduceTrainers, schema.PolicyRecover
	ctx, interrupt := context.WithCancel(testContext(t))
	defer interrupt()
	var all sync.WaitGroup
	for i, s := range joinAll(t, config, job) {
		all.Go(func() {
			err := s.Run(ctx, given{}, 1000, func(p Progress) {
				time.Sleep(50 * time.Millisecond)
				switch {
				case p.Version == 160 && interrupted:
					interrupt()
				case p.Version == 160 && i == 0:
					s.fail(errKilled)
				}
			})
			if errors.Is(err, errKilled) {
				die(s)
			} else {
				_ = s.Abort(err)
			}
		})
	}
	all.Wait()
	next := *job
	if !interrupted {
		next.Optimizer.LR = 0.5
	}
	for _, s := range joinAll(t, config, &next) {
		if s.Version() != 0 || s.job.Trainers != 3 {
			t.Errorf("a job of %d trainers begins at version %d, want 3 and 0", s.job.Trainers, s.Version())
		}
	}
}
