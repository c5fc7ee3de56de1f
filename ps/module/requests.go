package module

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
)

// clientSlot is the state of one trainer at a module: its current request, and the answer to its last one.
type clientSlot struct {
	heard atomic.Pointer[time.Time] // when it last asked something; nil: never

	mu      sync.Mutex      // guards what follows
	number  schema.Sequence // of the newest request
	request *request        // that one, until it is answered
	working bool            // a goroutine works requests of this slot
	worked  *request        // the one that it is at, perhaps one that a newer one has replaced
	closed  bool            // the job ends: it takes no more, and begins none
	sealed  [][]byte        // the answer to the newest request, once there is one
	frames  []*schema.Frame // that answers are written into
}

// request is a request while its parts arrive and while it is processed.
type request struct {
	head     schema.Head // of all its chunks, with the first chunk's place
	contexts []uint64
	tensor   []float32
	payload  shard.Payload // that the tensor lies in, where it came whole in one frame
	missing  int           // chunks
	have     []bool        // by chunk, where there are several
}

func newRequest(h *schema.Head, f *Frame) *request {
	r := &request{head: *h, contexts: slices.Clone(f.View.Keys()), missing: max(1, int(h.Chunks))}
	if h.Kind == schema.KindWeights { // whose chunk says what is asked for
		r.missing = 1
		return r
	}
	r.head.Chunk, r.head.Offset = 0, 0
	return r
}

// same reports whether a frame is a part of the request.
func (r *request) same(h *schema.Head, keys []uint64) bool {
	k := *h
	if k.Kind != schema.KindWeights {
		k.Chunk, k.Offset = 0, 0
	}
	return k == r.head && slices.Equal(keys, r.contexts)
}

// add stores one part. It keeps the payload if that is the whole tensor.
func (r *request) add(h *schema.Head, f *Frame, chunkElements int) {
	values := f.View.Float32s()
	if len(r.have) == 0 && r.missing == 1 {
		r.tensor, r.payload, r.missing = values, f.Payload, 0
		return
	}
	defer round.Release(f.Payload)
	if r.have == nil {
		r.have, r.tensor = make([]bool, h.Chunks), make([]float32, int(h.Chunks)*chunkElements)
	}
	if r.have[h.Chunk] {
		return
	}
	r.have[h.Chunk] = true
	r.missing--
	copy(r.tensor[h.Offset:], values)
	if h.Chunk+1 == h.Chunks {
		r.tensor = r.tensor[:int(h.Offset)+len(values)]
	}
}

// drop releases what the request holds.
func (r *request) drop() {
	if r != nil {
		round.Release(r.payload)
		r.payload, r.tensor = nil, nil
	}
}

// take takes a part of a request of a contributor, and releases its payload at some time.
func (d *hosted) take(contributor int, f *Frame, h *schema.Head) *refusal {
	s := &d.slots[contributor]
	now := d.set.Now() // as the clock gives it, with its monotonic reading
	s.heard.Store(&now)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed: // no trainer waits for an answer
		round.Release(f.Payload)
		return nil
	case h.Sequence < s.number:
		round.Release(f.Payload)
		return schema.Refuse(schema.ReasonStaleBatch, "request %d to module %q: request %d has come", h.Sequence,
			d.spec.Name, s.number)
	case h.Sequence == s.number && s.sealed != nil:
		round.Release(f.Payload)
		if h.Chunk == 0 || h.Kind == schema.KindWeights {
			d.answerAgain(contributor, s)
		}
		return schema.Refuse(schema.ReasonDuplicate, "request %d is answered", h.Sequence)
	case h.Sequence == s.number && s.request != nil && s.request.missing == 0:
		round.Release(f.Payload)
		return schema.Refuse(schema.ReasonDuplicate, "request %d is worked on", h.Sequence)
	}
	if refused := d.checkSize(h); refused != nil {
		round.Release(f.Payload)
		return refused
	}
	if h.Sequence > s.number || s.request == nil { // nil: it was forgotten before it had come whole
		if s.request != s.worked {
			s.request.drop() // it will not be processed
		}
		s.number, s.request, s.sealed = h.Sequence, newRequest(h, f), nil
	} else if !s.request.same(h, f.View.Keys()) {
		round.Release(f.Payload)
		return schema.Refuse(schema.ReasonWrongChunk, "chunk %d of request %d to module %q differs from its others in more "+
			"than its place", h.Chunk, h.Sequence, d.spec.Name)
	}
	s.request.add(h, f, d.chunkElements)
	if s.request.missing == 0 && !s.working {
		s.working = true
		d.set.running.Add(1)
		go d.work(contributor)
	}
	return nil
}

