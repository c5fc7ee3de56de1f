package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"gradbus/schema"
)

// When a trainer is lost, the coordinator has another one compute its lanes besides its own, beginning with the batch
// under way. That trainer does so with a further membership, which to all other members is a member of its own. The
// goroutine that calls Run drives both memberships, the one that is behind first, so neither waits for what the other
// has yet to send. A request to take a slot interrupts whatever Run waits for.

// takeovers are the lost trainers' slots that a session takes.
type takeovers struct {
	mu        sync.Mutex // a leaf
	pending   []*schema.Joined
	interrupt context.CancelCauseFunc // interrupts what Run waits for; nil if it waits for nothing

	hosted []*membership // memberships of taken slots; used by the goroutine that calls Run
}

// request adds a slot to take. Repetitions change nothing.
func (t *takeovers) request(j *schema.Joined) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = slices.DeleteFunc(t.pending, func(p *schema.Joined) bool { return p.Member == j.Member })
	t.pending = append(t.pending, j)
	if t.interrupt != nil {
		t.interrupt(ErrAgain)
	}
}

// next returns the pending slots, and a context that ends by ErrAgain when there are more.
func (t *takeovers) next(ctx context.Context) (wait context.Context, pending []*schema.Joined) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop()
	wait, t.interrupt = context.WithCancelCause(ctx)
	pending, t.pending = t.pending, nil
	return wait, pending
}

// end records that Run waits for nothing.
func (t *takeovers) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop()
}

func (t *takeovers) stop() {
	if t.interrupt != nil {
		t.interrupt(nil)
		t.interrupt = nil
	}
}

// train computes all batches before version until, of this trainer's lanes and of the slots that it has taken or takes
// meanwhile.
func (s *membership) train(ctx context.Context, w Workload, until schema.Version) error {
	defer s.takeovers.end()
	for wait := context.Context(nil); ; {
		if wait == nil || wait.Err() != nil {
			var err error
			if wait, err = s.takePending(ctx, ctx); err != nil {
				return err
			}
		}
		done, err := s.advance(ctx, wait, w, until)
		if err != nil && !errors.Is(err, ErrAgain) || done && err == nil {
			return err
		}
	}
}

// takePending takes the pending slots. It returns the context for waits: it ends with ctx, or by ErrAgain when there
// are more slots.
func (s *membership) takePending(ctx, taking context.Context) (wait context.Context, err error) {
	wait, pending := s.takeovers.next(ctx)
	for _, j := range pending {
		if err := s.take(taking, j); err != nil {
			if taking.Err() != nil {
				err = context.Cause(taking) // err is a consequence of that
			}
			return nil, s.failed(taking, s.newest(), err)
		}
	}
	return wait, nil
}

// take begins to compute the lanes of a slot. If the slot is another trainer's by now, or the job ends, take has no
// effect.
func (s *membership) take(ctx context.Context, j *schema.Joined) error {
	hosted := &s.takeovers.hosted
	if i := slices.IndexFunc(*hosted, func(m *membership) bool { return m.joined.Member == j.Member }); i >= 0 {
		if (*hosted)[i].joined.Generation >= j.Generation {
			return nil
		}
		s.drop((*hosted)[i])
	}
	if j.Member == s.joined.Member || j.RunID != s.joined.RunID {
		return nil
	}
	s.config.Log.Warn("computing lanes of a lost trainer", "job", s.job.Name, "member", s.joined.Member,
		"lost", j.Member, "batch", uint64(j.Version))
	c := s.config
	c.Member = j.Member
	m, err := newMembership(ctx, c, s.job, *j)
	if err != nil {
		return s.refuseSlot(ctx, j, err)
	}
	if err = m.connect(ctx, nil); err == nil {
		err = m.enter(ctx)
	}
	if err != nil {
		m.left = true // it has sent nothing: the coordinator gives the slot to another trainer
		m.close()
		return s.refuseSlot(ctx, j, err)
	}
	*hosted = append(*hosted, m)
	return nil
}

// refuseSlot logs why a slot cannot be taken. The session continues without it, unless ctx has ended.
func (s *membership) refuseSlot(ctx context.Context, j *schema.Joined, err error) error {
	if ctx.Err() != nil {
		return err
	}
	s.config.Log.Warn("cannot compute lanes of a lost trainer", "job", s.job.Name, "member", s.joined.Member,
		"lost", j.Member, "err", err)
	return nil
}

// drop ends the membership of a slot that was reassigned to another trainer.
func (s *membership) drop(hosted *membership) {
	s.takeovers.hosted = slices.DeleteFunc(s.takeovers.hosted, func(h *membership) bool { return h == hosted })
	s.config.Log.Warn("lanes reassigned to another trainer", "job", s.job.Name, "member", s.joined.Member,
		"of", hosted.joined.Member)
	hosted.left = true
	hosted.close()
}

// advance computes one batch of the slot that is behind. If all slots have committed all batches, it waits until these
// are complete, and returns done. Waits end with wait.
func (s *membership) advance(ctx, wait context.Context, w Workload, until schema.Version) (done bool, err error) {
	next := s.behind(func(m *membership) uint64 { return uint64(until - min(until, m.newest())) })
	if next.run.committed < until {
		err := s.within(wait, next, func(wait context.Context) error { return next.fill(ctx, wait, w) })
		return false, s.of(ctx, next, err)
	}
	if err := s.settleAll(ctx, wait); err != nil {
		return false, err
	}
	s.takeovers.finish()
	return true, nil
}

