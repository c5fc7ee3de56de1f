package trainer

import (
	"context"
	"errors"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/state"
)

// setFail makes what ends the session. In a job within this process that stays readable (schema.Job.StaysReadable), a
// value that is not finite ends the training alone: shards and parameters still have the version before, which the
// session goes on to give. Between processes it ends the session, since other trainers wait.
func (s *membership) setFail() {
	own, end := context.WithCancelCause(context.Background())
	trainable, stop := context.WithCancelCause(own)
	s.ctx, s.trainable = own, trainable
	s.fail = func(err error) {
		err = s.withPause(err)
		if s.config.Local && s.job.StaysReadable() && isNonFinite(err) {
			stop(fmt.Errorf("%w; nothing of that batch was applied: version %d can still be read and saved, and this session "+
				"trains no more", err, s.Version()))
			return
		}
		if s.place.Plan.Capability() == (schema.Capability{}) {
			end(s.withStart(err))
		} else {
			end(s.withDurable(err))
		}
	}
}

// isNonFinite reports that a value was not finite, in a gradient or in what was computed of one.
func isNonFinite(err error) bool {
	_, computed := errors.AsType[*state.NonFiniteError](err)
	return computed || errors.Is(err, &Refused{Reason: schema.ReasonNonFinite.String()})
}

// noteDurable notes a version that is durable.
func (s *membership) noteDurable(v schema.Version) {
	for last := s.durable.Load(); last < uint64(v) && !s.durable.CompareAndSwap(last, uint64(v)); {
		last = s.durable.Load()
	}
}

// withDurable says of an error that ends the job which version of it is on disk.
func (s *membership) withDurable(err error) error {
	v := schema.Version(s.durable.Load())
	ends := isNonFinite(err) || errors.Is(err, ErrJobFailed) || isFrameRefused(err)
	if v <= s.job.StartVersion() || !ends {
		return err
	}
	return fmt.Errorf("%w; version %d is durable: start the job again with --resume, in Python session.resume(), to go "+
		"on from there", err, s.job.Counted(v))
}

// withStart says of an error that ends a job whose shards keep nothing how a new one begins with what was learned.
func (s *membership) withStart(err error) error {
	if !errors.Is(err, ErrServerLost) && !errors.Is(err, ErrPeerLost) && !errors.Is(err, ErrJobFailed) {
		return err
	}
	if v := s.savedAt.Load(); v > 0 {
		return fmt.Errorf("%w; shards keep nothing of this job: begin a new one with version %d of it by --load %s", err, v,
			s.config.SavePath)
	}
	return fmt.Errorf("%w; shards keep nothing of this job: begin a new one with a saved model by --load", err)
}
