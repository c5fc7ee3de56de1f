package trainer

import (
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// receive is called for every message of an owner to this trainer, from one goroutine for each connection of each server.
// What does not verify is counted and dropped: what it was meant to be will be asked for again. Messages go back to the
// fabric at once, but for rows that somebody keeps.
func (s *Session) receive(m fabric.Message) {
	kept := false
	if at, err := m.Parse(); err == nil && at.Kind == fabric.KindRows && s.keepsRows() {
		m.Keep()
	}
	if v, subject, ok := s.open(&m); ok {
		if owner, ok := s.owners[subject.From]; ok { // where it is the same server, the coordinator is heard here too
			var err error
			if kept, err = s.dispatch(owner, &subject, &v); err != nil {
				s.fail(err)
			}
		}
	}
	if !kept {
		m.Release()
	}
}

// receiveControl is called for every message of the coordinator.
func (s *Session) receiveControl(m fabric.Message) {
	v, subject, ok := s.open(&m)
	if !ok {
		return
	}
	from := subject.From
	var err error
	switch v.Head().Kind {
	case schema.KindControl:
		err = s.word(from, &v)
	case schema.KindBeat:
		s.hear(from)
	case schema.KindRefusal:
		err = s.refused(from, &v)
	}
	if err != nil {
		s.fail(err)
	}
}

// open verifies a message and says who sent it, and to whom.
func (s *Session) open(m *fabric.Message) (v schema.View, subject fabric.Subject, ok bool) {
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		s.faults.Add(1)
		s.config.Log.Warn("frame dropped", "subject", m.Text(), "err", err)
		return v, subject, false
	}
	subject, err = m.Parse()
	return v, subject, err == nil && v.Head().Job == s.joined.RunID // else of an earlier run of the same name
}

// keepsRows tells whether who waits for rows keeps the messages that bring them.
func (s *Session) keepsRows() bool {
	taker := s.rowsFor.Load()
	if taker == nil {
		return false
	}
	_, keeps := (*taker).(*scan)
	return keeps
}

// dispatch gives a frame to who waits for it, and tells whether that one keeps it.
func (s *Session) dispatch(owner int, subject *fabric.Subject, v *schema.View) (kept bool, err error) {
	if subject.Kind == fabric.KindModule {
		return false, s.takeModule(owner, subject, v)
	}
	if v.Head().Kind == schema.KindRows {
		if taker := s.rowsFor.Load(); taker != nil {
			return (*taker).take(owner, v)
		}
		return false, nil
	}
	return false, s.use(owner, subject, v)
}

// use takes in a frame of which nothing is kept.
func (s *Session) use(owner int, subject *fabric.Subject, v *schema.View) error {
	from := subject.From
	switch v.Head().Kind {
	case schema.KindMean:
		return s.takeResult(owner, subject, v)
	case schema.KindAck:
		if a, ok := v.Ack(); ok && s.links[owner].outbox != nil {
			if err := s.links[owner].outbox.Ack(fabric.Ack(a)); err != nil {
				return fmt.Errorf("ack from %s: %w", from, err)
			}
		}
	case schema.KindRefusal:
		return s.refused(from, v)
	}
	return nil
}

func (s *Session) hear(from string) {
	if from == string(schema.Coordinator) {
		s.heard.Store(int64(s.since()))
	}
}

// word takes one of the coordinator's. Those that somebody may wait for go to the channel, whose reader wants the
// latest: it is never full but for words that nobody waits for.
func (s *Session) word(from string, v *schema.View) error {
	if from != string(schema.Coordinator) {
		return nil
	}
	s.hear(from)
	c, err := schema.DecodeControl(v)
	if err != nil {
		return fmt.Errorf("word of the coordinator: %w", err)
	}
	switch {
	case c.LR != nil:
		return s.takeLR(c.LR)
	case c.Refused != nil && c.Refused.Reason == schema.RefusedLR:
		s.lr.refuse(c.Refused)
		return nil
	}
	select {
	case s.controls <- c:
	default:
	}
	if c.Failed != nil {
		return fmt.Errorf("%w: job %s: %s", ErrJobFailed, s.job.Name, c.Failed.Text)
	}
	return nil
}

// refused ends the session: what a shard refused it will never answer. The exceptions are late repetitions, and that the
// shard does not know the job: then the coordinator has ended it, whose word says why and may be a moment behind, or the
// server was started anew, and no word will come.
func (s *Session) refused(from string, v *schema.View) error {
	r, err := schema.DecodeRefusal(v)
	if err != nil {
		return fmt.Errorf("refusal from %s: %w", from, err)
	}
	h := v.Head()
	switch r.Reason {
	case schema.ReasonDuplicate.String():
		return nil
	case schema.ReasonStaleBatch.String():
		// A repetition that came late: of a contribution whose ack was late, or of a lookup or pull that others have
		// overtaken meanwhile. They could not have gone on without this trainer's own contributions.
		if h.Node.Count > 0 || h.Batch < s.newest() || s.results.began(h.Batch) {
			return nil
		}
	case schema.ReasonJobUnknown.String(), schema.ReasonForeignJob.String():
		s.disowned.CompareAndSwap(0, max(1, int64(s.since())))
		return nil
	case schema.ReasonNonFinite.String():
		r.Text += adviceFor(r.Reason)
	}
	what := fmt.Sprintf("batch %d bucket %d chunk %d", h.Batch, h.Bucket, h.Chunk)
	if h.Node.Count > 0 {
		what += fmt.Sprintf(" lanes %v", h.Node)
	}
	return fmt.Errorf("%w: %s: %s: %s: %s", ErrFrameRefused, from, what, r.Reason, r.Text)
}

