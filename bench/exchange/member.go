package exchange

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

const (
	retryAfter     = time.Second
	heartbeatEvery = time.Second
)

// member is a trainer as small as the protocol allows: it contributes, and of the results takes only the close of the
// sparse rounds, which says that a batch is complete. It asks for other results, or for rows, only when told to.
type member struct {
	spec     *spec
	job      *schema.Job
	place    *schema.Placement
	joined   schema.Joined
	joiner   *fabric.Conn
	conn     *fabric.Conn
	outboxes []*fabric.Outbox // by shard
	sent     []uint64         // by shard
	rows     []*schema.Frame  // by shard: the sparse contribution, which is empty
	lookup   []*schema.Frame  // by shard: a request for one row
	batch    schema.Batch
	again    int // frames sent again, as resent last counted

	control chan schema.Control
	closed  chan closedRound  // sparse rounds
	replies chan *schema.View // pulled results, rows, and refusals of what asked for them
	opened  chan *schema.View // rows of the next version, by which it is known that a batch is complete
	failed  chan error        // has room for one
	wait    sync.WaitGroup
	cancel  context.CancelFunc
}

type closedRound struct {
	batch schema.Batch
	shard int
}

func newMember(s *spec) *member {
	return &member{spec: s, job: s.Job, control: make(chan schema.Control, 16), closed: make(chan closedRound, 256),
		replies: make(chan *schema.View, 16), opened: make(chan *schema.View, 16), failed: make(chan error, 1),
		cancel: func() {}}
}

// connect joins the job and returns when it has started.
func (m *member) connect(ctx context.Context, url string) error {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	joiner, job := "j-"+hex.EncodeToString(random[:]), string(m.job.Name)
	var err error
	if m.joiner, err = fabric.Dial(ctx, fabric.Config{URL: url, Name: job + "/" + joiner}); err != nil {
		return err
	}
	if err := m.joiner.Subscribe(fabric.Pattern(job, string(schema.Coordinator), fabric.KindCtl, joiner, false),
		m.receive); err != nil {
		return err
	}
	// The place is asked for by index, so that a member knows which values are its.
	request, err := schema.EncodeControl(schema.Head{Lanes: uint16(m.job.Lanes)},
		schema.Control{Join: &schema.Join{Job: m.job, Wanted: schema.TrainerMember(m.spec.Index), Host: "psbench"}})
	if err != nil {
		return err
	}
	to := fabric.At(job, joiner, fabric.KindCtl, string(schema.Coordinator))
	ask := func() error { return m.joiner.Send(to, request) }
	first, err := fabric.Ask(ctx, retryAfter, ask, m.control)
	if err != nil {
		return err
	}
	if first.Joined == nil {
		return fmt.Errorf("join job %s: %+v", job, first)
	}
	m.joined = *first.Joined
	if err := m.listen(ctx, url); err != nil {
		return err
	}
	for started := m.joined.Started; !started; {
		c, err := fabric.Ask(ctx, 50*time.Millisecond, ask, m.control)
		if err != nil {
			return err
		}
		if c.Failed != nil || c.Refused != nil {
			return fmt.Errorf("job %s does not start: %+v %+v", job, c.Failed, c.Refused)
		}
		started = c.Start != nil || c.Joined != nil && c.Joined.Started
	}
	return nil
}

// listen connects under the member's name.
func (m *member) listen(ctx context.Context, url string) error {
	job, me, shards := string(m.job.Name), string(m.joined.Member), m.joined.Shards
	m.place = schema.NewPlacement(m.job, shards)
	var err error
	if m.conn, err = fabric.Dial(ctx, fabric.Config{URL: url, Name: job + "/" + me}); err != nil {
		return err
	}
	patterns := []string{fabric.Pattern(job, fabric.Any, fabric.Any, me, false),
		fabric.Pattern(job, fabric.Any, fabric.KindMean, me, true),
		fabric.Pattern(job, fabric.Any, fabric.KindRows, me, true),
		fabric.Pattern(job, string(schema.Coordinator), fabric.Any, string(schema.All), false)}
	for shard := range shards {
		closes := fabric.Pattern(job, string(schema.ShardMember(shard)), fabric.KindMean, string(schema.All), false)
		patterns = append(patterns, fmt.Sprintf("%s.*.%d", closes, m.place.SparseBucket(shard)))
		f, err := schema.NewFrame(schema.Layout{Kind: schema.KindSparse, DType: schema.DTypeFloat32})
		if err != nil {
			return err
		}
		m.rows, m.sent = append(m.rows, f), append(m.sent, 0)
		if f, err = m.newLookup(shard, 1); err != nil {
			return err
		}
		m.lookup = append(m.lookup, f)
		m.outboxes = append(m.outboxes, fabric.NewOutbox(fabric.OutboxConfig{
			Envelope: schema.Envelope{}, BytesMax: m.spec.WindowBytes, Publish: m.conn.SendInPlace}))
	}
	for _, pattern := range patterns {
		if err := m.conn.Subscribe(pattern, m.receive); err != nil {
			return err
		}
	}
	ctx, m.cancel = context.WithCancel(ctx)
	m.wait.Go(func() { tick(ctx, m.outboxes...) })
	m.wait.Go(func() { m.heartbeat(ctx) })
	return nil
}

