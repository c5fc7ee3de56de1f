package trainer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// moduleAnswer is where the answer to a module's request comes together. The goroutine that receives fills it while a request is open;
// afterwards it belongs to who asked.
type moduleAnswer struct {
	ready chan struct{} // gets a value when the answer is whole, or the request was refused

	mu      sync.Mutex // guards what follows while a request is open
	open    bool
	number  schema.Sequence
	weights bool // one chunk is the whole answer
	missing int
	have    []bool
	version schema.Version
	context uint64
	values  []float32
	refused error
}

// ask sends a request under the next number, again where no answer comes, and gives the values of the answer. A request that was
// given up is taken over by the next one.
func (m *Module) ask(ctx context.Context, head schema.Head, contexts []uint64, tensor []float32) ([]float32, error) {
	s := m.session
	if err := s.Err(); err != nil {
		return nil, err
	}
	ctx, stop := s.running(ctx)
	defer stop()
	m.number++
	if err := m.write(head, contexts, tensor); err != nil {
		return nil, err
	}
	a := &m.answer
	a.begin(m.number, head.Kind == schema.KindWeights)
	answered := m.asking(head.Kind, head.Flags&schema.FlagEvaluate == 0 && head.Kind != schema.KindWeights)
	whole := false
	defer func() { answered(whole) }()
	began := time.Now()
	send := func() error {
		for _, frame := range m.sealed {
			if err := m.link.publish(m.subject(), frame); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(); err != nil {
		return nil, err
	}
	if err := s.answer(ctx, a.ready, &m.answers, m.answers.Timeout(), began, send); err != nil {
		a.end()
		return nil, err
	}
	if a.refused != nil {
		return nil, a.refused
	}
	whole = true
	return a.values, nil
}

// write puts a request into frames.
func (m *Module) write(head schema.Head, contexts []uint64, tensor []float32) error {
	s := m.session
	chunks := s.place.TensorChunks(len(tensor))
	for len(m.frames) < chunks {
		m.frames = append(m.frames, new(schema.Frame))
	}
	h := s.head(head.Batch)
	h.Bucket, h.Sequence, h.Node, h.Weight, h.Flags, h.Chunk = schema.Bucket(m.index), m.number, head.Node, head.Weight, head.Flags, head.Chunk
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

func (a *moduleAnswer) begin(number schema.Sequence, weights bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.ready:
	default:
	}
	a.open, a.number, a.weights, a.missing, a.have, a.context, a.version, a.refused = true, number, weights, 0, nil, 0, 0, nil
	a.values = a.values[:0]
}

func (a *moduleAnswer) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = false
}

// takeModule takes what a shard says about one of its modules: answers, and refusals of requests. What answers no open request is
// late, and ignored.
func (s *Session) takeModule(owner int, subject *fabric.Subject, v *schema.View) error {
	h := v.Head()
	if int64(h.Bucket) >= int64(len(s.modules)) || s.modules[h.Bucket].spec.Name != subject.Name || s.owners[string(s.modules[h.Bucket].link.member)] != owner {
		return nil // a stranger's
	}
	m := s.modules[h.Bucket]
	switch h.Kind {
	case schema.KindRefusal:
		r, err := schema.DecodeRefusal(v)
		if err != nil {
			return fmt.Errorf("refusal of module %q: %w", m.spec.Name, err)
		}
		m.answer.refuse(h.Sequence, r)
		return nil
	case schema.KindOutput:
		if err := s.place.CheckFrame(v, owner); err != nil {
			return fmt.Errorf("answer of module %q: %w", m.spec.Name, err)
		}
		m.answer.take(&h, v, s.job.ChunkBytes/4)
	}
	return nil
}

func (a *moduleAnswer) refuse(number schema.Sequence, r schema.Refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.open || number != a.number {
		return
	}
	a.refused = fmt.Errorf("%w: %s: %s", ErrFrameRefused, r.Reason, r.Text)
	if r.Reason == schema.ReasonUnknownContext.String() {
		a.refused = fmt.Errorf("%w: %w", ErrActivation, a.refused)
	}
	a.finish()
}

// take puts one chunk of an answer in place.
func (a *moduleAnswer) take(h *schema.Head, v *schema.View, chunkElements int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.open || h.Sequence != a.number {
		return
	}
	values := v.Float32s()
	if a.have == nil {
		a.missing = int(h.Chunks)
		if a.weights {
			a.missing = 1
		}
		a.have, a.version, a.context = make([]bool, h.Chunks), h.Batch, 0
		if keys := v.Keys(); len(keys) > 0 {
			a.context = keys[0]
		}
		if a.missing > 1 {
			a.values = grown(a.values, a.missing*chunkElements)
		}
	}
	if int(h.Chunks) != len(a.have) || a.have[h.Chunk] {
		return
	}
	a.have[h.Chunk] = true
	if a.missing == 1 && (len(a.have) == 1 || a.weights) {
		a.values = append(a.values[:0], values...)
	} else {
		copy(a.values[h.Offset:], values)
		if h.Chunk+1 == h.Chunks {
			a.values = a.values[:int(h.Offset)+len(values)]
		}
	}
	if a.missing--; a.missing == 0 {
		a.finish()
	}
}

func (a *moduleAnswer) finish() {
	a.open = false
	a.ready <- struct{}{}
}
