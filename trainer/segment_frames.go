package trainer

import (
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
)

// refusalsPerSecond bounds what a segment says about bad frames, so that a flood of them costs its sender's line alone.
const refusalsPerSecond = 100

// frameBytesOver bounds what a frame has besides its values.
const frameBytesOver = 1 << 10

// contributor is the receiving side of another trainer's window.
type contributor struct {
	inbox   *fabric.Inbox
	ack     *schema.Frame
	subject fabric.Subject
	speaks  schema.Batch  // the latest batch that it has begun, or asked for
	due     bool          // something came that has to be acknowledged
	now     bool          // at once: something is missing, or came again
	since   time.Duration // when the first of it came, by segment.clock
	frames  int           // of it
	bytes   int           // of these
	unsaid  int           // bytes given back that no ack has carried yet
}

// stagedBytes is the budget for open rounds on one trainer: enough for the share of every other one to hold what it may
// send before it hears of its window, and one chunk of each of its nodes, which close together.
func stagedBytes(job *schema.Job) int64 {
	share := int64(2 * fabric.WindowBytesDefault)
	for _, h := range round.HostsOf(job) {
		nodes := len(lane.Nodes(h.First, h.Count, job.Lanes))
		share = max(share, int64(nodes)*int64(job.ChunkBytes+frameBytesOver))
	}
	return max(segmentBytesMax, int64(job.Trainers)*share)
}

func (g *segment) makeSenders() error {
	g.stagedMax = stagedBytes(g.job)
	share := uint64(g.stagedMax) / uint64(len(g.hosts))
	for _, h := range g.hosts {
		ack, err := schema.NewFrame(schema.Layout{Kind: schema.KindAck})
		if err != nil {
			return fmt.Errorf("build ack: %w", err)
		}
		g.senders = append(g.senders, contributor{inbox: fabric.NewInbox(share), ack: ack, subject: g.subject(fabric.KindAck, h.Member)})
	}
	return nil
}

// receive takes a message that came in at the data server. It does not wait for anything but the other goroutine that
// adds up.
func (g *segment) receive(m fabric.Message) {
	subject, err := m.Parse()
	if err != nil {
		g.note(func(n *segmentCounts) { n.refused++ })
		m.Release()
		return
	}
	kept, head, refused := g.read(&subject, &m)
	if !kept {
		m.Release()
	}
	if refused != nil {
		g.refuse(&subject, head, refused)
	}
}