func (m *member) heartbeat(ctx context.Context) {
	frame, err := schema.NewFrame(schema.Layout{Kind: schema.KindHeartbeat})
	if err != nil {
		m.fail(err)
		return
	}
	frame.SetHead(m.head(0))
	subject := m.subject(fabric.KindHeartbeat, string(schema.All))
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := m.conn.Send(subject, frame.Seal()); err != nil {
				m.fail(err)
			}
		}
	}
}

func (m *member) fail(err error) {
	select {
	case m.failed <- err:
	default:
	}
}

// receive takes everything that comes. The waiting caller keeps the bytes of a reply.
func (m *member) receive(msg fabric.Message) {
	keep := false
	defer func() {
		if !keep {
			msg.Release()
		}
	}()
	at, err := msg.Parse()
	if err != nil {
		return
	}
	v, err := schema.Verify(msg.Data, schema.Limits{})
	if err != nil {
		m.fail(fmt.Errorf("%s: %w", msg.Text(), err))
		return
	}
	h := v.Head()
	switch h.Kind {
	case schema.KindControl:
		m.controlMessage(&v)
	case schema.KindAck:
		if a, ok := v.Ack(); ok {
			if shard, ok := m.shardOf(at.From); ok {
				if err := m.outboxes[shard].Ack(fabric.Ack(a)); err != nil {
					m.fail(err)
				}
			}
		}
	case schema.KindMean:
		shard, ok := m.shardOf(at.From)
		if ok && at.To == string(schema.All) && h.Bucket == m.place.SparseBucket(shard) {
			m.closed <- closedRound{h.Batch, shard}
			return
		}
		keep = true
		m.reply(&v)
	case schema.KindRows:
		keep = true
		m.reply(&v)
	case schema.KindRefusal:
		keep = true
		m.refused(at.From, &v)
	}
}

func (m *member) reply(v *schema.View) {
	to := m.replies
	if h := v.Head(); h.Kind != schema.KindMean && h.Chunks == 1 {
		to = m.opened
	}
	select {
	case to <- v:
	default: // late: no caller waits for it
	}
}

func (m *member) controlMessage(v *schema.View) {
	c, err := schema.DecodeControl(v)
	if err != nil {
		m.fail(err)
		return
	}
	if c.Failed != nil {
		m.fail(fmt.Errorf("job %s failed: %s", m.job.Name, c.Failed.Text))
	}
	select {
	case m.control <- c:
	default: // no caller waits for it
	}
}

// refused passes on a refusal of what was asked for early or late, since it answers just as well; any other is a fault.
func (m *member) refused(from string, v *schema.View) {
	r, err := schema.DecodeRefusal(v)
	switch {
	case err != nil:
		m.fail(err)
	case r.Reason == schema.ReasonDuplicate.String():
	case (r.Reason == schema.ReasonStaleBatch.String() || r.Reason == schema.ReasonEarlyBatch.String()) &&
		v.Head().Node.Count == 0:
		m.reply(v)
	default:
		m.fail(fmt.Errorf("%s refused batch %d bucket %d chunk %d: %s: %s", from, v.Head().Batch, v.Head().Bucket,
			v.Head().Chunk, r.Reason, r.Text))
	}
}

func (m *member) shardOf(from string) (int, bool) {
	for i := range m.outboxes {
		if from == string(schema.ShardMember(i)) {
			return i, true
		}
	}
	return 0, false
}

