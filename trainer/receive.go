package trainer

import (
	"fmt"
	"strconv"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// receiver takes the messages of one run, and passes each frame to the part of the trainer that waits for it.
type receiver struct {
	*connection
	exchange    *exchanging
	results     *results
	share       *share
	lr          *learningRates
	modules     *modules
	takeovers   *takeovers
	checkpoints *checkpoints
}

// receive is called for every message of an owner to this trainer, from one goroutine for each connection of each
// server. It counts and drops frames that fail verification; what they contained is requested again. It releases
// messages at once, except rows that a scan keeps.
func (r *receiver) receive(m fabric.Message) {
	retained := false
	if at, err := m.Parse(); err == nil && at.Kind == fabric.KindRows && r.keepsRows() {
		m.Keep()
	}
	if v, subject, ok := r.open(&m); ok {
		if owner, ok := r.owners[subject.From]; ok { // if it is the same server, the coordinator is heard here too
			var err error
			if retained, err = r.dispatch(owner, &subject, &v); err != nil {
				r.fail(err)
			}
		}
	}
	if !retained {
		m.Release()
	}
}

// receiveControl is called for every message of the coordinator.
func (r *receiver) receiveControl(m fabric.Message) {
	v, subject, ok := r.open(&m)
	if !ok {
		return
	}
	from := subject.From
	var err error
	switch v.Head().Kind {
	case schema.KindControl:
		err = r.takeControl(&subject, &v)
	case schema.KindHeartbeat:
		r.noteHeard(from)
		r.noteDurable(v.Head().Batch)
	case schema.KindRefusal:
		err = r.refused(from, &v)
	}
	if err != nil {
		r.fail(err)
	}
}

// keepsRows reports whether a scan is open, which keeps the messages with its rows.
func (r *receiver) keepsRows() bool {
	return get(r.exchange, func(x *exchange.Exchange) bool { return x.Open(rowsScanned) > 0 })
}

// dispatch passes a frame to the part that waits for it, and reports whether that keeps it.
func (r *receiver) dispatch(owner int, subject *fabric.Subject, v *schema.View) (retained bool, err error) {
	if subject.Kind == fabric.KindModule {
		return false, r.modules.takeModule(owner, subject, v)
	}
	if h := v.Head(); h.Kind == schema.KindRows || h.Kind == schema.KindAck {
		switch g := h.Generation; {
		case g > r.joined.Generation:
			return false, replacedBy(r.job.Name, fmt.Sprintf("%s answers %s of generation %d, and this one is of %d",
				subject.From, r.joined.Member, g, r.joined.Generation))
		case g < r.joined.Generation:
			return false, nil // it is for the previous owner of the slot
		}
	}
	if v.Head().Kind == schema.KindRows {
		return r.takeRows(owner, v)
	}
	return false, r.use(owner, subject, v)
}

// takeRows passes rows to the asker with their request number.
func (r *receiver) takeRows(owner int, v *schema.View) (retained bool, err error) {
	for who := exchange.Asker(0); who < rowAskers && !retained && err == nil; who++ {
		retained, err = r.exchange.take(who, owner, v, 0, 1)
	}
	return retained, err
}

// use handles a frame that nothing keeps.
func (r *receiver) use(owner int, subject *fabric.Subject, v *schema.View) error {
	from := subject.From
	switch v.Head().Kind {
	case schema.KindMean:
		return r.takeResult(owner, subject, v)
	case schema.KindAck:
		if a, ok := v.Ack(); ok && r.links[owner].outbox != nil {
			if err := r.links[owner].outbox.Ack(fabric.Ack(a)); err != nil {
				return fmt.Errorf("ack from %s: %w", from, err)
			}
		}
	case schema.KindRefusal:
		return r.refused(from, v)
	case schema.KindPull:
		return r.share.answerShard(owner, v)
	case schema.KindState:
		return r.share.takeResumed(owner, v)
	case schema.KindControl:
		if r.config.OnGroup == nil {
			return nil
		}
		switch c, err := schema.DecodeControl(v); {
		case err != nil:
			return fmt.Errorf("control from %s: %w", from, err)
		case c.Group != nil:
			r.config.OnGroup(*c.Group)
		}
	}
	return nil
}

// takeResult stores a result, and requests earlier ones that must have been lost.
func (r *receiver) takeResult(owner int, subject *fabric.Subject, v *schema.View) error {
	b := v.Head().Batch
	if r.results.grouped {
		b = schema.Batch(subject.Batch) // the group's trainers receive one frame
	}
	lost, err := r.results.take(owner, subject.To != string(schema.All), b, v)
	if err != nil {
		return err
	}
	return r.exchange.sendPulls(lost)
}

// takeControl handles a control message of the coordinator. Messages for which a goroutine waits go to the channel. It
// is never full, except of messages for which none waits.
func (r *receiver) takeControl(subject *fabric.Subject, v *schema.View) error {
	from := subject.From
	if from != string(schema.Coordinator) {
		return nil
	}
	r.noteHeard(from)
	c, err := schema.DecodeControl(v)
	if err != nil {
		return fmt.Errorf("word of the coordinator: %w", err)
	}
	switch {
	case c.LR != nil:
		return r.lr.takeLR(c.LR)
	case c.Start != nil && c.Start.Replica != "": // of a job that has started before
		r.setReplica(c.Start.Replica)
		return nil
	case c.Refused != nil && subject.To == string(schema.All): // it concerns a trainer for which this one waits
		r.config.Log.Warn("another trainer was refused", "job", r.job.Name, "member", r.joined.Member, "reason",
			c.Refused.Reason, "text", c.Refused.Text)
		return nil
	case c.Refused != nil && c.Refused.Reason == schema.RefusedLR:
		r.lr.refuse(c.Refused)
		return nil
	case c.Checkpoint != nil:
		r.checkpoints.take(c.Checkpoint.Version, nil)
		return nil
	case c.Refused != nil && c.Refused.Reason == schema.RefusedCheckpoint:
		r.checkpoints.take(0, c.Refused)
		return nil
	case c.Refused != nil && c.Refused.Reason == schema.RefusedReplaced:
		if c.Refused.Want != strconv.Itoa(int(r.joined.Generation)) {
			return nil // it is for the previous owner of the slot
		}
		return replacedBy(r.job.Name, c.Refused.Text)
	case c.Leave != nil:
		select {
		case r.leaveNow <- struct{}{}:
		default:
		}
		return nil
	case c.Joined != nil:
		r.takeovers.request(c.Joined)
		return nil
	case c.Stalled != nil:
		r.logStalled(c.Stalled)
		return nil
	}
	select {
	case r.controls <- c:
	default:
	}
	switch e := c.Ended; {
	case e == nil || e.End == schema.EndCompleted: // this trainer has left
		return nil
	case e.Back:
		return fmt.Errorf("%w: job %s: %s", errRunRestarts, r.job.Name, e.Text)
	case e.End == schema.EndStopped:
		return fmt.Errorf("%w: job %s: %s", errJobStopped, r.job.Name, e.Text)
	default:
		return fmt.Errorf("%w: job %s: %s", ErrJobFailed, r.job.Name, e.Text)
	}
}

// logStalled logs which trainer a batch waits for. The coordinator repeats the message rarely.
func (r *receiver) logStalled(t *schema.Stalled) {
	r.config.Log.Warn("batch waits for a trainer", "job", r.job.Name, "member", r.joined.Member, "batch", t.Batch,
		"waits_for", t.Member, "host", t.Host, "waited", time.Duration(t.WaitedMS)*time.Millisecond,
		"limit", time.Duration(t.LimitMS)*time.Millisecond)
}

// refused ends the session, since a shard never answers a frame that it refused. There are two exceptions. Refusals of
// late retransmissions are ignored. If the shard does not know the job, the coordinator has ended it, and its message
// with the reason may arrive later, or the server was restarted, and no message arrives.
func (r *receiver) refused(from string, v *schema.View) error {
	refusal, err := schema.DecodeRefusal(v)
	if err != nil {
		return fmt.Errorf("refusal from %s: %w", from, err)
	}
	h := v.Head()
	if h.Generation != 0 && h.Generation != r.joined.Generation {
		return nil // it concerns the previous or the next owner of the slot
	}
	switch refusal.Reason {
	case schema.ReasonDuplicate.String():
		return nil
	case schema.ReasonUnknownSender.String():
		if from == string(schema.Coordinator) { // this trainer was silent for too long before the start
			return replacedBy(r.job.Name, refusal.Text)
		}
	case schema.ReasonOldGeneration.String():
		return replacedBy(r.job.Name, from+": "+refusal.Text)
	case schema.ReasonStaleBatch.String():
		// A late retransmission: of a contribution whose ack was late, or of a lookup or pull that others have overtaken.
		// They could not have continued without this trainer's own contributions. A session that can train no more waits
		// for nothing else.
		if h.Node.Count > 0 || h.Batch < r.newest() || r.trainingErr() == nil &&
			get(r.exchange, func(x *exchange.Exchange) bool { return x.Began(h.Batch) }) {
			return nil
		}
	case schema.ReasonJobUnknown.String(), schema.ReasonForeignJob.String():
		if from == string(schema.Coordinator) {
			r.forgotten.Store(true)
		}
		r.watch.note(func() {
			if !r.watch.disowned.Lasts() {
				r.watch.disowned.Begin(time.Now())
			}
		})
		return nil
	}
	what := fmt.Sprintf("batch %d bucket %d chunk %d", r.job.Counted(h.Batch), h.Bucket, h.Chunk)
	if h.Node.Count > 0 {
		what += fmt.Sprintf(" lanes %v", h.Node)
	}
	return refusedFrame(from+": "+what, refusal.Reason, refusal.Text)
}
