package trainer

import (
	"sync"
	"time"

	"gradbus/schema"
)

// hostedLately is for how long after its last step a session is said to train with hosted modules.
const hostedLately = 5 * time.Second

// passClock tells where the time of a program goes that trains with hosted modules outside of Run: waiting for outputs
// is DoingLookup, what it does with them until it goes back DoingCompute, and waiting for the shard after that
// DoingResult. What it does between a step and the next pass is its own, DoingOther. Within Run the phases of that
// count.
type passClock struct {
	mu    sync.Mutex // guards what follows; held for moments
	open  int        // passes that were not stepped or released
	since time.Time  // the last answer
}

// asking begins to wait for an answer, and returns what notes that it has come, or failed.
func (m *hostedModule) asking(kind schema.Kind, training bool) (answered func(ok bool)) {
	s := m.session
	c, began, now := &s.passes, s.activity.word.Load(), time.Now()
	alone := s.planned.Load() == 0
	doing := lookingUp
	if kind != schema.KindForward {
		doing = awaitingResults
	}
	s.activity.beginAt(doing, now)
	if alone && training {
		c.mu.Lock()
		if c.open > 0 {
			lap := now.Sub(c.since)
			s.count(func(t *Stats) { t.ComputeTime += lap })
		}
		c.mu.Unlock()
	}
	return func(ok bool) {
		if !alone {
			s.activity.word.Store(began)
			return
		}
		done := time.Now()
		c.mu.Lock()
		defer c.mu.Unlock()
		if training {
			s.count(func(t *Stats) {
				if doing == lookingUp {
					t.LookupTime += done.Sub(now)
				} else {
					t.ResultTime += done.Sub(now)
				}
			})
			if ok && kind == schema.KindForward {
				c.open++
			}
			c.since = done
		}
		s.between(done)
	}
}

// between says what is done between two requests. c.mu is held.
func (s *membership) between(now time.Time) {
	if s.passes.open > 0 {
		s.activity.beginAt(computing, now)
	} else {
		s.activity.beginAt(elsewhere, now)
	}
}

// begins notes that a pass of a batch begins. Where nothing is added up, passes tell how far the session is: the
// batches before are done.
func (s *membership) begins(b schema.Batch) {
	if s.place.Plan.Roundless && s.planned.Load() == 0 {
		s.batch.Store(max(s.batch.Load(), uint64(b)))
	}
}

// ended notes that passes were stepped, which makes a batch of so many samples, or released, which makes none.
func (m *hostedModule) ended(passes, samples int) {
	s := m.session
	if s.planned.Load() != 0 {
		return
	}
	c := &s.passes
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = max(0, c.open-passes)
	if samples > 0 {
		s.count(func(t *Stats) { t.Batches, t.Samples = t.Batches+1, t.Samples+uint64(samples) })
	}
	s.between(c.since)
}

// training reports that passes are under way, or were lately.
func (c *passClock) training(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open > 0 || !c.since.IsZero() && now.Sub(c.since) < hostedLately
}