func (m *member) head(b schema.Batch) schema.Head {
	return schema.Head{Job: m.joined.RunID, Generation: m.joined.Generation, Batch: b, Lanes: uint16(m.job.Lanes)}
}

// contribution is the head of a contribution.
func (m *member) contribution(b schema.Batch) schema.Head {
	h := m.head(b)
	if m.spec.WindowBytes < int(cmp.Or(m.joined.WindowBytes, fabric.WindowBytesDefault)) {
		h.Flags = schema.FlagNarrow
	}
	return h
}

func (m *member) subject(kind, to string) fabric.Subject {
	return fabric.At(string(m.job.Name), string(m.joined.Member), kind, to)
}

// send seals a contribution and sends it to the shard that owns its bucket.
func (m *member) send(ctx context.Context, kind string, shard int, h *schema.Head, f *schema.Frame) error {
	subject := m.subject(kind, string(schema.ShardMember(shard))).WithBucket(uint64(h.Batch), uint32(h.Bucket))
	f.Seal()
	if err := m.outboxes[shard].Send(ctx, subject, fabric.NewPayload(f.Room())); err != nil {
		return err
	}
	m.sent[shard]++
	return nil
}

// finish sends the empty sparse contributions of a batch and waits until its rounds have closed everywhere. weight is
// the member's number of samples.
func (m *member) finish(ctx context.Context, weight float64) error {
	for shard, f := range m.rows {
		h := m.contribution(m.batch)
		h.Bucket, h.Chunks, h.Weight = m.place.SparseBucket(shard), 1, weight
		h.Node.First, h.Node.Count = m.joined.FirstLane, uint16(m.joined.LaneCount)
		f.SetHead(h)
		if err := m.send(ctx, fabric.KindSparse, shard, &h, f); err != nil {
			return err
		}
	}
	for range m.rows {
		select {
		case c := <-m.closed:
			if c.batch != m.batch {
				return fmt.Errorf("batch %d has closed on shard %d: want batch %d", c.batch, c.shard, m.batch)
			}
		case err := <-m.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for shard := range m.lookup {
		if err := m.open(ctx, shard); err != nil {
			return err
		}
	}
	m.batch++
	for shard, o := range m.outboxes { // what has closed has arrived, whether or not the ack has
		if err := o.Ack(fabric.Ack{Cumulative: m.sent[shard]}); err != nil {
			return err
		}
		if err := o.Drained(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open waits until a shard answers for the next version, which it does once every round of the batch has closed.
func (m *member) open(ctx context.Context, shard int) error {
	const pause = 2 * time.Millisecond
	f, next := m.lookup[shard], m.batch+1
	h := m.head(next)
	h.Chunks = 1
	f.SetHead(h)
	to := m.subject(fabric.KindLookup, string(schema.ShardMember(shard))).WithBatch(uint64(next))
	for {
		v, err := m.ask(ctx, m.opened, to, f.Seal(), func(v *schema.View) bool { return v.Head().Batch == next })
		if err != nil || v.Head().Kind == schema.KindRows {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// newLookup is a request for the first rows of a shard.
func (m *member) newLookup(shard, rows int) (*schema.Frame, error) {
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindLookup, Keys: rows, Sections: 1})
	if err != nil {
		return nil, err
	}
	f.SetSection(0, schema.Section{Table: 0, Dim: askDim, Count: uint64(rows)})
	found := 0
	for key := uint64(0); key < askRows && found < rows; key++ {
		if m.place.OwnerOfKey(0, key) == shard {
			f.Keys()[found] = key
			found++
		}
	}
	if found < rows {
		return nil, fmt.Errorf("shard %d owns %d rows: want %d", shard, found, rows)
	}
	return f, nil
}

// resent counts the frames that were sent again since it was last called.
func (m *member) resent() int {
	before := m.again
	m.again = 0
	for _, o := range m.outboxes {
		s := o.Stats()
		m.again += int(s.Gaps + s.Timeout + s.Back)
	}
	return m.again - before
}

func (m *member) close() {
	m.cancel()
	for _, o := range m.outboxes {
		o.Close(errors.New("measure is over"))
	}
	for _, c := range []*fabric.Conn{m.joiner, m.conn} {
		if c != nil {
			c.Close()
		}
	}
	m.wait.Wait()
}
