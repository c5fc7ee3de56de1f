package ps

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

const patience = 2 * time.Minute // of every wait in tests for what must come; reached only by what never does

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// miniTrainer speaks the protocol with as little code as it takes: no windows beyond sequence numbers, one frame at a
// time, and no repetition, since nothing gets lost within one process.
type miniTrainer struct {
	t      testing.TB
	p      *shardtest.Problem
	conn   *fabric.Conn
	ctl    *fabric.Conn // to the control server: conn, unless that is a NATS server of several ps
	joiner string
	mail   chan *schema.View // control and refusals
	data   chan *schema.View // means and rows
	joined *schema.Joined
	place  *schema.Placement
	seq    []schema.Sequence // by shard
	params [][]float32
}

func newMiniTrainer(t testing.TB, s *Server, p *shardtest.Problem, joiner string) *miniTrainer {
	t.Helper()
	m := &miniTrainer{t: t, p: p, joiner: joiner, mail: make(chan *schema.View, 1000),
		data: make(chan *schema.View, 10000)}
	name := string(p.Job.Name) + "/" + joiner
	config := fabric.Config{URL: s.URL(), Bus: s.bus, Name: name, Token: s.config.Token, TLS: s.config.PeerTLS}
	conn, err := fabric.Dial(context.Background(), config)
	must(t, err)
	m.conn, m.ctl = conn, conn
	t.Cleanup(conn.Close)
	if s.config.NATS != "" {
		config.URL, config.TLS = s.config.NATS, s.config.NATSTLS
		m.ctl, err = fabric.Dial(context.Background(), config)
		must(t, err)
		t.Cleanup(m.ctl.Close)
	}
	m.listen(joiner)
	m.listen(string(schema.All))
	return m
}

func (m *miniTrainer) listen(name string) {
	m.t.Helper()
	hear := func(conn *fabric.Conn, pattern string) {
		must(m.t, conn.Subscribe(pattern, func(msg fabric.Message) {
			if at, err := msg.Parse(); err != nil || at.From != string(schema.Coordinator) && !strings.HasPrefix(at.From, "s") {
				return // what other trainers say is not for it
			}
			v, err := schema.Verify(msg.Data, schema.Limits{})
			if err != nil {
				m.t.Errorf("%s: %v", msg.Text(), err)
				return
			}
			switch v.Head().Kind {
			case schema.KindControl, schema.KindRefusal:
				m.mail <- &v
			case schema.KindMean, schema.KindRows:
				m.data <- &v
			}
		}))
	}
	for _, pattern := range fabric.ListenAt(string(m.p.Job.Name), name) {
		if hear(m.conn, pattern); m.ctl != m.conn {
			hear(m.ctl, pattern)
		}
	}
}

func (m *miniTrainer) control(c schema.Control) {
	m.t.Helper()
	head, from := schema.Head{}, m.joiner
	if m.joined != nil {
		head.Job, head.Generation, from = m.joined.RunID, m.joined.Generation, string(m.joined.Member)
	}
	frame, err := schema.EncodeControl(head, c)
	must(m.t, err)
	must(m.t, m.ctl.Publish(fabric.At(string(m.p.Job.Name), from, fabric.KindCtl, string(schema.Coordinator)).String(),
		frame))
}

// answer waits for the next control message.
func (m *miniTrainer) answer() schema.Control {
	m.t.Helper()
	v := m.message()
	c, err := schema.DecodeControl(v)
	if err != nil {
		m.t.Fatalf("%s: %v: %s", m.joiner, err, v.Body())
	}
	return c
}

// failure waits until the trainer is told that its job has failed. Refusals of what it sent meanwhile may come first,
// since they come on another subscription.
func (m *miniTrainer) failure() *schema.Ended {
	m.t.Helper()
	for {
		v := m.message()
		if v.Head().Kind != schema.KindControl {
			continue
		}
		c, err := schema.DecodeControl(v)
		must(m.t, err)
		if c.Ended != nil && c.Ended.End != schema.EndCompleted {
			return c.Ended
		}
	}
}

func (m *miniTrainer) message() *schema.View {
	m.t.Helper()
	select {
	case v := <-m.mail:
		return v
	case <-time.After(patience):
		m.t.Fatalf("%s of job %s: no message", m.joiner, m.p.Job.Name)
		return nil
	}
}

// join sends a join and waits for its answer.
func (m *miniTrainer) join() {
	m.t.Helper()
	m.control(schema.Control{Join: &schema.Join{Job: m.p.Job, Host: "test"}})
	c := m.answer()
	for c.Start != nil { // to all, on another subscription: it may overtake the answer
		c = m.answer()
	}
	if c.Joined == nil {
		m.t.Fatalf("join of job %s: %+v", m.p.Job.Name, c)
	}
	m.joined = c.Joined
	m.place = schema.NewPlacement(m.p.Job, c.Joined.Shards)
	m.seq = make([]schema.Sequence, c.Joined.Shards)
	m.listen(string(c.Joined.Member))
}

// start waits until all have joined; it repeats the join, since Start may have been sent before.
func (m *miniTrainer) start() {
	m.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		m.control2(schema.Control{Join: &schema.Join{Job: m.p.Job, Host: "test"}})
		if c := m.answer(); c.Start != nil || c.Joined != nil && c.Joined.Started {
			return
		} else if c.Ended != nil || c.Refused != nil {
			m.t.Fatalf("job %s does not start: %+v %+v", m.p.Job.Name, c.Ended, c.Refused)
		}
	}
	m.t.Fatalf("job %s does not start", m.p.Job.Name)
}