// checkSize refuses a tensor that no context can have before memory is allocated for it. Inputs are checked with the
// frame.
func (d *hosted) checkSize(h *schema.Head) *refusal {
	if most := d.place.TensorChunks(d.spec.Samples * d.out); h.Kind == schema.KindBackward && int(h.Chunks) > most {
		return schema.Refuse(schema.ReasonWrongChunk, "%d chunks of a gradient for module %q: its largest output has %d",
			h.Chunks, d.spec.Name, most)
	}
	if h.Kind == schema.KindStep && h.Chunks != 1 {
		return schema.Refuse(schema.ReasonWrongChunk, "%d chunks of a step: want 1", h.Chunks)
	}
	return nil
}

// work processes the complete requests of a trainer one after the other.
func (d *hosted) work(contributor int) {
	defer d.set.running.Done()
	s := &d.slots[contributor]
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.request != nil && s.request.missing == 0 && !s.closed {
		r := s.request
		s.worked = r
		s.mu.Unlock()
		a, refused := d.answer(contributor, r)
		s.mu.Lock()
		s.worked = nil
		switch {
		case a == nil && refused == nil: // the job ends
			s.working = false
			return
		case s.request != r:
			d.undo(contributor, a)
		case refused != nil:
			d.set.Note(d.set.config.Contributors[contributor].Member, refused.Reason, refused.Detail)
			s.request, s.sealed = nil, append(s.sealed[:0], schema.EncodeRefusal(r.head, refused.Reason, refused.Detail))
			d.answerAgain(contributor, s)
		default:
			d.set.Note(d.set.config.Contributors[contributor].Member, schema.ReasonOK, "")
			s.request = nil
			if err := d.seal(s, &r.head, a); err != nil {
				d.set.Fail(fmt.Errorf("answer of module %q: %w", d.spec.Name, err))
				s.working = false
				return
			}
			d.answerAgain(contributor, s)
		}
		a.finish()
	}
	s.working = false
}

// seal writes an answer to the slot's frames.
func (d *hosted) seal(s *clientSlot, h *schema.Head, a *answer) error {
	head := schema.Head{Job: h.Job, Generation: h.Generation, Batch: a.version, Bucket: h.Bucket, Lanes: h.Lanes,
		Sequence: h.Sequence}
	chunks := d.place.TensorChunks(len(a.values))
	s.sealed = s.sealed[:0]
	for c := range chunks {
		offset, count := d.place.TensorRange(len(a.values), c)
		head.Chunk, head.Chunks, head.Offset = schema.Chunk(c), schema.Chunk(chunks), uint64(offset)
		if a.of > 0 { // the values are one chunk of a tensor that is longer
			head.Chunk, head.Chunks, head.Offset = a.chunk, a.of, uint64(a.chunk)*uint64(d.chunkElements)
		}
		if len(s.frames) == c {
			s.frames = append(s.frames, new(schema.Frame))
		}
		f, keys := s.frames[c], min(1, int(a.context))
		if err := f.Reset(schema.Layout{Kind: schema.KindOutput, Values: 4 * count, Keys: keys}); err != nil {
			return err
		}
		f.SetHead(head)
		copy(f.Float32s(), a.values[offset:offset+count])
		if keys > 0 {
			f.Keys()[0] = a.context
		}
		s.sealed = append(s.sealed, f.Seal())
	}
	clear(s.frames[chunks:])
	s.frames = s.frames[:chunks]
	return nil
}

// answerAgain sends the answer that the slot has.
func (d *hosted) answerAgain(contributor int, s *clientSlot) {
	for _, frame := range s.sealed {
		d.set.Send(d.set.config.Contributors[contributor].Member, d.spec.Name, frame)
	}
}
