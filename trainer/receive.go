package trainer

import (
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// receive is called for every message to this trainer, from one goroutine for each kind of address. What does not verify
// is counted and dropped: what it was meant to be will be asked for again.
func (s *Session) receive(m fabric.Message) {
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		s.faults.Add(1)
		s.config.Log.Warn("frame dropped", "subject", m.Text(), "err", err)
		return
	}
	subject, err := m.Parse()
	if err != nil || v.Head().Job != s.joined.RunID {
		return // of an earlier run of the same name
	}
	if err := s.dispatch(&subject, &v); err != nil {
		s.fail(err)
	}
}

func (s *Session) dispatch(subject *fabric.Subject, v *schema.View) error {
	h, from := v.Head(), subject.From
	switch h.Kind {
	case schema.KindControl:
		return s.control(from, v)
	case schema.KindBeat:
		s.hear(from)
		return nil
	}
	shard, ok := s.shards[from]
	if !ok {
		return nil
	}
	switch h.Kind {
	case schema.KindMean:
		return s.takeResult(shard, subject.To != string(schema.All), v)
	case schema.KindRows:
		if taker := s.rowsFor.Load(); taker != nil {
			return (*taker).take(shard, v)
		}
	case schema.KindAck:
		if a, ok := v.Ack(); ok {
			if err := s.links[shard].outbox.Ack(fabric.Ack(a)); err != nil {
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

// control takes a word of the coordinator's. Those that somebody may wait for go to the channel, whose reader wants the
// latest: it is never full but for words that nobody waits for.
func (s *Session) control(from string, v *schema.View) error {
	if from != string(schema.Coordinator) {
		return nil
	}
	s.hear(from)
	c, err := schema.DecodeControl(v)
	if err != nil {
		return fmt.Errorf("word of the coordinator: %w", err)
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
		if h.Node.Count > 0 || h.Batch < s.Version() {
			return nil // sent again because an ack was late
		}
	case schema.ReasonJobUnknown.String(), schema.ReasonForeignJob.String():
		s.disowned.CompareAndSwap(0, max(1, int64(s.since())))
		return nil
	case schema.ReasonNonFinite.String():
		r.Text += "; where the loss had been growing, a smaller learning rate helps"
	}
	what := fmt.Sprintf("batch %d bucket %d chunk %d", h.Batch, h.Bucket, h.Chunk)
	if h.Node.Count > 0 {
		what += fmt.Sprintf(" lanes %v", h.Node)
	}
	return fmt.Errorf("%w: %s: %s: %s: %s", ErrFrameRefused, from, what, r.Reason, r.Text)
}

const (
	// tickEvery is how often windows look for what was not acknowledged. They resend after 50 ms.
	tickEvery = 10 * time.Millisecond
	// graceOfCoordinator is added to the deadline for the coordinator's own silence, so that it speaks first.
	graceOfCoordinator = 2 * time.Second
)

// since is the time since the session was made, on the monotonic clock.
func (s *Session) since() time.Duration { return time.Since(s.epoch) }

// connectionChanged is told by fabric.
func (s *Session) connectionChanged(state fabric.State) {
	switch state {
	case fabric.Lost:
		s.lost.Store(max(1, int64(s.since())))
		s.config.Log.Warn("server lost", "server", s.config.Server, "job", s.job.Name, "member", s.joined.Member)
	case fabric.Back:
		s.lost.Store(0)
		s.config.Log.Info("server back", "server", s.config.Server, "job", s.job.Name, "member", s.joined.Member)
		for _, l := range s.links {
			if err := l.outbox.ResendAll(); err != nil {
				s.fail(fmt.Errorf("send to %s again: %w", l.member, err))
			}
		}
		select {
		case s.back <- struct{}{}:
		default:
		}
	case fabric.Closed:
		s.fail(fmt.Errorf("%w: %s: the connection has ended", ErrServerLost, s.config.Server))
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
		case now := <-tick.C:
			err := s.checkSilence()
			if err == nil && now.Sub(beat) >= s.config.BeatEvery {
				beat, err = now, s.sendBeat()
			}
			for _, l := range s.links {
				if err == nil {
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
	s.beat.SetHead(s.head(s.Version()))
	return s.publish(s.subject(fabric.KindBeat, schema.All), s.beat.Seal())
}

func (s *Session) checkSilence() error {
	if at := s.lost.Load(); at != 0 {
		if gone := s.since() - time.Duration(at); gone > s.config.BackWithin {
			return fmt.Errorf("%w: %s has been out of reach for %v, at batch %d of job %s", ErrServerLost, s.config.Server,
				gone.Round(100*time.Millisecond), s.Version(), s.job.Name)
		}
		return nil
	}
	if at := s.disowned.Load(); at != 0 && s.since()-time.Duration(at) > s.config.RetryAfter {
		return fmt.Errorf("%w: %s does not know this run of job %s any more, at batch %d: it was started anew, or has ended the job unheard",
			ErrServerLost, s.config.Server, s.job.Name, s.Version())
	}
	deadline := time.Duration(s.joined.DeadlineMS) * time.Millisecond
	if silent := s.since() - time.Duration(s.heard.Load()); silent > deadline+graceOfCoordinator {
		return fmt.Errorf("%w: the coordinator of job %s at %s has been silent for %v (deadline %v), at batch %d", ErrServerLost,
			s.job.Name, s.config.Server, silent.Round(time.Second), deadline, s.Version())
	}
	return nil
}
