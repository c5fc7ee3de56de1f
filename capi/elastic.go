//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"

	"gradbus/schema"
	"gradbus/trainer"
)

// An elastic program computes whatever lanes it is assigned, in a job that recovers: it gets lanes of lost trainers,
// and comes back to a job whose servers were lost.

// rejoining is how a session joins anew.
type rejoining struct {
	config trainer.Config // without From
	job    *schema.Job
	from   string // a saved model, with whose values the job begins; empty: none
}

// open is the configuration with the model of from, which is read once more: the job may begin with it again.
func (r *rejoining) open() (to trainer.Config, err error) {
	to = r.config
	if r.from != "" {
		to.From, err = trainer.OpenModel(r.from)
	}
	return to, err
}

// next is the batch that is to be computed.
func (s *session) next(ctx context.Context) (*trainer.Batch, error) {
	if s.elastic == nil {
		return s.Next()
	}
	return s.NextAssigned(ctx)
}

// at is the session that weights are read from: that of the batch under way, else the one whose batch is next.
func (s *session) at(ctx context.Context) (*trainer.Session, error) {
	switch {
	case s.elastic == nil:
		return s.Session, nil
	case s.batch != nil:
		return s.batch.Slot(), nil
	}
	return s.WaitTold(ctx)
}

// excuse takes the error of a batch, which is none of the session's where the batch is another trainer's by now.
func (s *session) excuse(b *trainer.Batch, err error) error {
	if err == nil || s.elastic == nil {
		return err
	}
	if ended := s.Excuse(b, err); ended != nil {
		return ended
	}
	return fmt.Errorf("%w: the lanes of batch %d are another trainer's by now: %w", errLost, b.Number(), err)
}

// ofPlace takes the error of a read at a place, which is none of the session's where that is another trainer's by now.
func (s *session) ofPlace(at *trainer.Session, err error) error {
	switch {
	case err == nil || s.elastic == nil || at == nil || at == s.Session || at.Err() == nil || s.Err() != nil:
		return err
	case s.batch != nil:
		return s.excuse(s.batch, err)
	}
	return fmt.Errorf("%w: the lanes of a trainer that was lost are another one's by now: %w", errLost, err)
}

// mayRejoin says of an error that has ended the trainer's session that gradbus_rejoin comes back.
func (s *session) mayRejoin(err error) error {
	if err == nil || s.elastic == nil || s.Err() == nil || errors.Is(err, errFault) || errors.Is(err, errLost) ||
		s.ctx.Err() != nil {
		return err
	}
	c := s.elastic.config
	c.Log = nil
	if !c.Again(s.Session, err) {
		return err
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

// wantElastic refuses a call of a session that computes its own lanes alone.
func (s *session) wantElastic(call string) error {
	if s.elastic != nil {
		return nil
	}
	return fmt.Errorf("%w: %s: want \"elastic\": true in the configuration of gradbus_join, and a policy other than %q",
		trainer.ErrOrder, call, schema.PolicyFail)
}

//export go_settle
func go_settle(t *C.gradbus_thread, handle C.gradbus_handle, further *C.int32_t) C.int32_t {
	return trains(t, handle, func(ctx context.Context, s *session) error {
		if further == nil {
			return fmt.Errorf("%w: further is NULL", errArgument)
		}
		if s.batch != nil {
			return fmt.Errorf("%w: settle: batch %d is under way: want gradbus_commit before", trainer.ErrOrder,
				s.batch.Number())
		}
		at, err := s.at(ctx)
		if err == nil {
			_, err = at.Wait(ctx)
			err = s.ofPlace(at, err)
		}
		if *further = 0; err == nil && at != s.Session {
			*further = 1
		}
		return err
	})
}

//export go_rejoin
func go_rejoin(t *C.gradbus_thread, handle C.gradbus_handle) C.int32_t {
	return trainsBeside(t, handle, func(s *session) error {
		if err := s.wantElastic("rejoin"); err != nil {
			return err
		}
		s.batch = nil
		cause := s.Err()
		if cause == nil {
			return nil // the batch under way alone was lost
		}
		to, err := s.elastic.open()
		if err != nil {
			return err
		}
		if !to.Again(s.Session, cause) {
			return cause
		}
		_ = s.Abort(cause) // nobody is there to hear it, or nobody who does not know
		joined, err := trainer.Join(s.ctx, to, s.elastic.job)
		if err != nil {
			return err
		}
		to.From = nil
		next := &session{Session: joined, ctx: s.ctx, cancel: s.cancel, turn: s.turn, of: s.of, backend: s.backend,
			log: s.log, elastic: &rejoining{config: to, job: s.elastic.job, from: s.elastic.from}}
		next.joined.Store(true)
		all.replace(uint64(handle), next)
		return nil
	})
}

//export go_hand_over
func go_hand_over(t *C.gradbus_thread, handle C.gradbus_handle) C.int32_t {
	s, err := usable(handle)
	if err == nil {
		err = s.wantElastic("hand over")
	}
	if err != nil {
		return end(t, err)
	}
	return s.leave(t, handle, trainer.ErrInterrupted)
}
