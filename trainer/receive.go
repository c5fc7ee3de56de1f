package trainer

import (
	"fmt"
	"strconv"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// receive is called for every message of an owner to this trainer, from one goroutine for each connection of each
// server. What does not verify is counted and dropped: what it was meant to be will be asked for again. Messages go
// back to the fabric at once, but for rows that somebody keeps.
func (s *membership) receive(m fabric.Message) {
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
func (s *membership) receiveControl(m fabric.Message) {
	v, subject, ok := s.open(&m)
	if !ok {
		return
	}
	from := subject.From
	var err error
	switch v.Head().Kind {
	case schema.KindControl:
		err = s.word(&subject, &v)
	case schema.KindHeartbeat:
		s.hear(from)
		s.noteDurable(v.Head().Batch)
	case schema.KindRefusal:
		err = s.refused(from, &v)
	}
	if err != nil {
		s.fail(err)
	}
}

// open verifies a message and says who sent it, and to whom.
func (s *membership) open(m *fabric.Message) (v schema.View, subject fabric.Subject, ok bool) {
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		s.faults.Add(1)
		s.config.Log.Warn("frame dropped", "subject", m.Text(), "err", err)
		return v, subject, false
	}
	subject, err = m.Parse()
	return v, subject, err == nil && v.Head().Job == s.joined.RunID // else of an earlier run of the same name
}

// keepsRows tells whether who waits for rows keeps the messages that bring them: a scan.
func (s *membership) keepsRows() bool {
	return get(s.exchange, func(x *exchange.Exchange) bool { return x.Open(rowsScanned) > 0 })
}

// dispatch gives a frame to who waits for it, and tells whether that one keeps it.
func (s *membership) dispatch(owner int, subject *fabric.Subject, v *schema.View) (kept bool, err error) {
	if subject.Kind == fabric.KindModule {
		return false, s.takeModule(owner, subject, v)
	}
	if h := v.Head(); h.Kind == schema.KindRows || h.Kind == schema.KindAck {
		switch g := h.Generation; {
		case g > s.joined.Generation:
			return false, replacedBy(s.job.Name, fmt.Sprintf("%s answers %s of generation %d, and this one is of %d",
				subject.From, s.joined.Member, g, s.joined.Generation))
		case g < s.joined.Generation:
			return false, nil // it is for who had the place before
		}
	}
	if v.Head().Kind == schema.KindRows {
		return s.takeRows(owner, v)
	}
	return false, s.use(owner, subject, v)
}

// takeRows gives rows to who has asked for them, which their numbers tell.
func (s *membership) takeRows(owner int, v *schema.View) (kept bool, err error) {
	for who := exchange.Asker(0); who < rowAskers && !kept && err == nil; who++ {
		kept, err = s.exchange.take(who, owner, v, 0, 1)
	}
	return kept, err
}

// roundOver notes what rows say besides: that the shard's round which made their version is over.
func (s *membership) roundOver(shard int, h *schema.Head) error {
	s.results.noteCopies(h.Flags, schema.Version(h.Batch))
	if version := h.Batch - min(h.Batch, schema.Batch(h.Offset)); version > 0 {
		return s.results.over(shard, version-1, h.Weight)
	}
	return nil
}

// use takes in a frame of which nothing is kept.
func (s *membership) use(owner int, subject *fabric.Subject, v *schema.View) error {
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
	case schema.KindPull:
		return s.answerReplica(owner, v)
	case schema.KindState:
		return s.takeReplica(owner, v)
	case schema.KindControl:
		if s.config.OnGroup == nil {
			return nil
		}
		switch c, err := schema.DecodeControl(v); {
		case err != nil:
			return fmt.Errorf("control from %s: %w", from, err)
		case c.Group != nil:
			s.config.OnGroup(*c.Group)
		}
	}
	return nil
}

// takeResult puts a result in place, and asks for those that must have been lost before it.
func (s *membership) takeResult(owner int, subject *fabric.Subject, v *schema.View) error {
	b := v.Head().Batch
	if s.results.grouped {
		b = schema.Batch(subject.Batch) // the frame is the same for all of the group
	}
	lost, err := s.results.take(owner, subject.To != string(schema.All), b, v)
	if err != nil {
		return err
	}
	return s.sendPulls(lost)
}

// word takes one of the coordinator's. Those that somebody may wait for go to the channel, whose reader wants the
// latest: it is never full but for words that nobody waits for.
func (s *membership) word(subject *fabric.Subject, v *schema.View) error {
	from := subject.From
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
	case c.Standby != nil:
		s.setStandby(c.Standby.URL)
		return nil
	case c.Refused != nil && subject.To == string(schema.All): // of a trainer that this one waits for
		s.config.Log.Warn("another trainer was refused", "job", s.job.Name, "member", s.joined.Member, "reason",
			c.Refused.Reason, "text", c.Refused.Text)
		return nil
	case c.Refused != nil && c.Refused.Reason == schema.RefusedLR:
		s.lr.refuse(c.Refused)
		return nil
	case c.Refused != nil && c.Refused.Reason == schema.RefusedReplaced:
		if c.Refused.Want != strconv.Itoa(int(s.joined.Generation)) {
			return nil // who had the place before
		}
		return replacedBy(s.job.Name, c.Refused.Text)
	case c.Leaving != nil:
		select {
		case s.leaveNow <- struct{}{}:
		default:
		}
		return nil
	case c.TakeOver != nil:
		s.takeovers.tell(c.TakeOver)
		return nil
	case c.Stalled != nil:
		s.logStalled(c.Stalled)
		return nil
	}
	select {
	case s.controls <- c:
	default:
	}
	if c.Failed != nil && c.Failed.Back {
		return fmt.Errorf("%w: job %s: %s", errBack, s.job.Name, c.Failed.Text)
	}
	if c.Failed != nil && c.Failed.End == schema.EndStopped {
		return fmt.Errorf("%w: job %s: %s", ErrJobStopped, s.job.Name, c.Failed.Text)
	}
	if c.Failed != nil {
		return fmt.Errorf("%w: job %s: %s", ErrJobFailed, s.job.Name, c.Failed.Text)
	}
	return nil
}

