package trainer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// A batch that ends its ps again and again ends the session, with the version that every run began with. A run that
// reaches a further version, or begins with one, starts the count again.
func TestRestartsWithoutProgressEndTheSession(t *testing.T) {
	run := func(from, reached schema.Version) *membership {
		m := &membership{connection: &connection{job: toyJob("stuck", 1, 1, schema.ApplyUpdate)}}
		m.joined.Version = from
		m.batch.Store(uint64(reached))
		return m
	}
	var r restart
	for i, m := range []*membership{run(0, 3), run(0, 7), run(5, 6)} {
		for again := range restartsMax {
			if err := r.bound(m, ErrServerLost); err != nil {
				t.Fatalf("run %d, restart %d: %v", i, again, err)
			}
		}
	}
	checkError(t, r.bound(run(5, 7), ErrServerLost), ErrServerLost, "job stuck", "10 times", "version 5", "batch 7")
}

// The values that a job begins with are freed when a version of it is durable.
func TestStartValuesAreFreed(t *testing.T) {
	r, m := restart{config: Config{From: new(Model)}}, &membership{connection: new(connection)}
	r.release(m)
	if r.config.From == nil {
		t.Fatal("freed before a version is durable")
	}
	m.durable.Store(1)
	if r.release(m); r.config.From != nil {
		t.Error("kept though a version is durable")
	}
}

func isDurable(dir string, job schema.JobName) bool {
	found, _ := checkpoint.List(dir, job)
	return slices.ContainsFunc(found, func(f checkpoint.Found) bool { return f.Manifest != nil })
}

