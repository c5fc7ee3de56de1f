package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/state"
)

// In a job that restarts (schema.Job.Rewinds) no trainer can take over a slot. If a trainer that is told to stop left
// at once, the others would recompute all batches since the newest durable version. So it announces that it leaves, and
// trains on until a version is durable. Then the run ends, and the others continue from there without it.

// leavingMax bounds that time.
const leavingMax = 20 * time.Second

// untilDurable returns the context of a run of batches. It ends with ctx, but later if the other trainers would have to
// rewind.
func (c *connection) untilDurable(ctx context.Context) (context.Context, func()) {
	if c.job.Policy != schema.PolicyRecover || !c.job.Rewinds() || c.job.Trainers == 1 || !c.joined.Durable {
		return ctx, func() {}
	}
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), context.Canceled) { // the program was told to stop, and has not failed
			c.sendLeaving(longer)
		}
		cancel(context.Cause(ctx))
	})
	return longer, func() {
		stop()
		cancel(nil)
	}
}

// sendLeaving returns when this trainer may leave, or the run or the session has ended.
func (c *connection) sendLeaving(ctx context.Context) {
	c.config.Log.Info("leaving after the next durable version", "job", c.job.Name,
		"member", c.joined.Member, "within", leavingMax.String())
	ctx, cancel := context.WithTimeout(ctx, leavingMax)
	defer cancel()
	again := time.NewTicker(c.config.RetryAfter)
	defer again.Stop()
	for {
		if err := c.sendControl(schema.Control{Leave: &schema.Leave{Later: true}}); err != nil {
			return
		}
		select {
		case <-again.C:
		case <-c.leaveNow:
			return
		case <-c.ctx.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// setFail sets fail, which ends the session. In a job within this process that stays readable
// (schema.Job.StaysReadable), a value that is not finite ends only the training: shards and parameters still have the
// previous version, which the session continues to return. Between processes it ends the session, since other trainers
// wait.
func (c *connection) setFail() {
	ended, end := context.WithCancelCause(context.Background())
	trainable, stop := context.WithCancelCause(ended)
	c.ctx, c.trainable = ended, trainable
	c.fail = func(err error) {
		err = c.withPause(err)
		if c.config.Local && c.job.StaysReadable() && isNonFinite(err) {
			stop(fmt.Errorf("%w; nothing of that batch was applied: version %d can still be read and saved, and this session "+
				"trains no more", err, c.Version()))
			return
		}
		if c.place.Plan.Capability() == (schema.Capability{}) {
			end(c.withStart(err))
		} else {
			end(c.withDurable(err))
		}
	}
}

// isNonFinite reports whether err is that of a value that is not finite, in a gradient or in what was computed from
// one.
func isNonFinite(err error) bool {
	_, computed := errors.AsType[*state.NonFiniteError](err)
	return computed || errors.Is(err, &Refused{Reason: schema.ReasonNonFinite.String()})
}

// noteDurable records a durable version.
func (c *connection) noteDurable(v schema.Version) {
	for last := c.durable.Load(); last < uint64(v) && !c.durable.CompareAndSwap(last, uint64(v)); {
		last = c.durable.Load()
	}
}

// withDurable adds the newest durable version to an error that ends the job.
func (c *connection) withDurable(err error) error {
	v := schema.Version(c.durable.Load())
	ends := isNonFinite(err) || errors.Is(err, ErrJobFailed) || isFrameRefused(err)
	if v <= c.job.StartVersion() || !ends {
		return err
	}
	return fmt.Errorf("%w; version %d is durable: start the job again with --resume, in Python session.resume(), to go "+
		"on from there", err, c.job.Counted(v))
}

// withStart adds to an error that ends a job without state on shards how a new job begins with a saved model.
func (c *connection) withStart(err error) error {
	if !errors.Is(err, ErrServerLost) && !errors.Is(err, errPeerLost) && !errors.Is(err, ErrJobFailed) {
		return err
	}
	return fmt.Errorf("%w; shards keep nothing of this job: begin a new one with a saved model by --load", err)
}

func (c *connection) sendLeave(ctx context.Context, reason string) error {
	if err := c.Err(); errors.Is(err, ErrServerLost) || errors.Is(err, ErrJobFailed) || errors.Is(err, errReplaced) {
		return nil // no coordinator is left, or it knows
	}
	leave := &schema.Leave{Reason: schema.Clip(reason), HandOver: c.handsOver}
	if c.stopped {
		leave.End = schema.EndStopped
	}
	frame, err := schema.EncodeControl(c.signHead(), schema.Control{Leave: leave})
	if err != nil {
		return fmt.Errorf("leave job %s: %w", c.job.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.LeaveWithin)
	defer cancel()
	subject := c.subject(fabric.KindCtl, schema.Coordinator).String()
	ask := func() error {
		if c.forgotten.Load() {
			return ErrServerLost
		}
		return c.control.Publish(subject, frame)
	}
	for answered := false; !answered; {
		answer, err := fabric.Ask(ctx, c.config.RetryAfter, ask, c.controls)
		if errors.Is(err, ErrServerLost) {
			return nil // no coordinator is left
		}
		if err != nil {
			return fmt.Errorf("leave job %s as %s: %w", c.job.Name, c.joined.Member, err)
		}
		answered = answer.Ended != nil
	}
	return nil
}

// isInterrupt reports whether a program was told to stop, and has not failed.
func isInterrupt(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, ErrInterrupted)
}
