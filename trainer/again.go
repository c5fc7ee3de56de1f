package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// Again reports whether a trainer whose session has ended by an error may join anew, and sets Rejoin and Resume for
// that: where the others have gone on without it, and where servers were lost that had made versions of
// the job durable, or for which another ps stood by (ErrServerLost). Of these the job then begins with the newest. It
// also sets Server and Standby, since the job may be elsewhere by now. A nil Session is none that has begun.
//
//	for {
//		session, err := trainer.Join(ctx, config, job)
//		...
//		if !config.Again(session, err) {
//			return err
//		}
//	}
func (c *Config) Again(s *Session, err error) bool {
	if s == nil {
		return false
	}
	c.Server, c.Standby, c.RejoinAs = s.config.Server, s.standbyAt(), s.joined.Member
	switch {
	case s.mayComeBack(err):
		c.Rejoin, c.Resume, c.carried = s.joined.RunID, true, s.taken
	case errors.Is(err, errReplaced):
		c.Rejoin, c.Resume = s.joined.RunID, false
	case errors.Is(err, ErrServerLost) && (s.joined.Durable || c.Standby != ""):
		c.Rejoin, c.Resume = s.joined.RunID, true
	default:
		return false
	}
	if c.Log != nil {
		c.Log.Warn("joins anew", "job", s.job.Name, "member", s.joined.Member, "resume", c.Resume, "err", err)
	}
	return true
}

// ComesFrom sets what Again has set in another Config: for a program that makes its Config anew for each join.
func (c *Config) ComesFrom(last *Config) {
	c.Server, c.Standby, c.Rejoin, c.RejoinAs = last.Server, last.Standby, last.Rejoin, last.RejoinAs
	c.Resume, c.carried = last.Resume, last.carried
}

// backEvery is the time between two attempts to reach a server that was lost.
const backEvery = 250 * time.Millisecond

// errBack is ErrServerLost where the coordinator has said so.
var errBack = fmt.Errorf("%w", ErrServerLost)

// joinBack is join, which it tries again for ReconnectTimeout: where the place was lost before the trainer had begun,
// or nobody told it the parameters, and where one comes back from a run whose servers were lost. The time begins anew
// where it had a place.
func joinBack(ctx context.Context, c Config, job *schema.Job) (*Session, error) {
	sent := false
	for began := time.Now(); ; {
		pause := backEvery
		if c.Standby != "" && c.Rejoin != 0 && c.Resume {
			s, err := join(ctx, c.atStandby(), job, askEvery)
			if err == nil {
				return s, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
			if mayComeBack(err) {
				pause = askEvery
			}
		}
		s, err := join(ctx, c, job, c.RetryAfter)
		if !sent && c.Standby == "" && c.sentOn(err) {
			sent = true
			continue
		}
		again := errors.Is(err, errReplaced) || errors.Is(err, ErrNoParameters) ||
			c.Rejoin != 0 && c.Resume && mayComeBack(err) ||
			job.CarriesOn() && (errors.Is(err, ErrServerLost) || errors.Is(err, ErrPeerLost))
		if errors.Is(err, errReplaced) || errors.As(err, new(endedBefore)) || job.CarriesOn() && errors.Is(err, errBack) {
			began = time.Now() // it had a place
		}
		if err == nil || !again || time.Since(began) > c.ReconnectTimeout {
			return s, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// mayComeBack reports that a server which is not there, or knows nothing yet, may be started again. One that ends may
// refuse whoever it had let in.
func mayComeBack(err error) bool {
	for _, e := range []error{fabric.ErrNoServer, fabric.ErrLost, fabric.ErrRefused, ErrServerLost, ErrNoAnswer,
		ErrNoServers} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