// A program that holds its batches outlives a ps that is started again: calls of the batch under way give ErrRewound,
// and NextAssigned goes on from the newest durable version. The weights are those of a job in which nothing happens.
func TestHeldBatchesOutliveAServer(t *testing.T) {
	testkit.Waits(t, func(t *testing.T) {
		const batches = 100
		kept := ps.Config{Shards: 2, Deadline: 3 * time.Second, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 5}}
		server := startServerWith(t, kept)
		job := toyJob("held", 1, 2, schema.ApplyUpdate)
		job.Policy = schema.PolicyRecover
		want := quietly(t, testConfig(t, server), job, batches)
		s, err := Join(testContext(t), testConfig(t, server), job)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Abort(errKilled) }()
		m, run, rewound, ended, lowest := newToy(t, job), s.RunID(), 0, schema.Batch(0), schema.Batch(batches)
		var void *Batch
		for {
			b, err := s.NextAssigned(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			if b.Number() == batches {
				break
			}
			if s.RunID() != run {
				lowest = min(lowest, b.Number())
				if void != nil { // what is asked of the void batch changes nothing of the run under way
					if err := void.Commit(testContext(t)); !errors.Is(err, ErrRewound) {
						t.Errorf("Commit of a batch of the run before: %v, want ErrRewound", err)
					}
				}
			} else if ended == 0 && isDurable(kept.Checkpoints.Dir, job.Name) {
				ended = b.Number()
				server.Close()
				kept.Port = fabrictest.PortOf(t, server.URL())
				server = startServerWith(t, kept)
			}
			time.Sleep(50 * time.Millisecond)
			if err = fillHeld(testContext(t), b, m); errors.Is(err, ErrRewound) {
				if rewound++; void == nil {
					void = b
				}
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Finish(testContext(t)); !errors.Is(err, ErrOrder) {
			t.Errorf("Finish with a batch under way: %v, want ErrOrder", err)
		}
		digest, err := s.Digest(testContext(t))
		if got := fmt.Sprintf("%x", digest[:8]); err != nil || got != want {
			t.Errorf("weights %s, want %s (%v)", got, want, err)
		}
		if rewound == 0 || lowest == 0 || lowest > ended {
			t.Errorf("%d batches were void, and the next run began with batch %d: want a durable one, at most %d", rewound,
				lowest, ended)
		}
	})
}

// Run outlives a ps that is started again, and so does a read after it: batches that the restart takes back are
// computed again, by the same workload, without a report. The weights are those of a job in which nothing happens.
func TestRunAndReadsOutliveAServer(t *testing.T) {
	testkit.Waits(t, func(t *testing.T) {
		const batches = 100
		kept := ps.Config{Shards: 2, Deadline: 3 * time.Second, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 7}}
		server := startServerWith(t, kept)
		again := func() {
			server.Close()
			kept.Port = fabrictest.PortOf(t, server.URL())
			server = startServerWith(t, kept)
		}
		job := toyJob("outlives", 1, 2, schema.ApplyUpdate)
		job.Policy = schema.PolicyRecover
		want := quietly(t, testConfig(t, server), job, batches)
		s, err := Join(testContext(t), testConfig(t, server), job)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Abort(errKilled) }()
		first, reported, restarts := s.RunID(), []schema.Batch{}, 0
		err = s.Run(testContext(t), newToy(t, job), batches, func(p Progress) {
			reported = append(reported, p.Batch)
			if p.Done != uint64(p.Batch)+1 || p.Batches != batches {
				t.Errorf("batch %d is reported as %d of %d", p.Batch, p.Done, p.Batches)
			}
			time.Sleep(50 * time.Millisecond)
			if restarts == 0 && isDurable(kept.Checkpoints.Dir, job.Name) {
				restarts++
				again()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(reported) <= batches || s.RunID() == first {
			t.Errorf("%d batches are reported in run %d: want %d and those since the durable version, in another run than %d",
				len(reported), s.RunID(), batches, first)
		}
		second, told := s.RunID(), len(reported)
		again()
		digest, err := s.Digest(testContext(t))
		if got := fmt.Sprintf("%x", digest[:8]); err != nil || got != want || s.Version() != batches {
			t.Errorf("weights %s at version %d, want %s at %d (%v)", got, s.Version(), want, batches, err)
		}
		if s.RunID() == second || len(reported) != told {
			t.Errorf("run %d after %d, %d reports after %d: want another run, and no report", s.RunID(), second, len(reported),
				told)
		}
	})
}

// A ps that was started again gives a trainer the limits of an unknown client until it knows the job: the trainer joins
// again. A NATS server with a small max_payload ends it.
func TestSmallPayloadOfAServer(t *testing.T) {
	t.Parallel()
	c := &connection{job: toyJob("limited", 1, 1, schema.ApplyUpdate), config: Config{}}
	need := c.job.MessageBytesMax()
	if err := c.checkPayload("s", need); err != nil {
		t.Error(err)
	}
	if err := c.checkPayload("s", need-1); !errors.Is(err, errUnknownMember) {
		t.Errorf("at a ps: %v", err)
	}
	c.config.Route = schema.DataCluster
	if err := c.checkPayload("s", need-1); !errors.Is(err, fabric.ErrPayload) {
		t.Errorf("at a NATS server: %v", err)
	}
}

// A trainer is bound to a ps from when that may count its promise until that says that it does not.
func TestPromiseAfterAnswers(t *testing.T) {
	busy := func(field string) error { return &Refused{Reason: schema.RefusedBusy, Field: field} }
	for name, c := range map[string]struct {
		before, after schema.Generation
		err           error
	}{
		"not reached":          {0, 0, fabric.ErrNoServer},
		"not reached any more": {3, 3, fabric.ErrNoServer},
		"no answer":            {0, 3, ErrNoAnswer},
		"lost":                 {0, 3, fabric.ErrLost},
		"admitted, then not reached": {0, 3,
			fmt.Errorf("%w; it asked anew: %w", endedBefore{ErrServerLost}, fabric.ErrNoServer)},
		"counted":              {0, 3, busy(schema.FieldVoters)},
		"put off":              {3, 0, busy("")},
		"the ps is there":      {3, 0, errElsewhere},
		"the run is not known": {3, 0, &Refused{Reason: schema.RefusedOver}},
	} {
		config := Config{rejoinAt: 3, promised: c.before}
		if got := config.promisedAfter(fmt.Errorf("join: %w", c.err)); got != c.after {
			t.Errorf("%s: promised in generation %d, want %d", name, got, c.after)
		}
	}
}
