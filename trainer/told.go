package trainer

import (
	"context"
	"errors"
	"fmt"
)

// A program that holds its batches, and takes them from NextAssigned, computes whatever lanes it is assigned, as a
// Workload does. Of a trainer that is lost it then gets the lanes, too, beginning with those of the batch under way.
// They come as a Batch of the lost one's place, which is a session of its own to everybody else.
//
//	for {
//		b, err := session.NextAssigned(ctx)
//		... // as after Next, but b.Slot().LookupInto in place of session.LookupInto
//		if err = b.Commit(ctx); err != nil {
//			err = session.Excuse(b, err) // nil: another trainer computes these lanes, NextAssigned goes on
//		}
//	}

// NextAssigned is Next for a program that computes whatever lanes it is assigned. It gives the next batch of this
// trainer's lanes when all that was committed is complete. Where a trainer was lost meanwhile, it gives lanes of the
// batch that was committed last, as Batch.Lanes of a Batch with the same number.
//
// ErrAgain is to be followed by another call. Errors: ErrOrder where a batch is under way, and those of Run.
func (s *Session) NextAssigned(ctx context.Context) (*Batch, error) {
	for {
		next, err := s.waitTold(ctx)
		if err != nil {
			return nil, err
		}
		b, err := next.Next()
		if err = s.excuse(next, err); err != nil || b != nil {
			return b, err
		}
	}
}

// WaitTold waits as NextAssigned does, and gives the place whose batch that would give: the session itself, whose
// newest version is complete then, or a lost trainer's place, at the version on which its batch is to be computed.
// Weights can be read from it until the next call.
func (s *Session) WaitTold(ctx context.Context) (*Session, error) {
	next, err := s.waitTold(ctx)
	if err != nil {
		return nil, err
	}
	return next.Session, nil
}

// waitTold is WaitTold, of the run of the place.
func (s *Session) waitTold(ctx context.Context) (*run, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	r := s.run
	if r == nil {
		r = s.begin(0, nil)
	}
	for _, one := range append([]*Session{s}, s.takeovers.hosted...) {
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
		wait, err := r.takePending(ctx, taking)
		if err != nil {
			return nil, err
		}
		next := r.behind(func(*Session) uint64 { return 0 })
		if err := next.Err(); err != nil {
			if err = r.of(taking, next, err); !errors.Is(err, ErrAgain) {
				return nil, err
			}
			continue
		}
		if next != r {
			return next, nil
		}
		err = r.settleAll(taking, wait)
		if err == nil || !errors.Is(err, ErrAgain) || errors.Is(context.Cause(ctx), ErrAgain) {
			return r, err
		}
	}
}

// patiently gives a context that ends as ctx does, but not by ErrAgain: for what cannot be interrupted.
func patiently(ctx context.Context) (context.Context, func()) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if err := context.Cause(ctx); !errors.Is(err, ErrAgain) {
			cancel(err)
		}
	})
	return own, func() {
		stop()
		cancel(nil)
	}
}

// Excuse takes an error that a call of a batch of NextAssigned has given. It is nil where the batch is of a lost
// trainer's place and that is another trainer's by now: nothing of the batch counts, and NextAssigned goes on. Any
// other error ends the session, but for ErrOrder, ErrAsk and the like of a session that goes on.
func (s *Session) Excuse(b *Batch, err error) error { return s.excuse(b.run, err) }

// excuse is Excuse of the run of a place.
func (s *Session) excuse(one *run, err error) error {
	if err == nil || one.Session == s || one.Err() == nil || s.Err() != nil || s.run == nil {
		return err
	}
	ctx, stop := s.running(context.Background())
	defer stop()
	if err := s.run.of(ctx, one, err); !errors.Is(err, ErrAgain) {
		return err
	}
	return nil
}

// Slot returns the session whose lanes the batch has: the one that gave it, or that of a lost trainer. Rows of the
// batch are looked up there.
func (b *Batch) Slot() *Session { return b.run.Session }