const (
	// tickEvery is how often windows look for what was not acknowledged: often enough for the shortest wait of theirs, 50 ms.
	tickEvery = 10 * time.Millisecond
	// graceOfCoordinator is added to the deadline for the coordinator's own silence, so that it speaks first.
	graceOfCoordinator = 2 * time.Second
)

// adviceFor is what a person may want to know of a reason, as text to append.
func adviceFor(reason string) string {
	if reason == schema.ReasonNonFinite.String() {
		return "; where the loss had been growing, a smaller learning rate helps"
	}
	return ""
}

// since is the time since the session was made, on the monotonic clock.
func (s *Session) since() time.Duration { return time.Since(s.epoch) }

// dataChanged is told by fabric how a server of shards fares.
func (s *Session) dataChanged(d *dataServer, state fabric.State) {
	switch state {
	case fabric.Lost:
		d.lost.Store(max(1, int64(s.since())))
		s.logOf(d).Warn("server lost", "server", d.name(), "job", s.job.Name, "member", s.joined.Member)
	case fabric.Back:
		d.lost.Store(0)
		s.config.Log.Info("server back", "server", d.name(), "job", s.job.Name, "member", s.joined.Member)
		for _, l := range s.links {
			if l.server != d {
				continue
			}
			if err := l.outbox.ResendAll(); err != nil {
				s.fail(fmt.Errorf("send to %s again: %w", l.member, err))
			}
		}
		select {
		case s.back <- struct{}{}:
		default:
		}
	case fabric.Closed:
		s.fail(fmt.Errorf("%w: %s: the connection has ended", d.lostError(), d.name()))
	}
}

// controlChanged is told by fabric how the server fares that the coordinator is heard by. Training goes on without it for as
// long as the job's deadline.
func (s *Session) controlChanged(state fabric.State) {
	switch state {
	case fabric.Lost:
		s.lost.Store(max(1, int64(s.since())))
		s.config.Log.Warn("control server lost", "control", s.config.serverName(), "job", s.job.Name, "member", s.joined.Member)
	case fabric.Back:
		s.heard.Store(int64(s.since())) // it could not be
		s.lost.Store(0)
		s.config.Log.Info("control server back", "control", s.config.serverName(), "job", s.job.Name, "member", s.joined.Member)
	case fabric.Closed:
		s.fail(fmt.Errorf("%w: %s: the connection has ended", ErrServerLost, s.config.serverName()))
	}
}

// keepTime is the session's only goroutine of its own: it drives the windows, sends beats, and ends the session when the
// server or the coordinator has been silent for too long.
func (s *Session) keepTime() {
	defer s.clock.Done()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	var beat time.Time
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			now := time.Now() // the tick may be an old one, where this process had no processor
			s.forgivePause(s.since())
			err := s.checkSilence()
			s.passPulse(now, beat.Add(s.config.BeatEvery))
			if err == nil && now.Sub(beat) >= s.config.BeatEvery {
				beat, err = now, s.sendBeat()
			}
			if s.segment != nil {
				s.segment.tick()
			}
			for _, l := range s.links {
				if err == nil && l.outbox != nil {
					err = l.outbox.Tick(now)
				}
			}
			if err != nil {
				s.fail(err)
			}
		}
	}
}

func (s *Session) sendBeat() error {
	s.beat.SetHead(s.signHead())
	if err := publish(s.control, s.subject(fabric.KindBeat, schema.All), s.beat.Seal()); err != nil {
		return err
	}
	return s.sendReport()
}

// checkSilence says whom to give up: a server of shards after BackWithin, control and the coordinator after the job's
// deadline.
func (s *Session) checkSilence() error {
	now := s.since()
	for _, d := range s.servers {
		if d.peer != "" && !s.training.Load() {
			continue // it may have left; who is needed for the next batch is told then
		}
		if at := d.lost.Load(); at != 0 && now-time.Duration(at) > s.config.BackWithin {
			return fmt.Errorf("%w: %s has been out of reach for %v, at batch %d of job %s", d.lostError(), d.name(),
				(now - time.Duration(at)).Round(100*time.Millisecond), s.newest(), s.job.Name)
		}
	}
	at := s.disowned.Load()
	disowned := at != 0 && now-time.Duration(at) > s.config.RetryAfter
	deadline := time.Duration(s.joined.DeadlineMS) * time.Millisecond
	if at := s.lost.Load(); at != 0 { // the coordinator, whose clock may be ahead, then ends the job unheard
		if gone := now - time.Duration(at); gone > deadline || disowned {
			return fmt.Errorf("%w: control server %s has been out of reach for %v (deadline %v), at batch %d of job %s", ErrServerLost, s.config.serverName(),
				gone.Round(100*time.Millisecond), deadline, s.newest(), s.job.Name)
		}
		return nil
	}
	if disowned {
		return fmt.Errorf("%w: %s does not know this run of job %s any more, at batch %d: it was started anew, or has ended the job unheard",
			ErrServerLost, s.config.serverName(), s.job.Name, s.newest())
	}
	if silent := now - time.Duration(s.heard.Load()); silent > deadline+graceOfCoordinator {
		return fmt.Errorf("%w: the coordinator of job %s at %s has been silent for %v (deadline %v), at batch %d", ErrServerLost,
			s.job.Name, s.config.serverName(), silent.Round(time.Second), deadline, s.newest())
	}
	return nil
}
