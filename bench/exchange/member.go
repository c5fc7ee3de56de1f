package exchange

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
)

const (
	retryAfter     = time.Second
	heartbeatEvery = time.Second
)

// member is a trainer as small as the protocol allows: it contributes, and of the results takes only the close of the
// sparse rounds, which says that a batch is complete. It asks for other results, or for rows, only when told to. A
// trainer.Session cannot take its place: it applies every result, and answers no read before its batch is complete.
//
// A feeder has values for every dense chunk. An asker has none, and asks for rows of the version under way instead.
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
	chunks   []chunk          // of all dense buckets, in the order of the flat space
	pull     *schema.Frame
	request  *schema.Frame // of an asker
	asked    schema.Chunk  // number of its last request
	batch    schema.Batch
	again    int           // frames sent again, as resent last counted
	count    atomic.Uint64 // bytes contributed, or received for requests
	version  atomic.Uint64 // under way

	control chan schema.Control
	closed  chan closedRound  // sparse rounds
	replies chan *schema.View // pulled results, rows, and refusals of what asked for them
	opened  chan *schema.View // rows of the next version, by which it is known that a batch is complete
	ctx     context.Context   // ends with the member, or with the first failure, which is its cause
	fail    context.CancelCauseFunc
	wait    sync.WaitGroup
}

type closedRound struct {
	batch schema.Batch
	shard int
}

// chunk is one contribution to a dense bucket.
type chunk struct {
	shard    int
	head     schema.Head // without the batch
	element  int         // of the flat space: the buckets, one behind the other
	elements int
	frame    *schema.Frame
}

func newMember(ctx context.Context, s *spec) *member {
	m := &member{spec: s, job: s.Job, control: make(chan schema.Control, 16), closed: make(chan closedRound, 256),
		replies: make(chan *schema.View, 16), opened: make(chan *schema.View, 16)}
	m.ctx, m.fail = context.WithCancelCause(ctx)
	return m
}

func (m *member) order(_ context.Context, o order) (a answer, err error) {
	switch o.Op {
	case opConnect:
		if err = m.connect(o.URL); err == nil {
			err = m.build()
		}
	case opRun:
		a.Ran, err = m.run(o.Rounds)
	case opAsk:
		begin, stretch := time.Now(), time.Duration(o.Seconds*float64(time.Second))
		a.Ran, err = m.askUntil(func() bool { return time.Since(begin) >= stretch })
	default:
		err = errors.New("unknown order")
	}
	return a, err
}

func (m *member) bytes() uint64 { return m.count.Load() }

