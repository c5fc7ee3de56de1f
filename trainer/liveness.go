package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/internal/client"
	"gradbus/internal/liveness"
	"gradbus/schema"
)

const (
	// graceOfCoordinator is added to the deadline for the coordinator's silence, so that the coordinator's own message
	// comes first.
	graceOfCoordinator = 2 * time.Second
	// pauseReported is how long after a suspension of this process, beyond the job's deadline, errors mention it.
	// Consequences show by then.
	pauseReported = 30 * time.Second
)

// watch measures the silence of the members on which the session depends: the coordinator, the control server, and
// servers of shards (dataServer.lost). Goroutines of fabric record events, and keepTime checks them.
type watch struct {
	mu          sync.Mutex       // guards the fields below, and lost of all servers. A leaf
	ticks       liveness.Ticks   // of keepTime
	coordinator liveness.Peer    // last heartbeat or control message
	control     liveness.Silence // since the control server became unreachable
	disowned    liveness.Silence // since a shard answered that it does not know the job
	pause       time.Duration    // length of the last suspension of this process
	paused      liveness.Silence // since the end of that suspension
}

// note calls see with the lock held.
func (w *watch) note(see func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	see()
}

// lasts returns how long s has lasted, and whether it still lasts.
func (w *watch) lasts(s *liveness.Silence, now time.Time) (long time.Duration, lasts bool) {
	w.note(func() { long, lasts = s.For(now), s.Lasts() })
	return long, lasts
}

// deadline returns the deadline of the job.
func (c *connection) deadline() time.Duration {
	return time.Duration(c.joined.DeadlineMS) * time.Millisecond
}

// excusePause is called at each tick. It subtracts a suspension of this process from every silence. The coordinator
// decides whether the job continued without this trainer.
func (c *connection) excusePause(now time.Time) {
	w := &c.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	pause := w.ticks.Tick(now, c.deadline())
	if pause == 0 {
		return
	}
	w.pause = pause
	w.paused.Begin(now)
	for _, silence := range []*liveness.Silence{&w.coordinator.Silence, &w.control, &w.disowned} {
		silence.Excuse(pause, now)
	}
	for _, d := range c.servers {
		d.lost.Excuse(pause, now)
	}
	c.config.Log.Warn("process was suspended", "job", c.job.Name, "member", c.joined.Member,
		"for", pause.Round(100*time.Millisecond).String())
}

// stuck reports whether keepTime has not run for longer than the job's deadline.
func (c *connection) stuck(now time.Time) (stuck bool) {
	c.watch.note(func() { stuck = c.watch.ticks.Since(now) > c.deadline() })
	return stuck
}

// withPause adds a recent suspension of this process to an error, since it may be the cause.
func (c *connection) withPause(err error) error {
	if errors.Is(err, ErrLeft) {
		return err
	}
	w, now := &c.watch, time.Now()
	w.mu.Lock()
	length, ago, paused := w.pause, w.paused.For(now), w.paused.Lasts()
	if p := w.ticks.Pause(now, c.deadline()); p > 0 { // the reader of messages saw its end first
		length, ago, paused = p, 0, true
	}
	w.mu.Unlock()
	if !paused || ago > pauseReported+c.deadline() {
		return err
	}
	until := "just now"
	if ago >= time.Second {
		until = fmt.Sprintf("%v ago", ago.Round(time.Second))
	}
	return fmt.Errorf("%w (this trainer's own process was stopped, or its machine: it did not run for %v, until %s)", err,
		length.Round(100*time.Millisecond), until)
}

// checkSilence returns an error if a member has been silent for too long: a server of shards for ReconnectTimeout, the
// control server and the coordinator for the job's deadline.
func (c *connection) checkSilence(now time.Time) error {
	for _, d := range c.servers {
		if d.peer != "" && !c.training.Load() {
			continue // it may have left; the next batch finds out which trainers it needs
		}
		if gone, _ := c.watch.lasts(&d.lost, now); gone > c.config.ReconnectTimeout {
			return fmt.Errorf("%w: %s has been out of reach for %v, at batch %d of job %s", d.lostError(), d.name(),
				gone.Round(100*time.Millisecond), c.Version(), c.job.Name)
		}
	}
	deadline, server := c.deadline(), c.config.serverName()
	unknown, _ := c.watch.lasts(&c.watch.disowned, now)
	disowned := unknown > c.config.RetryAfter
	if gone, lost := c.watch.lasts(&c.watch.control, now); lost { // the coordinator may have ended the job unheard
		if gone > deadline || disowned {
			return fmt.Errorf("%w: control server %s has been out of reach for %v (deadline %v), at batch %d of job %s",
				ErrServerLost, server, gone.Round(100*time.Millisecond), deadline, c.Version(), c.job.Name)
		}
		return nil
	}
	if disowned {
		return fmt.Errorf("%w: %s does not know this run of job %s any more, at batch %d: it was started anew, or has ended "+
			"the job unheard",
			ErrServerLost, server, c.job.Name, c.Version())
	}
	if silent, _ := c.watch.lasts(&c.watch.coordinator.Silence, now); silent > deadline+graceOfCoordinator {
		return fmt.Errorf("%w: the coordinator of job %s at %s has been silent for %v (deadline %v), at batch %d",
			ErrServerLost, c.job.Name, server, silent.Round(time.Second), deadline, c.Version())
	}
	return nil
}

// connected reports whether all servers are reachable.
func (c *connection) connected() (all bool) {
	c.watch.note(func() {
		lost := func(d *dataServer) bool { return d.lost.Lasts() }
		all = !c.watch.control.Lasts() && !slices.ContainsFunc(c.servers, lost)
	})
	return all
}

