package trainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// comers is the trainers of a job that have all of it, some of which die, and others come.
type comers struct {
	t       *testing.T
	config  Config
	job     *schema.Job
	batches uint64
	joining context.Context // ends when the job is over, and who comes then would begin another
	over    context.CancelFunc
	all     sync.WaitGroup

	mu      sync.Mutex
	digests []string
	dead    int
	again   int // sessions that followed another
	lagged  int // of these were a version behind
}

// run is a trainer, which joins anew where it may. It dies when it has completed a batch.
func (c *comers) run(r *rand.Rand, dies uint64) {
	config := c.config
	c.all.Go(func() {
		for {
			s, err := Join(c.joining, config, c.job)
			if err == nil {
				err = s.Run(testContext(c.t), newToy(c.t, c.job), c.batches-min(c.batches, uint64(s.Version())),
					func(p Progress) {
						time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
						if uint64(p.Batch) == dies {
							s.fail(errKilled)
						}
					})
			}
			if errors.Is(err, errKilled) {
				die(s)
				c.mu.Lock()
				c.dead++
				c.mu.Unlock()
				return
			}
			if err == nil {
				err = c.end(s)
			} else if s != nil {
				_ = s.Abort(err)
			}
			if s == nil && errors.Is(err, &Refused{}) && c.joining.Err() == nil { // no place is free yet
				time.Sleep(300 * time.Millisecond)
				continue
			}
			if err == nil || !config.Again(s, err) {
				if err != nil && c.joining.Err() == nil {
					c.t.Error(err)
				}
				return
			}
			c.mu.Lock()
			c.again++
			if k := config.carried; r.IntN(2) == 0 && k.has(k.version-1) { // as if it had not heard the last results
				for _, t := range k.held.tables {
					t.Back()
				}
				k.version--
				c.lagged++
			}
			c.mu.Unlock()
		}
	})
}

// end notes the weights and ends a session.
func (c *comers) end(s *Session) error {
	digest, err := s.Digest(testContext(c.t))
	if err != nil {
		return errors.Join(err, s.Abort(err))
	}
	c.mu.Lock()
	c.digests = append(c.digests, fmt.Sprintf("%x", digest[:8]))
	c.mu.Unlock()
	err = s.Close()
	time.AfterFunc(time.Second, c.over)
	return err
}

// told counts what is logged.
type told struct {
	slog.Handler
	text  string
	count *atomic.Int64
}

// Enabled implements slog.Handler.
func (h told) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h told) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, h.text) {
		h.count.Add(1)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (h told) WithAttrs([]slog.Attr) slog.Handler { return h }

// Trainers that have all of a job die, several of them, and new ones come. Those that are left go on with what they
// have, which newcomers get from them: the weights are those of a job in which nothing has happened.
func TestTrainersThatHaveAllComeTogetherAnew(t *testing.T) {
	testkit.Waits(t, func(t *testing.T) {
		seeds := uint64(3)
		if testkit.InFakeTime(t) {
			seeds = 12 // which wait for nothing
		}
		var dead, again, lagged int
		var copied atomic.Int64
		for seed := range seeds {
			c := comeTogether(t, seed, &copied)
			dead, again, lagged = dead+c.dead, again+c.again, lagged+c.lagged
		}
		if dead < int(seeds)/2 || again < int(seeds) || lagged < int(seeds)/2 || copied.Load() < int64(seeds)/3 {
			t.Errorf("%d have died, %d sessions followed another, %d a version behind, %d got all from others: that is too few",
				dead, again, lagged, copied.Load())
		}
	})
}

func comeTogether(t *testing.T, seed uint64, copied *atomic.Int64) *comers {
	r := rand.New(rand.NewPCG(seed, 0))
	trainers := 2 + r.IntN(3)
	lanes := trainers + r.IntN(4)
	server := startServerWith(t, ps.Config{Shards: 1, Deadline: 3 * time.Second})
	const replicated = 4 // route
	c := &comers{t: t, config: testConfig(t, server), batches: 60,
		job: routeJob(fmt.Sprintf("carried-%d", seed), replicated, trainers, lanes)}
	c.joining, c.over = context.WithCancel(testContext(t))
	defer c.over()
	if c.job.Policy = schema.PolicyRecover; seed%4 == 3 {
		c.job.Policy = schema.PolicyWait
	}
	c.config.Log = slog.New(told{text: "got all of the job", count: copied})
	if seed%2 == 1 {
		c.job.Optimizer.Clip = &schema.Clipping{Kind: schema.ClipGlobal, Max: 0.5}
	}
	want := quietly(t, testConfig(t, server), c.job, c.batches)
	newcomers := r.IntN(3)
	for i := range trainers {
		dies := c.batches // never
		if i > 0 && r.IntN(4) > 0 {
			dies = uint64(1 + r.IntN(20))
		}
		if c.job.Policy == schema.PolicyWait && dies < c.batches {
			newcomers = max(newcomers, i)
		}
		c.run(rand.New(rand.NewPCG(seed, uint64(i+1))), dies)
	}
	time.Sleep(time.Second) // all places are taken
	for i := range newcomers {
		time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
		c.run(rand.New(rand.NewPCG(seed, uint64(90+i))), c.batches)
	}
	c.all.Wait()
	if len(c.digests) == 0 {
		t.Errorf("seed %d: nobody has come to the end", seed)
	}
	for _, d := range c.digests {
		if d != want {
			t.Errorf("seed %d: weights %s, want %s", seed, d, want)
		}
	}
	return c
}
