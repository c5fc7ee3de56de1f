package trainer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// moduleAnswer is where the answer to a module's request comes together: of the receivers while the request is open,
// then of who asked.
type moduleAnswer struct {
	refused error       // under the lock of the exchange
	weights atomic.Bool // one chunk is the whole answer

	mu      sync.Mutex // guards what follows while the request is open
	begun   bool       // a chunk has come
	version schema.Version
	context uint64
	values  []float32
}

// ask sends a request under the next number, again where no answer comes, and gives the values of the answer. A request
// that was given up is taken over by the next one.
func (m *hostedModule) ask(ctx context.Context, head schema.Head, contexts []uint64, tensor []float32) ([]float32, error) {
	s := m.session
	if err := s.Err(); err != nil {
		return nil, err
	}
	ctx, stop := s.running(ctx)
	defer stop()
	who := m.asker()
	s.exchange.close(who)
	m.number = s.exchange.number(1)
	if err := m.write(head, contexts, tensor); err != nil {
		return nil, err
	}
	a := &m.answer
	a.weights.Store(head.Kind == schema.KindWeights)
	a.refused, a.begun, a.context, a.version, a.values = nil, false, 0, 0, a.values[:0]
	s.exchange.ask(who, m, m.number, []int{s.place.ShardOfModule(m.index)}, s.since(), true)
	answered := m.asking(head.Kind, head.Flags&schema.FlagEvaluate == 0 && head.Kind != schema.KindWeights)
	whole := false
	defer func() { answered(whole) }()
	if err := m.send(s, 0); err != nil {
		return nil, err
	}
	if err := s.awaitAnswers(ctx, who); err != nil {
		s.exchange.close(who)
		return nil, err
	}
	if a.refused != nil {
		return nil, a.refused
	}
	whole = true
	return a.values, nil
}

// write puts a request into frames.
func (m *hostedModule) write(head schema.Head, contexts []uint64, tensor []float32) error {
	s := m.session
	chunks := s.place.TensorChunks(len(tensor))
	for len(m.frames) < chunks {
		m.frames = append(m.frames, new(schema.Frame))
	}
	h := s.head(head.Batch)
	h.Bucket, h.Sequence, h.Node, h.Weight, h.Flags, h.Chunk = schema.Bucket(m.index), m.number, head.Node, head.Weight,
		head.Flags, head.Chunk
	if head.Kind != schema.KindWeights {
		h.Chunks = schema.Chunk(chunks)
	}
	m.sealed = m.sealed[:0]
	for c := range chunks {
		f := m.frames[c]
		offset, count := s.place.TensorRange(len(tensor), c)
		if err := f.Reset(schema.Layout{Kind: head.Kind, Values: 4 * count, Keys: len(contexts)}); err != nil {
			return fmt.Errorf("request to module %q: %w", m.spec.Name, err)
		}
		if head.Kind != schema.KindWeights {
			h.Chunk, h.Offset = schema.Chunk(c), uint64(offset)
		}
		f.SetHead(h)
		copy(f.Keys(), contexts)
		copy(f.Float32s(), tensor[offset:offset+count])
		m.sealed = append(m.sealed, f.Seal())
	}
	return nil
}

// asker is who asks in the exchange.
func (m *hostedModule) asker() exchange.Asker { return askers + exchange.Asker(m.index) }

// send sends the request.
func (m *hostedModule) send(*membership, int) error {
	for _, frame := range m.sealed {
		if err := m.link.publish(m.subject(), frame); err != nil {
			return err
		}
	}
	return nil
}

// takeModule takes what a shard says about one of its modules: answers, and refusals of requests. What answers no open
// request is late, and ignored.
func (s *membership) takeModule(owner int, subject *fabric.Subject, v *schema.View) error {
	h := v.Head()
	if int64(h.Bucket) >= int64(len(s.modules)) || s.modules[h.Bucket].spec.Name != subject.Name ||
		s.owners[string(s.modules[h.Bucket].link.member)] != owner {
		return nil // a stranger's
	}
	m := s.modules[h.Bucket]
	switch h.Kind {
	case schema.KindRefusal:
		r, err := schema.DecodeRefusal(v)
		if err != nil {
			return fmt.Errorf("refusal of module %q: %w", m.spec.Name, err)
		}
		m.refuse(h.Sequence, r)
		return nil
	case schema.KindOutput:
		if err := s.place.CheckFrame(v, owner); err != nil {
			return fmt.Errorf("answer of module %q: %w", m.spec.Name, err)
		}
		part, of := int(h.Chunk), int(h.Chunks)
		if m.answer.weights.Load() {
			part, of = 0, 1
		}
		_, err := s.exchange.take(m.asker(), owner, v, part, of)
		return err
	}
	return nil
}

func (m *hostedModule) refuse(number schema.Sequence, r schema.Refusal) {
	e := m.session.exchange
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.x.Refuse(m.asker(), number) {
		return
	}
	m.answer.refused = refusedFrame("module "+m.spec.Name, r.Reason, r.Text)
	if r.Reason == schema.ReasonUnknownContext.String() {
		m.answer.refused = fmt.Errorf("%w: %w", ErrActivation, m.answer.refused)
	}
	e.tell()
}

// take puts one chunk of an answer in place.
func (m *hostedModule) take(_ int, v *schema.View) (kept bool, err error) {
	h, values, a := v.Head(), v.Float32s(), &m.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.begun {
		a.begun, a.version = true, h.Batch
		if keys := v.Keys(); len(keys) > 0 {
			a.context = keys[0]
		}
	}
	if a.weights.Load() || h.Chunks == 1 {
		a.values = append(a.values[:0], values...)
		return false, nil
	}
	if len(a.values) == 0 {
		a.values = grown(a.values, int(h.Chunks)*m.session.job.ChunkBytes/4)
	}
	copy(a.values[h.Offset:], values)
	if h.Chunk+1 == h.Chunks {
		a.values = a.values[:int(h.Offset)+len(values)]
	}
	return false, nil
}
