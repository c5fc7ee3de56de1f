package trainer

import (
	"context"
	"errors"
	"time"

	"gradbus/schema"
)

// Of a job that goes back (schema.Job.Rewinds) nobody can take over a place. Were a trainer to leave at once that is
// told to end, the others would compute again what they have since the newest version. So it says that it leaves, and
// trains on until a version has become durable. The run ends then, and the others go on from there without it.

// leavingMax is for how long it does.
const leavingMax = 20 * time.Second

// lingers is the context of a run of batches that is to end with ctx, though later where the others would go back.
func (s *membership) lingers(ctx context.Context) (context.Context, func()) {
	if s.job.Policy != schema.PolicyRecover || !s.job.Rewinds() || s.job.Trainers == 1 || !s.joined.Durable {
		return ctx, func() {}
	}
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), context.Canceled) { // and has not failed
			s.sayLeaving(longer)
		}
		cancel(context.Cause(ctx))
	})
	return longer, func() {
		stop()
		cancel(nil)
	}
}

// sayLeaving returns when this trainer may leave, or the run or the session has ended.
func (s *membership) sayLeaving(ctx context.Context) {
	s.config.Log.Info("leaves once a version is durable, so that the others need not go back", "job", s.job.Name,
		"member", s.joined.Member, "within", leavingMax.String())
	ctx, cancel := context.WithTimeout(ctx, leavingMax)
	defer cancel()
	again := time.NewTicker(s.config.RetryAfter)
	defer again.Stop()
	for {
		if err := s.sayControl(schema.Control{Leaving: &schema.Leaving{}}); err != nil {
			return
		}
		select {
		case <-again.C:
		case <-s.leaveNow:
			return
		case <-s.ctx.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}
