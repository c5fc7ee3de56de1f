package trainer

import (
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

// A job of the same name with other settings begins anew, with all of its trainers, while one is to go back.
func TestOtherSettingsBeginAnew(t *testing.T) { testkit.Waits(t, otherSettingsBeginAnew) }

func otherSettingsBeginAnew(t *testing.T) {
	config := testConfig(t, startServerWith(t, ps.Config{Shards: 2, Deadline: 3 * time.Second,
		Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 10}}))
	job := givenJob(3, 0)
	job.Apply, job.Reduce, job.Policy = schema.ApplyMean, schema.ReduceTrainers, schema.PolicyRecover
	var all sync.WaitGroup
	for i, s := range joinAll(t, config, job) {
		all.Go(func() {
			err := s.Run(testContext(t), given{}, 1000, func(p Progress) {
				if time.Sleep(50 * time.Millisecond); p.Version == 160 && i == 0 {
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
	next.Optimizer.LR = 0.5
	for _, s := range joinAll(t, config, &next) {
		if s.Version() != 0 || s.job.Trainers != 3 {
			t.Errorf("a job of %d trainers begins at version %d, want 3 and 0", s.job.Trainers, s.Version())
		}
	}
}