// behind returns the membership that has committed the fewest batches, s itself if equal. planned returns the number of
// batches for a slot that was just taken, or has finished a run of batches.
func (s *membership) behind(planned func(*membership) uint64) *membership {
	next := s
	for _, m := range s.takeovers.hosted {
		if m.run == nil {
			m.begin(planned(m), nil)
		}
		if m.run.committed < next.run.committed {
			next = m
		}
	}
	return next
}

// settleAll waits until the committed batches of all slots are complete.
func (s *membership) settleAll(ctx, wait context.Context) error {
	for _, m := range append([]*membership{s}, s.takeovers.hosted...) {
		err := s.within(wait, m, func(wait context.Context) error { return m.settle(wait, m.run.committed) })
		if err = s.of(ctx, m, err); err != nil {
			return err
		}
	}
	return nil
}

// finish ends the runs of batches of the taken slots, whose batches are complete.
func (t *takeovers) finish() {
	for _, s := range t.hosted {
		if s.run != nil {
			s.endRun()
		}
		s.complete.Store(true)
	}
}

// within calls do with a context that also ends with the membership one. For s itself wait already does.
func (s *membership) within(wait context.Context, one *membership, do func(wait context.Context) error) error {
	if one != s {
		var stop func()
		wait, stop = one.running(wait)
		defer stop()
	}
	return do(wait)
}

// of converts an error of the membership one into an error of s.
func (s *membership) of(ctx context.Context, one *membership, err error) error {
	switch {
	case err == nil || errors.Is(err, ErrAgain):
		return err
	case one == s:
		return s.interrupted(ctx, s.newest(), err)
	case errors.Is(one.Err(), errReplaced):
		s.drop(one)
		return ErrAgain
	}
	return s.failed(ctx, one.newest(), fmt.Errorf("in the place of %s: %w", one.joined.Member, err))
}

// leaveAll ends the taken slots, which other trainers may take then.
func (t *takeovers) leaveAll(reason string, handOver bool) {
	for _, s := range t.hosted {
		s.handsOver = handOver
		if err := s.leave(reason); err != nil {
			s.config.Log.Warn("leave of a lost trainer's slot failed", "job", s.job.Name, "member", s.joined.Member, "err", err)
		}
	}
	t.hosted = nil
}

// NextAssigned returns the lanes of a lost trainer too, beginning with those of the batch under way, as a Batch of the
// lost trainer's slot.

// nextAssigned is Session.NextAssigned in this run.
func (s *membership) nextAssigned(ctx context.Context) (*Batch, error) {
	for {
		next, err := s.waitAssigned(ctx)
		if err != nil {
			return nil, err
		}
		b, err := next.Next()
		if err = s.excuse(ctx, next, err); err != nil || b != nil {
			return b, err
		}
	}
}

// excuse returns err, or nil if it belongs to a lost trainer's slot that was reassigned to another trainer.
func (s *membership) excuse(ctx context.Context, of *membership, err error) error {
	if err == nil || of == s || of.Err() == nil || s.Err() != nil || s.run == nil {
		return err
	}
	ctx, stop := s.running(ctx)
	defer stop()
	if err := s.of(ctx, of, err); !errors.Is(err, ErrAgain) {
		return err
	}
	return nil
}

// waitAssigned waits as nextAssigned does, and returns the membership with the next batch: s, whose newest version is
// then complete, or that of a lost trainer's slot, at the version on which its batch is computed.
func (s *membership) waitAssigned(ctx context.Context) (*membership, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	if s.run == nil {
		s.begin(0, nil)
	}
	for _, one := range append([]*membership{s}, s.takeovers.hosted...) {
		if one.run != nil && one.run.now != nil && one.run.now.stage != committed {
			return nil, fmt.Errorf("%w: batch %d is under way: want its Commit before, or GiveBack", ErrOrder,
				one.run.now.Number())
		}
	}
	ctx, stop := s.running(ctx)
	defer stop()
	taking, stopTaking := patiently(ctx)
	defer stopTaking()
	defer s.takeovers.end()
	for {
		wait, err := s.takePending(ctx, taking)
		if err != nil {
			return nil, err
		}
		next := s.behind(func(*membership) uint64 { return 0 })
		if err := next.Err(); err != nil {
			if err = s.of(taking, next, err); !errors.Is(err, ErrAgain) {
				return nil, err
			}
			continue
		}
		if next != s {
			return next, nil
		}
		err = s.settleAll(taking, wait)
		if err == nil || !errors.Is(err, ErrAgain) || errors.Is(context.Cause(ctx), ErrAgain) {
			return s, err
		}
	}
}

// patiently returns a context that ends as ctx does, except by ErrAgain, for steps that cannot be interrupted.
func patiently(ctx context.Context) (context.Context, func()) {
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if err := context.Cause(ctx); !errors.Is(err, ErrAgain) {
			cancel(err)
		}
	})
	return detached, func() {
		stop()
		cancel(nil)
	}
}
