//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"context"
	"fmt"

	"gradbus/schema"
	"gradbus/trainer"
)

// An elastic program computes whatever lanes it is assigned, in a job that recovers: it gets lanes of lost trainers,
// and goes on from an earlier version where the job does.

// next is the batch that is to be computed.
func (s *session) next(ctx context.Context) (*trainer.Batch, error) {
	if s.elastic {
		return s.NextAssigned(ctx)
	}
	return s.Next()
}

// wantElastic refuses a call of a session that computes its own lanes alone.
func (s *session) wantElastic(call string) error {
	if s.elastic {
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
		left, err := s.Wait(ctx)
		if *further = 0; left {
			*further = 1
		}
		return err
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
