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
	open   func() (*Model, error) // opens the model of Config.From again; nil if the config has it

	from    schema.Version // version with which the last run began
	reached schema.Version // highest version of all runs
	stuck   int            // consecutive runs that reached no higher version
}

// rejoining is a join of the next run that is under way. All fields except cancel are set when done is closed.
type rejoining struct {
	cancel     context.CancelFunc
	done       chan struct{}
	membership *membership
	err        error
}

// restartsMax bounds the consecutive runs that reach no new version. Otherwise a batch that crashes its ps would
// restart the job forever.
const restartsMax = 10

// bound counts a run that err has ended, and returns the final error if the job makes no progress.
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

// release frees the initial values once the job restarts from a durable version.
func (r *restart) release(m *membership) {
	if m.durable.Load() > 0 {
		r.config.From, r.open = nil, nil
	}
}

// joined records that a run was joined. It frees initial values that can be read from their file again, since they may
// be as large as all tables.
func (r *restart) joined(m *membership) {
	if from := r.config.From; from != nil && from.open != nil {
		r.config.From, r.open = nil, from.open
	}
}

// follows reports whether the job continues in another run that the trainer may join after err has ended a membership:
// other trainers have continued without it, or a ps was lost that had durable versions of the job or a replica.
func (r *restart) follows(m *membership, err error) bool {
	return errors.Is(err, errReplaced) ||
		errors.Is(err, ErrServerLost) && (m.joined.Durable || m.replicaAt() != "")
}

// join starts the join of the run that follows a membership ended by err.
func (r *restart) join(ctx context.Context, m *membership, err error) *rejoining {
	c := &r.config
	c.Server, c.replica, c.rejoin = m.config.Server, m.replicaAt(), m.joined.RunID
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
				j.err = config.From.begin(job) // the file may have changed
			}
			if j.err != nil {
				return
			}
		}
		j.membership, j.err = joinWithRetry(ctx, config, job)
	}()
	return j
}

// rejoinEvery is the interval between two attempts to reach a lost server.
const rejoinEvery = 250 * time.Millisecond

// errRunRestarts is ErrServerLost reported by the coordinator.
var errRunRestarts = fmt.Errorf("%w", ErrServerLost)

// joinWithRetry joins, and retries for ReconnectTimeout if the slot was lost before the trainer had begun, if a server
// does not know the trainer any more, if no answer had the parameters, or if it rejoins after servers were lost. The
// time starts over whenever it had a slot, and while the replica's ps asks it to wait.
func joinWithRetry(ctx context.Context, c Config, job *schema.Job) (*membership, error) {
	sent := false
	for began := time.Now(); ; {
		pause := rejoinEvery
		if c.replica != "" && c.rejoin != 0 && c.Resume {
			at := c.atReplica()
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
		if !sent && c.replica == "" && c.redirected(err) {
			sent = true
			continue
		}
		again := errors.Is(err, errReplaced) || errors.Is(err, errNoParameters) || errors.Is(err, errUnknownMember) ||
			c.rejoin != 0 && c.Resume && mayReturn(err) ||
			c.replica != "" && (errors.Is(err, errBusy) || errors.Is(err, errElsewhere))
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

// Answers of a ps whose trainers may be at another ps: it counts the trainer's promise, the trainer should ask again,
// or the trainer should ask there.
var (
	errCounted   = &Refused{Reason: schema.RefusedBusy, Field: schema.FieldVoters}
	errBusy      = &Refused{Reason: schema.RefusedBusy}
	errElsewhere = &Refused{Reason: schema.RefusedElsewhere}
)

// promisedAfter returns the generation in which a trainer has promised to follow the replica's ps, after a join there:
// the previous one if that ps was not reached, and 0 if its answer is that it counts no promise. Without an answer it
// may count the promise.
func (c *Config) promisedAfter(err error) schema.Generation {
	switch {
	case errors.As(err, new(endedBefore)): // it was admitted there before it asked again
	case errors.Is(err, fabric.ErrNoServer):
		return c.promised
	case errors.Is(err, &Refused{}) && !errors.Is(err, errCounted):
		return 0
	}
	return c.rejoinAt
}

// mayReturn reports whether an error is that of an unreachable server, or one that knows nothing yet, which may be
// restarted. A ps that shuts down may refuse trainers that it had admitted.
func mayReturn(err error) bool {
	if errors.Is(err, errPeerLost) || errors.Is(err, errNoParameters) {
		return false // the error is a trainer's, not a server's
	}
	for _, e := range []error{fabric.ErrNoServer, fabric.ErrLost, fabric.ErrRefused, ErrServerLost, ErrNoAnswer} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
