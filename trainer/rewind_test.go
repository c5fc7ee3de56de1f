package trainer

import (
	"errors"
	"sync"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// Jobs whose places cannot be taken over go on from their newest durable version under policy wait: when a trainer is
// lost, with the new one that comes. So do those whose only trainer is lost together with what it had, or whose place
// nobody has taken in time. Where gradients do not depend on versions, nothing is missing at the end, and nothing is
// there twice.
func TestJobsRewind(t *testing.T) {
	testkit.Beside(t)
	for name, job := range map[string]*schema.Job{"bounded": givenJob(3, 2), "feedback": givenJob(3, 0),
		"hybrid": givenJob(3, 0), "async tables": givenJob(3, 0), "bounded, alone": givenJob(1, 2),
		"mean": givenJob(3, 0), "mean, alone": givenJob(1, 0), "deserted": givenJob(1, 0)} {
		job.Policy = schema.PolicyWait
		comes := 5 * time.Second // after the start
		switch name {
		case "deserted":
			comes, job.Policy = 15*time.Second, schema.PolicyRecover
		case "feedback":
			job.Wire = schema.Wire{Gradients: schema.GradientsBFloat16, ErrorFeedback: true}
		case "hybrid":
			job.Apply, job.Reduce = schema.ApplyMean, schema.ReduceTrainers
		case "async tables": // of which some steps are made again
			job.Apply, job.Reduce, job.TableConsistency = schema.ApplyMean, schema.ReduceTrainers, schema.ConsistencyAsync
		case "mean":
			job.Apply = schema.ApplyMean
		case "mean, alone":
			job.Apply, job.Policy = schema.ApplyMean, schema.PolicyRecover
		}
		t.Run(name, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { rewind(t, job, comes) }) })
	}
}

// rewinder is a trainer of a job that rewinds.
type rewinder struct {
	config Config
	job    *schema.Job
	// it trains so many batches
	batches uint64
	dies    schema.Version // with a version at which it ends without a word, once one before it is durable; 0: never
	joined  func(n int)    // one of n trainers; nil: nobody wants to know
	began   []schema.Version
	with    []int // trainers, in each session
	digest  [32]byte
}

const rewindBatches = 110

// run trains to the end of the job, or its own.
func (r *rewinder) run(t *testing.T) error {
	return trainOnce(t, r.config, r.job, func(s *Session) error {
		begins := func(v schema.Version) {
			r.began, r.with = append(r.began, v), append(r.with, s.job.Trainers)
			if r.joined != nil {
				r.joined(s.job.Trainers)
			}
		}
		err := s.Run(testContext(t), given{}, r.batches-uint64(s.Version()), eachRun(s, begins, func(p Progress) {
			time.Sleep(50 * time.Millisecond)
			if p.Version == r.dies {
				s.fail(errKilled)
			}
		}))
		if err == nil {
			r.digest, err = s.Digest(testContext(t))
		}
		return err
	})
}

// eachRun is a report of Run that tells begins of each run of the job, with the version at which it began.
func eachRun(s *Session, begins func(schema.Version), report func(Progress)) func(Progress) {
	run := s.RunID()
	begins(s.Version())
	return func(p Progress) {
		if run != s.RunID() {
			run = s.RunID()
			begins(schema.Version(p.Batch))
		}
		report(p)
	}
}

// trainOnce has a trainer join, when a slot is free, and train until that is well, or its end without a word
// (errKilled).
func trainOnce(t *testing.T, config Config, job *schema.Job, train func(s *Session) error) error {
	for {
		s, err := Join(testContext(t), config, job)
		if errors.Is(err, &Refused{}) { // no slot is free yet
			time.Sleep(300 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		if err = train(s); errors.Is(err, errKilled) {
			die(s)
			return nil
		}
		return errors.Join(err, s.Abort(err))
	}
}

func rewind(t *testing.T, job *schema.Job, comes time.Duration) {
	kept := ps.Config{Shards: 2, Deadline: 3 * time.Second,
		Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 10}}
	server := startServerWith(t, kept)
	var all sync.WaitGroup
	out := make([]*rewinder, job.Trainers+1)
	for i := range out {
		out[i] = &rewinder{config: testConfig(t, server), job: job, batches: rewindBatches}
		if i < job.Trainers {
			out[i].config.Member = schema.TrainerMember(i)
		}
		if i == 0 { // which has lane 0
			out[i].dies = 100
		}
		all.Go(func() {
			if i == job.Trainers { // in the place of the one that is lost
				time.Sleep(comes)
			}
			if err := out[i].run(t); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	all.Wait()
	quiet := joinAll(t, testConfig(t, startServerWith(t, ps.Config{})), givenJob(1, 0))
	want := digestAfter(t, quiet, given{}, rewindBatches)
	for i, r := range out {
		last := r.began[len(r.began)-1]
		switch {
		case i == 0 && len(r.began) == 1:
		case 0 < i && i < job.Trainers && len(r.began) != 2 || last == 0 || last > 100:
			t.Errorf("trainer %d began with versions %v", i, r.began)
		case !job.Wire.ErrorFeedback && job.TableConsistency == "" && r.digest != want:
			t.Errorf("trainer %d: weights %x, want %x", i, r.digest[:6], want[:6])
		case r.digest != out[1].digest:
			t.Errorf("trainers have weights %x and %x", r.digest[:6], out[1].digest[:6])
		}
	}
}