// control2 sends under the joiner's name.
func (m *miniTrainer) control2(c schema.Control) {
	m.t.Helper()
	frame, err := schema.EncodeControl(schema.Head{}, c)
	must(m.t, err)
	must(m.t,
		m.ctl.Publish(fabric.At(string(m.p.Job.Name), m.joiner, fabric.KindCtl, string(schema.Coordinator)).String(), frame))
}

func (m *miniTrainer) member() string { return string(m.joined.Member) }

func (m *miniTrainer) send(kind string, shard int, h schema.Head, f *schema.Frame) {
	m.t.Helper()
	at := fabric.At(string(m.p.Job.Name), m.member(), kind, string(schema.ShardMember(shard)))
	switch kind {
	case fabric.KindDense, fabric.KindSparse:
		m.seq[shard]++
		f.SetSequence(m.seq[shard])
		at = at.WithBucket(uint64(h.Batch), uint32(h.Bucket))
	case fabric.KindLookup:
		at = at.WithBatch(uint64(h.Batch))
	}
	must(m.t, m.conn.Publish(at.String(), f.Seal()))
}

// batch contributes to a batch and waits for all of its results.
func (m *miniTrainer) batch(b schema.Batch) {
	m.t.Helper()
	sent := 0
	for _, n := range lane.Nodes(m.joined.FirstLane, m.joined.LaneCount, m.p.Job.Lanes) {
		for _, c := range m.p.Frames(m.t, m.place, m.joined.RunID, b, n) {
			kind := fabric.KindDense
			if c.Kind == schema.KindSparse {
				kind = fabric.KindSparse
			}
			m.send(kind, c.Shard, schema.Head{Batch: b, Bucket: c.Bucket}, c.Frame)
			sent++
		}
	}
	m.results(b)
}

// results waits for every dense chunk and one sparse close per shard, and keeps the values.
func (m *miniTrainer) results(b schema.Batch) {
	m.t.Helper()
	if m.params == nil {
		for _, p := range m.p.Job.Parameters {
			m.params = append(m.params, make([]float32, p.Elements()))
		}
	}
	missing := map[string]bool{}
	for _, bucket := range m.place.Buckets {
		for c := range m.place.Chunks(bucket.ID) {
			missing[fmt.Sprint(bucket.ID, " ", c)] = true
		}
	}
	if len(m.p.Job.Tables) > 0 {
		for shard := range m.place.Shards {
			missing[fmt.Sprint(m.place.SparseBucket(shard), " ", 0)] = true
		}
	}
	for len(missing) > 0 {
		v := m.next()
		h := v.Head()
		if h.Kind != schema.KindMean || h.Batch != b {
			m.t.Fatalf("got %v of batch %d, want results of batch %d", h.Kind, h.Batch, b)
		}
		name := fmt.Sprint(h.Bucket, " ", h.Chunk)
		if !missing[name] {
			m.t.Fatalf("result of batch %d bucket %d chunk %d came twice", b, h.Bucket, h.Chunk)
		}
		delete(missing, name)
		m.keep(v)
	}
}

// keep copies a dense result into the parameters.
func (m *miniTrainer) keep(v *schema.View) {
	h := v.Head()
	if !m.place.IsDense(h.Bucket) {
		return
	}
	for _, s := range m.place.Buckets[h.Bucket].Spans {
		for i, x := range v.Float32s() {
			if at := int(h.Offset) + i - s.Offset; at >= 0 && at < s.Elements {
				m.params[s.Parameter][s.From+at] = x
			}
		}
	}
}

func (m *miniTrainer) next() *schema.View {
	m.t.Helper()
	late := time.After(patience)
	for {
		select {
		case v := <-m.data:
			return v
		case v := <-m.mail:
			if c, err := schema.DecodeControl(v); err != nil || c.Joined == nil && c.Start == nil {
				m.t.Fatalf("%s got a message instead of a result: %s", m.member(), v.Body())
			}
		case <-late:
			m.t.Fatalf("%s of job %s: no result", m.member(), m.p.Job.Name)
		}
	}
}

// table pulls all partitions of a table at a version, as [rows, dim].
func (m *miniTrainer) table(version schema.Batch, id int) []float32 {
	m.t.Helper()
	spec := m.p.Job.Tables[id]
	out := make([]float32, int(spec.Rows)*spec.Dim)
	for part := range spec.Partitions {
		for cursor, more := uint64(0), true; more; {
			f := shardtest.NewFrame(m.t, schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
			h := schema.Head{Job: m.joined.RunID, Generation: generationFirst, Batch: version, Bucket: schema.Bucket(part)}
			f.SetHead(h)
			f.SetSection(0, schema.Section{Table: schema.Table(id), Dim: uint32(spec.Dim), Count: 9})
			f.Keys()[0] = cursor
			m.send(fabric.KindPull, m.place.OwnerOfPartition(schema.Table(id), schema.Partition(part)), h, f)
			v := m.next()
			rows := v.Float32s()
			for i, key := range v.Keys() {
				copy(out[int(key)*spec.Dim:], rows[i*spec.Dim:(i+1)*spec.Dim])
				cursor = key + 1
			}
			more = v.Head().Flags&schema.FlagMore != 0
		}
	}
	return out
}

func (m *miniTrainer) leave(reason string) {
	m.t.Helper()
	m.control(schema.Control{Leave: &schema.Leave{Reason: reason}})
	for {
		if c := m.answer(); c.Ended != nil {
			return
		}
	}
}
