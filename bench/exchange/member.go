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

// ask publishes a request, again every second, until something comes that answers it.
func (m *member) ask(ctx context.Context, from <-chan *schema.View, to fabric.Subject, request []byte,
	answers func(*schema.View) bool) (*schema.View, error) {
	for {
		if err := m.conn.Send(to, request); err != nil && !errors.Is(err, fabric.ErrLost) {
			return nil, err
		}
		late := time.NewTimer(retryAfter)
		v, err := m.answered(ctx, from, late.C, answers)
		late.Stop()
		if v != nil || err != nil {
			return v, err
		}
	}
}

// answered waits for an answer; nil says that it is late.
func (m *member) answered(ctx context.Context, from <-chan *schema.View, late <-chan time.Time,
	answers func(*schema.View) bool) (*schema.View, error) {
	for {
		select {
		case v := <-from:
			if answers(v) {
				return v, nil
			}
		case <-late:
			return nil, nil
		case err := <-m.failed:
			return nil, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// feeder contributes its values to every round of a job and takes no results but those it checks.
type feeder struct {
	*member
	rounds []feederRound
	count  atomic.Uint64
	pull   *schema.Frame
}

// feederRound is a dense chunk.
type feederRound struct {
	shard         int
	bucket        schema.Bucket
	chunk, chunks schema.Chunk
	offset        int // within the bucket
	element       int // of the flat space: the buckets, one behind the other
	elements      int
	frame         *schema.Frame
}

func newFeeder(s *spec) *feeder { return &feeder{member: newMember(s)} }

func (f *feeder) order(ctx context.Context, o order) (answer, error) {
	switch o.Op {
	case opConnect:
		if err := f.connect(ctx, o.URL); err != nil {
			return answer{}, err
		}
		return answer{}, f.build()
	case opRun:
		r, err := f.run(ctx, o.Rounds)
		return answer{Ran: r}, err
	}
	return answer{}, errors.New("unknown order")
}

// build makes a frame for every chunk, with the values that stay the same.
func (f *feeder) build() (err error) {
	element := 0
	for _, b := range f.place.Buckets {
		chunks := f.place.Chunks(b.ID)
		for c := range chunks {
			offset, elements := f.place.ChunkRange(b.ID, schema.Chunk(c))
			r := feederRound{shard: f.place.OwnerOfChunk(b.ID, schema.Chunk(c)), bucket: b.ID, chunk: schema.Chunk(c),
				chunks: schema.Chunk(chunks),
				offset: offset, element: element + offset, elements: elements}
			if r.frame, err = schema.NewFrame(schema.Layout{Kind: schema.KindDense, DType: schema.DTypeFloat32,
				Values: elements * 4}); err != nil {
				return err
			}
			for i := range elements {
				r.frame.Float32s()[i] = pattern(f.spec.Index, r.element+i)
			}
			f.rounds = append(f.rounds, r)
		}
		element += b.Elements
	}
	f.pull, err = schema.NewFrame(schema.Layout{Kind: schema.KindPull})
	return err
}

// run contributes to a number of batches. After the first and the last one the first feeder asks for every sum and
// compares it.
func (f *feeder) run(ctx context.Context, rounds int) (*ran, error) {
	checks := f.spec.Index == 0
	r := &ran{Count: rounds}
	begin := time.Now()
	for i := range rounds {
		if err := f.round(ctx); err != nil {
			return nil, fmt.Errorf("batch %d: %w", f.batch, err)
		}
		if i == rounds-1 {
			r.Seconds = time.Since(begin).Seconds()
		}
		if checks && (f.batch == 1 || i == rounds-1) {
			n, err := f.check(ctx, f.batch-1)
			if err != nil {
				return nil, fmt.Errorf("check batch %d: %w", f.batch-1, err)
			}
			r.Checked += n
		}
	}
	r.Again = f.resent()
	return r, nil
}

// round contributes to one batch, in the order of the flat space as all trainers do.
func (f *feeder) round(ctx context.Context) error {
	for i := range f.rounds {
		c := &f.rounds[i]
		c.frame.Float32s()[0] = stamp(f.batch)
		h := f.contribution(f.batch)
		h.Bucket, h.Chunk, h.Chunks, h.Offset, h.Weight = c.bucket, c.chunk, c.chunks, uint64(c.offset), 1
		h.Node = lane.Node{First: f.joined.FirstLane, Count: uint16(f.joined.LaneCount)}
		c.frame.SetHead(h)
		if err := f.send(ctx, fabric.KindDense, c.shard, &h, c.frame); err != nil {
			return err
		}
		f.count.Add(uint64(len(c.frame.Values())))
	}
	return f.finish(ctx, 1)
}

// check pulls the result of every chunk of a complete batch, one after the other, and compares every value.
func (f *feeder) check(ctx context.Context, b schema.Batch) (values int, err error) {
	for i := range f.rounds {
		c := &f.rounds[i]
		h := f.head(b)
		h.Bucket, h.Chunk, h.Chunks = c.bucket, c.chunk, c.chunk+1
		f.pull.SetHead(h)
		to := f.subject(fabric.KindPull, string(schema.ShardMember(c.shard)))
		v, err := f.ask(ctx, f.replies, to, f.pull.Seal(), func(v *schema.View) bool {
			got := v.Head()
			return got.Kind == schema.KindMean && got.Batch == b && got.Bucket == c.bucket && got.Chunk == c.chunk
		})
		if err != nil {
			return 0, err
		}
		if err := f.compare(c, b, v); err != nil {
			return 0, err
		}
		values += len(v.Float32s())
	}
	return values, nil
}

func (f *feeder) compare(c *feederRound, b schema.Batch, v *schema.View) error {
	got := v.Float32s()
	if len(got) != c.elements {
		return fmt.Errorf("bucket %d chunk %d: %d values: want %d", c.bucket, c.chunk, len(got), c.elements)
	}
	if w := v.Head().Weight; w != float64(f.spec.Feeders) {
		return fmt.Errorf("bucket %d chunk %d: weight %v: want %d", c.bucket, c.chunk, w, f.spec.Feeders)
	}
	for i, x := range got {
		want := mean(f.spec.Feeders, c.element+i)
		if i == 0 {
			want = stamp(b)
		}
		if x != want {
			return fmt.Errorf("bucket %d chunk %d element %d: mean %v: want %v", c.bucket, c.chunk, i, x, want)
		}
	}
	return nil
}

func (f *feeder) bytes() uint64 { return f.count.Load() }

// asker is a member of a job that has no samples: it contributes empty frames, and asks for rows of the version under
// way.
type asker struct {
	*member
	chunks  []*schema.Frame // empty contributions to the dense rounds, in their order
	heads   []schema.Head
	shards  []int
	request *schema.Frame
	count   atomic.Uint64
	version atomic.Uint64 // to ask for
	asked   schema.Chunk
}

func newAsker(s *spec) *asker { return &asker{member: newMember(s)} }

func (a *asker) order(ctx context.Context, o order) (answer, error) {
	switch o.Op {
	case opConnect:
		if err := a.connect(ctx, o.URL); err != nil {
			return answer{}, err
		}
		return answer{}, a.build()
	case opAsk:
		r, err := a.askFor(ctx, time.Duration(o.Seconds*float64(time.Second)))
		return answer{Ran: r}, err
	case opRun:
		r, err := a.run(ctx, o.Rounds)
		return answer{Ran: r}, err
	}
	return answer{}, errors.New("unknown order")
}

func (a *asker) build() (err error) {
	for _, b := range a.place.Buckets {
		chunks := a.place.Chunks(b.ID)
		for c := range chunks {
			offset, _ := a.place.ChunkRange(b.ID, schema.Chunk(c))
			f, err := schema.NewFrame(schema.Layout{Kind: schema.KindDense, DType: schema.DTypeFloat32})
			if err != nil {
				return err
			}
			h := a.head(0)
			h.Bucket, h.Chunk, h.Chunks, h.Offset = b.ID, schema.Chunk(c), schema.Chunk(chunks), uint64(offset)
			h.Node = lane.Node{First: a.joined.FirstLane, Count: uint16(a.joined.LaneCount)}
			a.chunks, a.heads, a.shards = append(a.chunks, f), append(a.heads, h),
				append(a.shards, a.place.OwnerOfChunk(b.ID, schema.Chunk(c)))
		}
	}
	a.request, err = a.newLookup(0, askKeys)
	return err
}

// askFor asks for the two rows again and again, one request after the other.
func (a *asker) askFor(ctx context.Context, stretch time.Duration) (*ran, error) {
	begin := time.Now()
	return a.askUntil(ctx, func() bool { return time.Since(begin) >= stretch })
}

func (a *asker) askUntil(ctx context.Context, done func() bool) (*ran, error) {
	to := a.subject(fabric.KindLookup, string(schema.ShardMember(0)))
	times := make([]float64, 0, 1<<16)
	begin := time.Now()
	for first := true; first || !done(); first = false {
		seconds, err := a.once(ctx, to)
		if err != nil {
			return nil, err
		}
		times = append(times, seconds)
		a.count.Add(16)
	}
	r := summary(times)
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}

func (a *asker) once(ctx context.Context, to fabric.Subject) (float64, error) {
	b := schema.Batch(a.version.Load())
	a.asked = (a.asked + 1) % schema.ChunksMax
	h := a.head(b)
	h.Chunk, h.Chunks = a.asked, schema.ChunksMax
	a.request.SetHead(h)
	begin := time.Now()
	v, err := a.ask(ctx, a.replies, to.WithBatch(uint64(b)), a.request.Seal(),
		func(v *schema.View) bool { return v.Head().Chunk == a.asked })
	took := time.Since(begin).Seconds()
	if err != nil {
		return 0, err
	}
	if v.Head().Kind == schema.KindRows && len(v.Float32s()) != askKeys*askDim {
		return 0, fmt.Errorf("%d values in an answer: want %d", len(v.Float32s()), askKeys*askDim)
	}
	return took, nil
}

// run takes part in a number of batches and asks all the while.
func (a *asker) run(ctx context.Context, rounds int) (*ran, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var through atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer through.Store(true)
		for range rounds {
			if err := a.round(ctx); err != nil {
				cancel(fmt.Errorf("batch %d: %w", a.batch, err))
				return
			}
			a.version.Store(uint64(a.batch))
		}
	}()
	r, err := a.askUntil(ctx, through.Load)
	if err != nil {
		cancel(err)
	}
	<-done
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	r.Again = a.resent()
	return r, nil
}

// round contributes nothing to one batch.
func (a *asker) round(ctx context.Context) error {
	for i, f := range a.chunks {
		h := a.heads[i]
		h.Batch = a.batch
		f.SetHead(h)
		if err := a.send(ctx, fabric.KindDense, a.shards[i], &h, f); err != nil {
			return err
		}
	}
	return a.finish(ctx, 0)
}

func (a *asker) bytes() uint64 { return a.count.Load() }

// summary sorts times in seconds and gives their middle and their 99th percentile.
func summary(times []float64) *ran {
	slices.Sort(times)
	r := &ran{Count: len(times)}
	if n := len(times); n > 0 {
		r.P50, r.P99 = times[n/2], times[min(n-1, n*99/100)]
	}
	return r
}
