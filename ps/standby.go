package ps

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/internal/planted"
	"gradbus/internal/process"
	"gradbus/schema"
)

const (
	// followEvery is the time between two words of a ps that stands by.
	followEvery = 250 * time.Millisecond
	// cutMax is for how long the ps that is stood by for may be out of reach while nothing says that it has ended.
	cutMax = 2 * time.Second
	// probeEvery is the time between two attempts to find out whether it has.
	probeEvery = 20 * time.Millisecond
	// othersFirst is for how long no newcomer begins a job here that was on the ps which is lost, and of which nothing is
	// here: started again at once, that one has a later version, and those who come back to it.
	othersFirst = 5 * time.Second
	// cameWithin is for how long a trainer counts that has come from a ps that is lost. It asks again each second.
	cameWithin = 3 * time.Second
)

// standby follows another ps and has what the shards of its jobs have. When that ps has ended, the job goes on here
// with the first trainer that comes, from the version that was told last. Where it is only out of reach it may be
// there all the same: then more than half of the trainers have to come. Nobody counts twice, since a trainer is in one
// run at a time; so no two ps go on with a job.
//
// Its methods are called by the control loop, by fabric's goroutines, and by its own, which end with the server.
type standby struct {
	server *Server
	url    string
	drawn  uint64
	conn   *fabric.Conn
	done   sync.WaitGroup
	soon   chan struct{} // of one: something has changed that the other ps is to know

	mu     sync.Mutex // a leaf, but for what state's tables do
	closed bool       // no goroutine begins any more
	jobs   map[schema.JobName]*standing
	silent liveness.Silence        // the other ps, since it was heard
	other  uint64                  // what it drew at its start; 0: it was never heard
	there  map[schema.JobName]bool // jobs that the other ps has; nil: it has not said yet, though it is there
	over   []schema.OverRun        // that this ps has gone on with, the latest last; at most endedMax
	cut    liveness.Silence
	// why the other ps wants nobody to stand by, or somebody else; empty since it answers
	refused string
}

// newStandby is for the ps that a server stands by for. Nothing is dialed yet.
func newStandby(s *Server) *standby {
	return &standby{server: s, url: s.config.Standby, drawn: s.registry.self.Incarnation,
		jobs: map[schema.JobName]*standing{}, soon: make(chan struct{}, 1)}
}

// start connects to the ps that is stood by for, now, or later where it is not there yet. That it refuses is an error.
func (b *standby) start(ctx context.Context) error {
	err := b.connect(ctx)
	if !errors.Is(err, fabric.ErrNoServer) {
		return err
	}
	b.there = map[schema.JobName]bool{} // nobody is there, and no job
	b.server.log.Warn("the ps to stand by for is not there yet", "at", fabric.WithoutUser(b.url), "err", err)
	b.run(func() {
		for err != nil && b.server.running.Err() == nil {
			select {
			case <-time.After(followEvery):
				err = b.connect(b.server.running)
			case <-b.server.running.Done():
			}
		}
	})
	return nil
}

// connect connects, and begins to follow.
func (b *standby) connect(ctx context.Context) error {
	s := b.server
	conn, err := fabric.Dial(ctx, b.fabricConfig("standby/"+s.ID(), b.changed))
	if err != nil {
		return fmt.Errorf("stand by for the ps at %s: %w", fabric.WithoutUser(b.url), err)
	}
	b.mu.Lock()
	b.conn, b.there = conn, nil
	b.mu.Unlock()
	control := fabric.Pattern(fabric.Any, string(schema.Coordinator), fabric.KindCtl, string(s.member), false)
	state := fabric.Pattern(fabric.Any, fabric.Any, fabric.KindState, string(s.member), true)
	if err = conn.Subscribe(control, b.hear); err == nil {
		err = conn.Subscribe(state, b.take)
	}
	if err != nil {
		conn.Close()
		return fmt.Errorf("stand by for the ps at %s: %w", fabric.WithoutUser(b.url), err)
	}
	b.run(func() { b.follow(s.running) })
	s.log.Info("standing by", "for", fabric.WithoutUser(b.url))
	return nil
}

func (b *standby) fabricConfig(name string, onState func(fabric.State)) fabric.Config {
	s := b.server
	return renewing(fabric.Config{URL: b.url, Bus: s.bus, Name: name, Log: s.log, OnState: onState},
		func() (string, *tls.Config) { c := s.trust.Load(); return c.Token, c.NATSTLS })
}

// run runs f on a goroutine of its own, unless the server has ended.
func (b *standby) run(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runLocked(f)
}

func (b *standby) runLocked(f func()) {
	if !b.closed {
		b.done.Go(f)
	}
}

// close takes leave of the other ps. The server runs no more.
func (b *standby) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.done.Wait()
	if b.conn == nil {
		return
	}
	last := b.word()
	last.Leaving = true
	b.say(last)
	ctx, cancel := context.WithTimeout(context.Background(), drainWithin)
	_ = b.conn.Flush(ctx) // it is missed soon if not
	cancel()
	b.conn.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.jobs {
		b.drop(name)
	}
}

// word is what all that is said to the other ps has in common.
func (b *standby) word() *schema.Follow {
	return &schema.Follow{URL: b.server.announced(b.conn.LocalHost()), Incarnation: b.drawn, Host: process.HostAndID()}
}