// connect joins the job and returns when it has started.
func (m *member) connect(url string) error {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	joiner, job := "j-"+hex.EncodeToString(random[:]), string(m.job.Name)
	var err error
	if m.joiner, err = fabric.Dial(m.ctx, fabric.Config{URL: url, Name: job + "/" + joiner}); err != nil {
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
	first, err := fabric.Ask(m.ctx, retryAfter, ask, m.control)
	if err != nil {
		return err
	}
	if first.Joined == nil {
		return fmt.Errorf("join job %s: %+v", job, first)
	}
	m.joined = *first.Joined
	if err := m.listen(url); err != nil {
		return err
	}
	for started := m.joined.Started; !started; {
		c, err := fabric.Ask(m.ctx, 50*time.Millisecond, ask, m.control)
		if err != nil {
			return err
		}
		if c.Ended != nil || c.Refused != nil {
			return fmt.Errorf("job %s does not start: %+v %+v", job, c.Ended, c.Refused)
		}
		started = c.Start != nil || c.Joined != nil && c.Joined.Started
	}
	return nil
}

// listen connects under the member's name.
func (m *member) listen(url string) error {
	job, me, shards := string(m.job.Name), string(m.joined.Member), m.joined.Shards
	m.place = schema.NewPlacement(m.job, shards)
	var err error
	if m.conn, err = fabric.Dial(m.ctx, fabric.Config{URL: url, Name: job + "/" + me}); err != nil {
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
	m.wait.Go(func() { tick(m.ctx, m.outboxes...) })
	m.wait.Go(m.heartbeat)
	return nil
}

func (m *member) heartbeat() {
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
		case <-m.ctx.Done():
			return
		case <-ticker.C:
			if err := m.conn.Send(subject, frame.Seal()); err != nil {
				m.fail(err)
			}
		}
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
	if c.Ended != nil {
		m.fail(fmt.Errorf("job %s failed: %s", m.job.Name, c.Ended.Text))
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
	h.Node = lane.Node{First: m.joined.FirstLane, Count: uint16(m.joined.LaneCount)}
	if m.spec.WindowBytes < int(cmp.Or(m.joined.WindowBytes, fabric.WindowBytesDefault)) {
		h.Flags = schema.FlagNarrow
	}
	return h
}

func (m *member) subject(kind, to string) fabric.Subject {
	return fabric.At(string(m.job.Name), string(m.joined.Member), kind, to)
}

// send seals a contribution and sends it to the shard that owns its bucket.
func (m *member) send(kind string, shard int, h *schema.Head, f *schema.Frame) error {
	subject := m.subject(kind, string(schema.ShardMember(shard))).WithBucket(uint64(h.Batch), uint32(h.Bucket))
	f.Seal()
	if err := m.outboxes[shard].Send(m.ctx, subject, fabric.NewPayload(f.Room())); err != nil {
		return err
	}
	m.sent[shard]++
	return nil
}

// finish sends the empty sparse contributions of a batch and waits until its rounds have closed everywhere.
func (m *member) finish() error {
	for shard, f := range m.rows {
		h := m.contribution(m.batch)
		h.Bucket, h.Chunks, h.Weight = m.place.SparseBucket(shard), 1, m.weight()
		f.SetHead(h)
		if err := m.send(fabric.KindSparse, shard, &h, f); err != nil {
			return err
		}
	}
	for range m.rows {
		select {
		case c := <-m.closed:
			if c.batch != m.batch {
				return fmt.Errorf("batch %d has closed on shard %d: want batch %d", c.batch, c.shard, m.batch)
			}
		case <-m.ctx.Done():
			return context.Cause(m.ctx)
		}
	}
	for shard := range m.lookup {
		if err := m.open(shard); err != nil {
			return err
		}
	}
	m.batch++
	m.version.Store(uint64(m.batch))
	for shard, o := range m.outboxes { // what has closed has arrived, whether or not the ack has
		if err := o.Ack(fabric.Ack{Cumulative: m.sent[shard]}); err != nil {
			return err
		}
		if err := o.Drained(m.ctx); err != nil {
			return err
		}
	}
	return nil
}

// open waits until a shard answers for the next version, which it does once every round of the batch has closed.
func (m *member) open(shard int) error {
	const pause = 2 * time.Millisecond
	f, next := m.lookup[shard], m.batch+1
	h := m.head(next)
	h.Chunks = 1
	f.SetHead(h)
	to := m.subject(fabric.KindLookup, string(schema.ShardMember(shard))).WithBatch(uint64(next))
	for {
		v, err := m.ask(m.opened, to, f.Seal(), func(v *schema.View) bool { return v.Head().Batch == next })
		if err != nil || v.Head().Kind == schema.KindRows {
			return err
		}
		if err := sleep(m.ctx, pause); err != nil {
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
	m.fail(errors.New("measure is over"))
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

// ask publishes a request, again every second, until something comes that answers it.
func (m *member) ask(from <-chan *schema.View, to fabric.Subject, request []byte,
	answers func(*schema.View) bool) (*schema.View, error) {
	for len(from) > 0 { // answers to what was asked twice
		<-from
	}
	for {
		v, err := fabric.Ask(m.ctx, retryAfter, func() error { return m.conn.Send(to, request) }, from)
		if err != nil || answers(v) {
			return v, err
		}
	}
}

// feeds reports whether the member has values.
func (m *member) feeds() bool { return m.spec.Role == roleFeeder }

// weight is the member's number of samples.
func (m *member) weight() float64 {
	if m.feeds() {
		return 1
	}
	return 0
}

// build makes a frame for every chunk, with the values that stay the same.
func (m *member) build() (err error) {
	element := 0
	for _, b := range m.place.Buckets {
		chunks := m.place.Chunks(b.ID)
		for i := range chunks {
			offset, elements := m.place.ChunkRange(b.ID, schema.Chunk(i))
			h := m.contribution(0)
			h.Bucket, h.Chunk, h.Chunks, h.Offset, h.Weight = b.ID, schema.Chunk(i), schema.Chunk(chunks), uint64(offset),
				m.weight()
			c := chunk{m.place.OwnerOfChunk(b.ID, h.Chunk), h, element + offset, elements, nil}
			layout := schema.Layout{Kind: schema.KindDense, DType: schema.DTypeFloat32}
			if m.feeds() {
				layout.Values = elements * 4
			}
			if c.frame, err = schema.NewFrame(layout); err != nil {
				return err
			}
			for i := range c.frame.Float32s() {
				c.frame.Float32s()[i] = pattern(m.spec.Index, c.element+i)
			}
			m.chunks = append(m.chunks, c)
		}
		element += b.Elements
	}
	if m.pull, err = schema.NewFrame(schema.Layout{Kind: schema.KindPull}); err == nil && !m.feeds() {
		m.request, err = m.newLookup(0, askKeys)
	}
	return err
}

// run takes part in a number of batches. An asker asks all the while.
func (m *member) run(batches int) (r *ran, err error) {
	if m.feeds() {
		r, err = m.contribute(batches)
	} else {
		through := make(chan struct{})
		go func() {
			defer close(through)
			if _, err := m.contribute(batches); err != nil {
				m.fail(err)
			}
		}()
		r, err = m.askUntil(func() bool { // the goroutine ends with the batches, or with ctx
			select {
			case <-through:
				return true
			default:
				return false
			}
		})
		if err != nil {
			m.fail(err)
		}
		<-through
		err = cmp.Or(err, context.Cause(m.ctx))
	}
	if err != nil {
		return nil, err
	}
	r.Again = m.resent()
	return r, nil
}

// contribute contributes to a number of batches. After the first and the last one the first feeder asks for every sum
// and compares it.
func (m *member) contribute(batches int) (*ran, error) {
	checks := m.feeds() && m.spec.Index == 0
	r := &ran{Count: batches}
	begin := time.Now()
	for i := range batches {
		if err := m.round(); err != nil {
			return nil, fmt.Errorf("batch %d: %w", m.batch, err)
		}
		if i == batches-1 {
			r.Seconds = time.Since(begin).Seconds()
		}
		if checks && (m.batch == 1 || i == batches-1) {
			n, err := m.check(m.batch - 1)
			if err != nil {
				return nil, fmt.Errorf("check batch %d: %w", m.batch-1, err)
			}
			r.Checked += n
		}
	}
	return r, nil
}

// round contributes to one batch, in the order of the flat space as all trainers do.
func (m *member) round() error {
	for i := range m.chunks {
		c := &m.chunks[i]
		if m.feeds() {
			c.frame.Float32s()[0] = stamp(m.batch)
			m.count.Add(uint64(len(c.frame.Values())))
		}
		h := c.head
		h.Batch = m.batch
		c.frame.SetHead(h)
		if err := m.send(fabric.KindDense, c.shard, &h, c.frame); err != nil {
			return err
		}
	}
	return m.finish()
}

// check pulls the result of every chunk of a complete batch, one after the other, and compares every value.
func (m *member) check(b schema.Batch) (values int, err error) {
	for i := range m.chunks {
		c := &m.chunks[i]
		h := m.head(b)
		h.Bucket, h.Chunk, h.Chunks = c.head.Bucket, c.head.Chunk, c.head.Chunk+1
		m.pull.SetHead(h)
		to := m.subject(fabric.KindPull, string(schema.ShardMember(c.shard)))
		v, err := m.ask(m.replies, to, m.pull.Seal(), func(v *schema.View) bool {
			got := v.Head()
			return got.Kind == schema.KindMean && got.Batch == b && got.Bucket == h.Bucket && got.Chunk == h.Chunk
		})
		if err != nil {
			return 0, err
		}
		if err := m.compare(c, b, v); err != nil {
			return 0, err
		}
		values += c.elements
	}
	return values, nil
}

func (m *member) compare(c *chunk, b schema.Batch, v *schema.View) error {
	got, feeders := v.Float32s(), m.spec.Feeders
	wrong := func(what string, got, want any) error {
		return fmt.Errorf("bucket %d chunk %d: %s %v: want %v", c.head.Bucket, c.head.Chunk, what, got, want)
	}
	if len(got) != c.elements {
		return wrong("values", len(got), c.elements)
	}
	if w := v.Head().Weight; w != float64(feeders) {
		return wrong("weight", w, feeders)
	}
	for i, x := range got {
		want := mean(feeders, c.element+i)
		if i == 0 {
			want = stamp(b)
		}
		if x != want {
			return wrong(fmt.Sprintf("element %d: mean", i), x, want)
		}
	}
	return nil
}

// askUntil asks for two rows again and again, one request after the other, at least once.
func (m *member) askUntil(done func() bool) (*ran, error) {
	to := m.subject(fabric.KindLookup, string(schema.ShardMember(0)))
	times := make([]float64, 0, 1<<16)
	begin := time.Now()
	for first := true; first || !done(); first = false {
		b := schema.Batch(m.version.Load())
		m.asked = (m.asked + 1) % schema.ChunksMax
		h := m.head(b)
		h.Chunk, h.Chunks = m.asked, schema.ChunksMax
		m.request.SetHead(h)
		sent := time.Now()
		v, err := m.ask(m.replies, to.WithBatch(uint64(b)), m.request.Seal(),
			func(v *schema.View) bool { return v.Head().Chunk == m.asked })
		if err != nil {
			return nil, err
		}
		times = append(times, time.Since(sent).Seconds())
		if v.Head().Kind == schema.KindRows && len(v.Float32s()) != askKeys*askDim {
			return nil, fmt.Errorf("%d values in an answer: want %d", len(v.Float32s()), askKeys*askDim)
		}
		m.count.Add(16)
	}
	r := summary(times)
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}

// summary sorts times in seconds and gives their middle and their 99th percentile.
func summary(times []float64) *ran {
	slices.Sort(times)
	r := &ran{Count: len(times)}
	if n := len(times); n > 0 {
		r.P50, r.P99 = times[n/2], times[min(n-1, n*99/100)]
	}
	return r
}
