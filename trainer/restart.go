package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// restart joins a session to the next run of its job.
type restart struct {
	config Config
	job    *schema.Job
	open   func() (*Model, error) // the values that the job begins with, as Config.From; nil where the config has them

	from    schema.Version // with which the last run began
	reached schema.Version // highest of all runs
	stuck   int            // runs in a row that reached no higher version
}

// rejoining is a join of the next run that is under way. Fields but cancel are set when done is closed.
type rejoining struct {
	cancel     context.CancelFunc
	done       chan struct{}
	membership *membership
	err        error
}

// restartsMax bounds the consecutive runs that end without a version that no earlier run reached. A batch that ends its
// ps would otherwise do so forever.
const restartsMax = 10

// bound counts a run that err has ended, and returns the end of the session if the job makes no progress.
func (r *restart) bound(m *membership, err error) error {
	if m.newest() > r.reached || m.joined.Version > r.from {
		r.stuck = 0
	}
	r.from, r.reached = m.joined.Version, max(r.reached, m.newest())
	if r.stuck++; r.stuck <= restartsMax {
		return nil
	}
	return fmt.Errorf("job %s restarted %d times from version %d without completing batch %d: %w", m.job.Name, restartsMax,
		m.job.Counted(r.from), m.job.Counted(r.reached), err)
}

// release frees the values that the job begins with when it begins with a durable version from now on.
func (r *restart) release(m *membership) {
	if m.durable.Load() > 0 {
		r.config.From, r.open = nil, nil
	}
}

// joined notes that a run was joined. The values of a file with which the job begins are freed, since they may be as
// large as all tables.
func (r *restart) joined(m *membership) {
	if from := r.config.From; from != nil && from.open != nil {
		r.config.From, r.open = nil, from.open
	}
}

// follows reports whether the job continues in another run, which the trainer may join, where err has ended a membership:
// the others have continued without it, or servers were lost that had made versions of the job durable, or for which
// another ps stood by.
func (r *restart) follows(m *membership, err error) bool {
	return errors.Is(err, errReplaced) ||
		errors.Is(err, ErrServerLost) && (m.joined.Durable || m.standbyAt() != "")
}

// join begins to join the run that follows a membership which err has ended.
func (r *restart) join(ctx context.Context, m *membership, err error) *rejoining {
	c := &r.config
	c.Server, c.standby, c.rejoinAs, c.rejoin = m.config.Server, m.standbyAt(), m.joined.Member, m.joined.RunID
	c.Resume, c.rejoinAt, c.promised = !errors.Is(err, errReplaced), m.joined.Generation, 0
	c.Log.Warn("rejoining job", "job", m.job.Name, "member", m.joined.Member, "resume", c.Resume, "err", err)
	j := &rejoining{done: make(chan struct{})}
	ctx, j.cancel = context.WithCancel(context.WithoutCancel(ctx))
	config, open, job := *c, r.open, r.job
	go func() {
		defer close(j.done)
		defer j.cancel()
		_ = m.Abort(err) // no coordinator is left, or it knows
		if open != nil {
			if config.From, j.err = open(); j.err == nil {
				j.err = config.From.begin(job) // the file may be another one by now
			}
			if j.err != nil {
				return
			}
		}
		j.membership, j.err = joinWithRetry(ctx, config, job)
	}()
	return j
}

// rejoinEvery is the time between two attempts to reach a server that was lost.
const rejoinEvery = 250 * time.Millisecond

// errRunRestarts is ErrServerLost where the coordinator has said so.
var errRunRestarts = fmt.Errorf("%w", ErrServerLost)

// joinWithRetry joins, and tries again for ReconnectTimeout: if the slot was lost before the trainer had begun, if a
// server does not know it any more, if no answer gave it the parameters, and if it rejoins from a run whose servers were
// lost. The time starts over if it had a slot, and while the standby asks it to wait.
func joinWithRetry(ctx context.Context, c Config, job *schema.Job) (*membership, error) {
	sent := false
	for began := time.Now(); ; {
		pause := rejoinEvery
		if c.standby != "" && c.rejoin != 0 && c.Resume {
			at := c.atStandby()
			at.promised = c.rejoinAt
			s, err := join(ctx, at, job, askEvery)
			if err == nil {
				return s, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
			if c.promised = c.promisedAfter(err); errors.Is(err, errBusy) {
				began = time.Now()
			}
			if mayReturn(err) {
				pause = askEvery
			}
		}
		s, err := join(ctx, c, job, c.RetryAfter)
		if !sent && c.standby == "" && c.redirected(err) {
			sent = true
			continue
		}
		again := errors.Is(err, errReplaced) || errors.Is(err, errNoParameters) || errors.Is(err, errUnknownMember) ||
			c.rejoin != 0 && c.Resume && mayReturn(err) ||
			c.standby != "" && (errors.Is(err, errBusy) || errors.Is(err, errElsewhere))
		if errors.Is(err, errReplaced) || errors.As(err, new(endedBefore)) {
			began = time.Now() // it had a slot
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

// What a ps answers whose trainers may be at another one: that it counts the trainer's promise, that the trainer asks
// again, or that it asks there.
var (
	errCounted   = &Refused{Reason: schema.RefusedBusy, Field: schema.FieldVoters}
	errBusy      = &Refused{Reason: schema.RefusedBusy}
	errElsewhere = &Refused{Reason: schema.RefusedElsewhere}
)

// promisedAfter returns the generation in which a trainer has promised the standby to follow it, after a join there: the
// one before if the standby was not reached, and 0 if its answer says that it counts no promise. Without an answer it may
// count it.
func (c *Config) promisedAfter(err error) schema.Generation {
	switch {
	case errors.Is(err, fabric.ErrNoServer):
		return c.promised
	case errors.Is(err, &Refused{}) && !errors.Is(err, errCounted):
		return 0
	}
	return c.rejoinAt
}

// mayReturn reports that a server which is not there, or knows nothing yet, may be started again. One that ends may
// refuse trainers that it had admitted.
func mayReturn(err error) bool {
	if errors.Is(err, errPeerLost) || errors.Is(err, errNoParameters) {
		return false // a trainer's, not a server's
	}
	for _, e := range []error{fabric.ErrNoServer, fabric.ErrLost, fabric.ErrRefused, ErrServerLost, ErrNoAnswer} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
