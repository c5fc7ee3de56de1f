package trainer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// errKilled is the end of a trainer that says nothing to anybody.
var errKilled = errors.New("killed")

// die ends a session whose Run has ended as the end of its process would.
func die(s *Session) {
	for _, h := range s.takeovers.hosted {
		h.left = true
		h.close()
	}
	s.left = true
	s.close()
}

// harness is the trainers of a job, some of which die, and others come.
type harness struct {
	t       *testing.T
	config  Config
	job     *schema.Job
	batches uint64
	all     sync.WaitGroup
	alive   atomic.Int64

	mu      sync.Mutex
	digests []string
	dead    int
	hosted  int // places that were taken by others
}

// run trains with a session until it is done, or dies when it has completed so many batches.
func (c *harness) run(s *Session, r *rand.Rand, dies uint64) {
	c.all.Go(func() {
		defer c.alive.Add(-1)
		done := func(b schema.Batch) {
			time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
			if uint64(b) == dies {
				s.fail(errKilled)
			}
		}
		err := holdAssigned(testContext(c.t), s, newToy(c.t, c.job), schema.Version(c.batches), done)
		c.mu.Lock()
		c.hosted += len(s.takeovers.hosted)
		c.mu.Unlock()
		if errors.Is(err, errKilled) {
			c.mu.Lock()
			c.dead++
			c.mu.Unlock()
			die(s)
			return
		}
		var digest [32]byte
		if err == nil {
			digest, err = s.Digest(testContext(c.t))
		}
		if err != nil {
			c.t.Errorf("%s: %v", s.Member(), err)
			_ = s.Abort(err)
			return
		}
		c.mu.Lock()
		c.digests = append(c.digests, fmt.Sprintf("%x", digest[:8]))
		c.mu.Unlock()
		if err := s.Close(); err != nil {
			c.t.Error(err)
		}
	})
}

// quietly is the digest of a job to which nothing happens, of one trainer.
func quietly(t *testing.T, config Config, job *schema.Job, batches uint64) string {
	t.Helper()
	alone := *job
	alone.Name, alone.Trainers = job.Name+"-quiet", 1
	out := trainAll(t, config, &alone, batches)
	if out[0].err != nil {
		t.Fatal(out[0].err)
	}
	return fmt.Sprintf("%x", out[0].digest[:8])
}

// Trainers whose programs hold their batches die in the middle of batches, and so do trainers that compute the lanes of
// lost ones; new ones join. The weights are those of a job in which nothing happens. Trainers in Run are in
// e2e/simulate.
func TestLostTrainersAreReplaced(t *testing.T) {
	seeds := uint64(2)
	if testing.Short() {
		seeds = 8 // which wait for nothing
	}
	var dead, hosted atomic.Int64
	t.Cleanup(func() { // when all have ended, which in real time run at once
		if d, h := dead.Load(), hosted.Load(); d < int64(seeds)/2 || testing.Short() && h == 0 {
			t.Errorf("%d have died, and %d slots were taken by others: that is too few", d, h)
		}
	})
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			testkit.Waits(t, func(t *testing.T) {
				c := replaceLost(t, seed)
				dead.Add(int64(c.dead))
				hosted.Add(int64(c.hosted))
			})
		})
	}
}

func replaceLost(t *testing.T, seed uint64) *harness {
	r := rand.New(rand.NewPCG(seed, 0))
	trainers := 2 + r.IntN(3)
	lanes := trainers + r.IntN(4)
	server := startServerWith(t, ps.Config{Shards: 1 + r.IntN(3), Deadline: 3 * time.Second})
	c := &harness{t: t, config: testConfig(t, server), batches: 30, job: toyJob("replaced", trainers, lanes,
		schema.ApplyUpdate)}
	c.job.Policy = schema.PolicyRecover
	want := quietly(t, c.config, c.job, c.batches)
	c.alive.Store(int64(trainers))
	sessions := joinAll(t, c.config, c.job)
	for i, s := range sessions {
		dies := c.batches // never
		if i > 0 && r.IntN(4) > 0 {
			dies = uint64(r.IntN(20))
		}
		c.run(s, rand.New(rand.NewPCG(seed, uint64(i+1))), dies)
	}
	for range r.IntN(3) {
		time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
		newcomer := c.config
		newcomer.rejoin = sessions[0].RunID()
		s, err := Join(testContext(t), newcomer, c.job)
		if err != nil { // no place is free yet, or the job is over
			checkError(t, err, &Refused{})
			continue
		}
		c.alive.Add(1)
		c.run(s, rand.New(rand.NewPCG(seed, 99)), c.batches)
	}
	c.all.Wait()
	if len(c.digests) == 0 {
		t.Error("nobody has come to the end")
	}
	for _, d := range c.digests {
		if d != want {
			t.Errorf("weights %s, want %s", d, want)
		}
	}
	return c
}

// holdAssigned trains a toy until a version as a program does that holds its batches and computes whatever lanes it is
// assigned. done is told of each batch of its own lanes, when that was committed.
func holdAssigned(ctx context.Context, s *Session, m *toy, until schema.Version, done func(schema.Batch)) error {
	for {
		b, err := s.NextAssigned(ctx)
		switch {
		case err != nil:
			return err
		case b.Number() >= until:
			return errors.Join(b.GiveBack(), s.Finish(ctx))
		}
		own := b.of == s.membership
		err = fillHeld(ctx, b, m)
		switch {
		case errors.Is(err, ErrRewound):
		case err != nil:
			return err
		case own:
			done(b.Number())
		}
	}
}