// logStalled logs which trainer a batch waits for. The coordinator repeats that seldom.
func (s *membership) logStalled(t *schema.Stalled) {
	s.config.Log.Warn("batch waits for a trainer", "job", s.job.Name, "member", s.joined.Member, "batch", t.Batch,
		"waits_for", t.Member, "host", t.Host, "waited", time.Duration(t.WaitedMS)*time.Millisecond,
		"limit", time.Duration(t.LimitMS)*time.Millisecond)
}

// refused ends the session: what a shard refused it will never answer. The exceptions are late repetitions, and that
// the shard does not know the job: then the coordinator has ended it, whose word says why and may be a moment behind,
// or the server was started anew, and no word will come.
func (s *membership) refused(from string, v *schema.View) error {
	r, err := schema.DecodeRefusal(v)
	if err != nil {
		return fmt.Errorf("refusal from %s: %w", from, err)
	}
	h := v.Head()
	if h.Generation != 0 && h.Generation != s.joined.Generation {
		return nil // of who had the place before, or has it now
	}
	switch r.Reason {
	case schema.ReasonDuplicate.String():
		return nil
	case schema.ReasonUnknownSender.String():
		if from == string(schema.Coordinator) { // it was silent for too long before the start
			return replacedBy(s.job.Name, r.Text)
		}
	case schema.ReasonOldGeneration.String():
		return replacedBy(s.job.Name, from+": "+r.Text)
	case schema.ReasonStaleBatch.String():
		// A repetition that came late: of a contribution whose ack was late, or of a lookup or pull that others have
		// overtaken meanwhile. They could not have gone on without this trainer's own contributions.
		// A session that trains no more waits for nothing else.
		if h.Node.Count > 0 || h.Batch < s.newest() || s.TrainingErr() == nil &&
			get(s.exchange, func(x *exchange.Exchange) bool { return x.Began(h.Batch) }) {
			return nil
		}
	case schema.ReasonJobUnknown.String(), schema.ReasonForeignJob.String():
		if from == string(schema.Coordinator) {
			s.forgotten.Store(true)
		}
		s.watch.note(func() {
			if !s.watch.disowned.Lasts() {
				s.watch.disowned.Begin(time.Now())
			}
		})
		return nil
	}
	what := fmt.Sprintf("batch %d bucket %d chunk %d", s.job.Counted(h.Batch), h.Bucket, h.Chunk)
	if h.Node.Count > 0 {
		what += fmt.Sprintf(" lanes %v", h.Node)
	}
	return refusedFrame(from+": "+what, r.Reason, r.Text)
}

const (
	// tickEvery is how often windows look for what was not acknowledged: often enough for the shortest wait of theirs, 50
	// ms.
	tickEvery = 10 * time.Millisecond
)

// since is the time since the session was made, on the monotonic clock.
func (s *membership) since() time.Duration { return time.Since(s.epoch) }

// dataChanged is told by fabric how a server of shards fares.
func (s *membership) dataChanged(d *dataServer, state fabric.State) {
	switch state {
	case fabric.Lost:
		s.watch.note(func() { d.lost.Begin(time.Now()) })
		s.logOf(d).Warn("server lost", "server", d.name(), "job", s.job.Name, "member", s.joined.Member)
		s.serverLost()
	case fabric.Back:
		s.watch.note(d.lost.End)
		s.config.Log.Info("server back", "server", d.name(), "job", s.job.Name, "member", s.joined.Member)
		for _, l := range s.links {
			if l.server != d {
				continue
			}
			if err := l.outbox.ResendAll(); err != nil {
				s.fail(fmt.Errorf("send to %s again: %w", l.member, err))
			}
		}
		s.exchange.do((*exchange.Exchange).Back)
	case fabric.Closed:
		s.fail(fmt.Errorf("%w: %s: the connection has ended", d.lostError(), d.name()))
	}
}

// controlChanged is told by fabric how the server fares that the coordinator is heard by. Training goes on without it
// for as long as the job's deadline.
func (s *membership) controlChanged(state fabric.State) {
	switch state {
	case fabric.Lost:
		s.watch.note(func() { s.watch.control.Begin(time.Now()) })
		s.config.Log.Warn("control server lost", "control", s.config.serverName(), "job", s.job.Name, "member",
			s.joined.Member)
		s.serverLost()
	case fabric.Back:
		s.hear(string(schema.Coordinator)) // who could not be heard
		s.watch.note(s.watch.control.End)
		s.speaks.Store(true) // one that was started anew says that it does not know the job
		s.config.Log.Info("control server back", "control", s.config.serverName(), "job", s.job.Name, "member",
			s.joined.Member)
	case fabric.Closed:
		s.fail(fmt.Errorf("%w: %s: the connection has ended", ErrServerLost, s.config.serverName()))
	}
}

// keepTime is a goroutine of the session, beside keepReports: it drives the windows, sends heartbeats, and ends the
// session when the server or the coordinator has been silent for too long.
func (s *membership) keepTime() {
	defer s.clock.Done()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	var sent time.Time // the last heartbeat
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			now := time.Now() // the tick may be an old one, where this process had no processor
			s.excusePause(now)
			err := s.checkSilence(now)
			if err == nil {
				err = s.tickHeartbeat(now, &sent)
			}
			if s.reducer != nil {
				s.reducer.tick()
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