// noteHeard records a message of the coordinator.
func (c *connection) noteHeard(from string) {
	if from == string(schema.Coordinator) {
		c.watch.note(func() {
			c.watch.coordinator.Begin(time.Now())
			c.watch.disowned.End() // it came from another ps, which does not know this run
		})
	}
}

// dataChanged handles a change of the connection to a server of shards.
func (c *connection) dataChanged(d *dataServer, state fabric.State) {
	switch state {
	case fabric.Lost:
		c.watch.note(func() { d.lost.Begin(time.Now()) })
		c.logOf(d).Warn("server lost", "server", d.name(), "job", c.job.Name, "member", c.joined.Member)
		c.serverLost()
	case fabric.Back:
		c.watch.note(d.lost.End)
		c.config.Log.Info("server back", "server", d.name(), "job", c.job.Name, "member", c.joined.Member)
		for _, l := range c.links {
			if l.server != d {
				continue
			}
			if err := l.outbox.ResendAll(); err != nil {
				c.fail(fmt.Errorf("send to %s again: %w", l.member, err))
			}
		}
		c.reconnected()
	case fabric.Closed:
		c.fail(fmt.Errorf("%w: %s: the connection has ended", d.lostError(), d.name()))
	}
}

// controlChanged handles a change of the connection to the control server. Training continues without it for the job's
// deadline.
func (c *connection) controlChanged(state fabric.State) {
	switch state {
	case fabric.Lost:
		c.watch.note(func() { c.watch.control.Begin(time.Now()) })
		c.config.Log.Warn("control server lost", "control", c.config.serverName(), "job", c.job.Name, "member",
			c.joined.Member)
		c.serverLost()
	case fabric.Back:
		c.noteHeard(string(schema.Coordinator)) // it could not be heard
		c.watch.note(c.watch.control.End)
		c.heartbeatDue.Store(true) // a restarted ps answers that it does not know the job
		c.config.Log.Info("control server back", "control", c.config.serverName(), "job", c.job.Name, "member",
			c.joined.Member)
	case fabric.Closed:
		c.fail(fmt.Errorf("%w: %s: the connection has ended", ErrServerLost, c.config.serverName()))
	}
}

// A ps may hold the replica of the job's ps; the coordinator announces its address. When a server is lost, the session
// asks the replica's ps whether the run is lost. If so, the session ends, and the trainer joins there (restart).

// askEvery is the interval between two queries of the replica's ps, and between two joins there.
const askEvery = 20 * time.Millisecond

// setReplica sets the address where the job continues if its ps is lost.
func (c *connection) setReplica(url string) {
	if url != "" {
		c.replica.Store(&url)
	}
}

// replicaAt returns the address where the job continues if its ps is lost; empty without a replica.
func (c *connection) replicaAt() string {
	if url := c.replica.Load(); url != nil {
		return *url
	}
	return ""
}

// serverLost asks the replica's ps until servers are reachable again. Repeated calls are harmless.
func (c *connection) serverLost() {
	c.ending.Lock()
	defer c.ending.Unlock()
	url := c.replicaAt()
	if url == "" || c.ctx.Err() != nil || c.asking.Swap(true) {
		return
	}
	c.clock.Add(1)
	go func() {
		defer c.clock.Done()
		defer c.asking.Store(false)
		for c.ctx.Err() == nil && !c.connected() {
			if err := c.askReplica(url); err != nil && c.ctx.Err() == nil {
				c.config.Log.Debug("replica does not answer", "at", fabric.WithoutUser(url), "err", err)
			}
			select {
			case <-time.After(askEvery):
			case <-c.ctx.Done():
			}
		}
	}()
}

// askReplica asks until servers are reachable again, or until the answer is that the run is lost; then it ends the
// session.
func (c *connection) askReplica(url string) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.config.AnswerWithin)
	defer cancel()
	config, answers := c.config, make(chan schema.Control, 1)
	config.Server, config.CredsFile = url, ""
	a, err := client.Dial(ctx, config.dialConfig(), c.job.Name, func(m fabric.Message) {
		if a, ok := client.Answer(m.Data); ok && (a.Ended != nil || a.Refused != nil) {
			select {
			case answers <- a:
			default: // one answer is enough
			}
		}
		m.Release()
	})
	if err != nil {
		return err
	}
	defer a.Close()
	question, err := schema.EncodeControl(schema.Head{}, schema.Control{Query: &schema.Query{Run: c.joined.RunID}})
	if err != nil {
		return err
	}
	for !c.connected() {
		answer, err := fabric.Ask(ctx, askEvery, func() error { return a.Publish(question) }, answers)
		if err != nil {
			return err
		}
		if e := answer.Ended; e != nil {
			c.fail(fmt.Errorf("%w: %s, at batch %d of job %s; the job goes on at %s", ErrServerLost, e.Text, c.Version(),
				c.job.Name, fabric.WithoutUser(url)))
			return nil
		}
		select {
		case <-time.After(askEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// atReplica returns the configuration for a join at the replica's ps.
func (c Config) atReplica() Config {
	c.Server, c.CredsFile, c.replica = c.replica, "", ""
	return c
}

// redirected sets Server to the address of the job in a refusal, and reports whether there is one.
func (c *Config) redirected(err error) bool {
	r, ok := errors.AsType[*Refused](err)
	if !ok || r.server == "" {
		return false
	}
	c.Server = r.server
	return true
}

// gone returns the trainers whose data servers are unreachable.
func (c *connection) gone() map[schema.Member]bool {
	all := map[schema.Member]bool{}
	for _, d := range c.servers {
		if _, lost := c.watch.lasts(&d.lost, time.Now()); lost && d.peer != "" {
			all[d.peer] = true
		}
	}
	return all
}
