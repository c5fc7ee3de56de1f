package trainer

import (
	"context"
	"errors"
	"fmt"
)

// Of a trainer that is lost, a program that takes its batches from NextAssigned gets the lanes, too, beginning with those
// of the batch under way. They come as a Batch of the lost trainer's slot, which is a membership of its own.

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

// excuse takes an error of a run of batches: nil where that is of a lost trainer's slot which is another trainer's by
// now.
func (s *membership) excuse(ctx context.Context, of *run, err error) error {
	if err == nil || of.membership == s || of.Err() == nil || s.Err() != nil || s.run == nil {
		return err
	}
	ctx, stop := s.running(ctx)
	defer stop()
	if err := s.run.of(ctx, of, err); !errors.Is(err, ErrAgain) {
		return err
	}
	return nil
}

// waitAssigned waits as nextAssigned does, and gives the run of batches that has the next one: this membership's, whose
// newest version is complete then, or that of a lost trainer's slot, at the version on which its batch is computed.
func (s *membership) waitAssigned(ctx context.Context) (*run, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	r := s.run
	if r == nil {
		r = s.begin(0, nil)
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
		wait, err := r.takePending(ctx, taking)
		if err != nil {
			return nil, err
		}
		next := r.behind(func(*membership) uint64 { return 0 })
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