// follow says what this ps has, again and again.
func (b *standby) follow(ctx context.Context) {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	b.tellSoon()
	var ticks liveness.Ticks
	acks := time.NewTicker(fabric.AckDelayMax / 3)
	defer acks.Stop()
	for {
		select {
		case <-acks.C:
			b.acknowledgeLate()
			continue
		case <-ticker.C:
		case <-b.soon:
		case <-ctx.Done():
			return
		}
		now := b.server.now()
		b.mu.Lock()
		b.silent.Excuse(ticks.Tick(now, b.server.config.Deadline), now) // in which this process did not run
		f := b.word()
		f.Over = slices.Clone(b.over)
		for name, j := range b.jobs {
			if silent := b.silent.For(now); silent > b.server.config.Deadline+graceOfCoordinator {
				b.lose(name, j, fmt.Sprintf("its ps has said nothing for %s", rounded(silent)), false)
			}
			if j.gone != "" && now.Sub(j.since) > resumeWindow {
				b.server.log.Warn("nobody has come for a job", "job", name)
				b.drop(name)
				continue
			}
			if j.state != nil || j.failure != "" { // else it is being made
				f.Jobs = append(f.Jobs, schema.Followed{Run: j.run, Series: j.series, Failure: j.failure,
					Version: j.version()})
			}
		}
		b.mu.Unlock()
		f.Jobs = toldOf(f.Jobs)
		b.say(f)
	}
}

// tellSoon has follow say what this ps has.
func (b *standby) tellSoon() {
	nudge(b.soon)
}

func (b *standby) say(f *schema.Follow) {
	frame, err := schema.EncodeControl(schema.Head{}, schema.Control{Follow: f})
	if err != nil {
		b.server.log.Error("encode follow", "err", err)
		return
	}
	at := fabric.At(string(schema.TelemetryJob), string(b.server.member), fabric.KindCtl, string(schema.Coordinator))
	b.server.publish(b.conn, at, frame)
}

// hear takes a word of the other ps.
func (b *standby) hear(m fabric.Message) {
	defer m.Release()
	subject, err := m.Parse()
	if err != nil {
		return
	}
	view, err := schema.Verify(m.Data, b.server.limits)
	if err == nil && view.Head().Kind == schema.KindRefusal {
		if r := schema.RefusedByOlder(&view); r != nil {
			b.turnedAway(r.Text)
		}
	}
	if err != nil || view.Head().Kind != schema.KindControl {
		return // a heartbeat, or a refusal of what is said again
	}
	c, err := schema.DecodeControl(&view)
	switch {
	case err != nil:
		b.server.log.Warn("word of the ps that is stood by for not understood", "err", err)
	case c.Refused != nil:
		b.turnedAway(c.Refused.Text)
	case c.Heard != nil:
		b.heard(c.Heard)
	case c.Mirror != nil:
		b.mirror(schema.JobName(subject.Job), view.Head().Job, c.Mirror)
	}
}

// turnedAway takes it that the other ps wants nobody to stand by, or somebody else.
func (b *standby) turnedAway(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.there = map[schema.JobName]bool{}; b.refused != why {
		b.refused = why
		b.server.log.Warn("standing by for nobody", "text", why)
	}
}

// heard takes it which jobs the other ps has.
func (b *standby) heard(h *schema.Heard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent.Begin(b.server.now())
	b.refused, b.other = "", h.Incarnation
	b.there = map[schema.JobName]bool{}
	for _, name := range h.Jobs {
		b.there[name] = true
	}
	for name, j := range b.jobs {
		switch {
		case j.other != h.Incarnation:
			b.lose(name, j, "its ps was started anew", true)
		case !b.there[name]:
			b.server.log.Info("job has ended where it was", "job", name)
			b.drop(name)
		case !j.told && j.version() > 0 && slices.Contains(h.Told, name):
			j.told = true
			b.server.log.Info("standing by with all of a job", "job", name, "version", uint64(j.version()))
		}
	}
}

// changed is told by fabric how the way to the other ps fares.
func (b *standby) changed(state fabric.State) {
	switch state {
	case fabric.Lost:
		b.mu.Lock()
		b.cut.Begin(b.server.now())
		b.mu.Unlock()
		b.server.log.Warn("the ps that is stood by for is out of reach", "at", fabric.WithoutUser(b.url))
		b.run(b.probe)
	case fabric.Back:
		b.mu.Lock()
		b.cut.End()
		b.there = nil
		b.mu.Unlock()
		b.server.log.Info("the ps that is stood by for is back", "at", fabric.WithoutUser(b.url))
	}
}

// probe finds out whether the other ps has ended, until it is back. A machine without one refuses connections.
func (b *standby) probe() {
	s := b.server
	for s.running.Err() == nil {
		b.mu.Lock()
		cut, lasts := b.cut.For(s.now()), b.cut.Lasts()
		b.mu.Unlock()
		why, ended := "", planted.Is(planted.TakeUnreachableForEnded)
		if cut > cutMax {
			why = fmt.Sprintf("its ps has been out of reach for %s", rounded(cut))
		}
		if !lasts {
			return
		}
		if why == "" {
			ctx, cancel := context.WithTimeout(s.running, cutMax)
			conn, err := fabric.DialControl(ctx, b.fabricConfig("probe/"+s.ID(), nil))
			cancel()
			if err == nil {
				conn.Close()
			} else if errors.Is(err, syscall.ECONNREFUSED) || s.bus != nil && errors.Is(err, fabric.ErrNoServer) {
				why, ended = "nothing listens any more where its ps was", true
			}
		}
		if why != "" {
			b.mu.Lock()
			b.there = map[schema.JobName]bool{}
			for name, j := range b.jobs {
				b.lose(name, j, why, ended)
			}
			b.mu.Unlock()
			return
		}
		select {
		case <-time.After(probeEvery):
		case <-s.running.Done():
		}
	}
}