// read verifies a message and takes its frame. kept says that its bytes stay with the segment.
func (g *segment) read(subject *fabric.Subject, m *fabric.Message) (kept bool, head schema.Head, refused *schema.FrameError) {
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		return false, head, schema.Refusing(err)
	}
	head = v.Head()
	host := g.hostOf(subject.From)
	wanted := fabric.KindReduce
	switch head.Kind {
	case schema.KindDense, schema.KindSparse:
	case schema.KindPull:
		wanted = fabric.KindPull
	default:
		return false, head, schema.Refuse(schema.ReasonUnknownKind, "a trainer takes no frames of kind %v from another", head.Kind)
	}
	if subject.Kind != wanted {
		return false, head, schema.Refuse(schema.ReasonMalformed, "%v frame on a subject of kind %s", head.Kind, subject.Kind)
	}
	if host < 0 || host == g.self {
		return false, head, schema.Refuse(schema.ReasonUnknownSender, "%s is not another trainer of job %s", subject.From, g.job.Name)
	}
	if err := v.CheckJob(g.joined.RunID, g.joined.Generation); err != nil {
		return false, head, schema.Refusing(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.knows(&g.senders[host], head.Batch)
	if head.Kind == schema.KindPull {
		return false, head, g.takePull(g.hosts[host].Member, &head, &v)
	}
	kept, refused, err = g.take(host, &head, &v, m.Lease())
	if err != nil {
		g.fail(fmt.Errorf("segment of %s: %w", g.joined.Member, err))
	}
	g.acknowledge()
	return kept, head, refused
}

// take passes a contribution through its sender's window.
func (g *segment) take(host int, h *schema.Head, v *schema.View, p round.Payload) (kept bool, refused *schema.FrameError, err error) {
	if h.Sequence == 0 {
		return false, schema.Refuse(schema.ReasonMalformed, "%v frame without a sequence number", h.Kind), nil
	}
	c := &g.senders[host]
	if !c.due {
		c.due, c.since = true, time.Since(g.epoch)
	}
	bytes := len(v.Bytes())
	c.frames, c.bytes = c.frames+1, c.bytes+bytes
	fresh, ok := c.inbox.AcceptBytes(uint64(h.Sequence), bytes)
	c.now = c.now || !fresh || c.inbox.Ack().Cumulative < uint64(h.Sequence)
	switch {
	case !fresh && ok:
		g.counts.repeated++
		return false, nil, nil
	case !fresh:
		g.counts.dropped++ // beyond the window: it will come again, unless it never fits
		return false, g.checkShare(host, h, int64(bytes)), nil
	}
	if h.Kind == schema.KindDense {
		kept, refused, err = g.takeDense(host, h, v, p)
	} else {
		kept, refused, err = g.takeSparse(host, h, v, p)
	}
	switch {
	case refused == nil:
		g.counts.taken++
	case refused.Reason == schema.ReasonDuplicate:
		g.counts.repeated++
		refused = nil
	}
	return kept, refused, err
}

// An ack costs two processes some 30 us, and who has gone on to the next batch needs none: it has all results. So an ack
// stands for many frames, and waits a while, if nothing is missing; windows count on that wait.
const (
	acknowledgeBytes  = fabric.WindowBytesDefault / 4
	acknowledgeFrames = 32
	acknowledgeAfter  = fabric.AckDelayMax - tickEvery
)

// knows is told the batch that another trainer speaks of: it has all results of those before.
func (g *segment) knows(c *contributor, b schema.Batch) {
	if b <= c.speaks {
		return
	}
	if c.speaks = b; !c.now {
		c.due, c.frames, c.bytes = false, 0, 0
	}
}

// tick sends the acks that have waited for long enough. It is called every tickEvery.
func (g *segment) tick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.own != nil {
		g.acknowledge()
	}
}

// acknowledge tells every other trainer what has come in, and what of it is no longer held, where that is worth a message.
func (g *segment) acknowledge() {
	for i := range g.senders {
		c := &g.senders[i]
		if back := int(c.inbox.HeldBytes()) - int(g.held.Of(i)); back > 0 && i != g.self {
			c.inbox.Free(back)
			c.unsaid += back
		}
		worth := c.now || c.bytes >= acknowledgeBytes || c.frames >= acknowledgeFrames || c.unsaid >= acknowledgeBytes
		if !worth && (!c.due || time.Since(g.epoch)-c.since < acknowledgeAfter) {
			continue
		}
		c.due, c.now, c.frames, c.bytes, c.unsaid = false, false, 0, 0, 0
		c.ack.SetHead(schema.Head{Job: g.joined.RunID, Generation: g.joined.Generation, Batch: g.batch, Lanes: uint16(g.job.Lanes)})
		c.ack.SetAck(schema.Ack(c.inbox.Ack()))
		g.own.publish(c.subject, c.ack.Seal())
	}
}

func (g *segment) hostOf(from string) int {
	for i := range g.hosts {
		if string(g.hosts[i].Member) == from {
			return i
		}
	}
	return -1
}

// refuse counts a refusal and tells the sender, unless others were told too often this second.
func (g *segment) refuse(subject *fabric.Subject, head schema.Head, r *schema.FrameError) {
	allowed := false
	g.note(func(n *segmentCounts) {
		n.refused++
		allowed = g.limit.Allow(time.Now())
	})
	if !allowed {
		return
	}
	frame, err := schema.EncodeRefusal(head, r.Reason, r.Detail)
	if err != nil {
		g.fail(fmt.Errorf("encode refusal: %w", err))
		return
	}
	g.own.publish(g.subject(fabric.KindCtl, schema.Member(subject.From)), frame)
}

func (g *segment) note(add func(*segmentCounts)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	add(&g.counts)
}
