package trainer

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// lookups are the requests for the rows of one batch: built while the batch before is still under way, sent to all
// shards at once, repeated where an answer is missing. Frames and memory are reused from batch to batch.
type lookups struct {
	split  *split
	tables *tables
	place  *schema.Placement

	// mu guards what follows between begin and the last answer, when the goroutine that receives places rows.
	mu       sync.Mutex
	head     schema.Head
	requests []lookup
	first    schema.Sequence // number of requests[0]; the others' follow
	open     int             // requests without an answer
	ready    chan struct{}   // gets a value when open falls to 0
	asked    time.Time       // when they were sent first; of the goroutine that sends

	frames  []*schema.Frame
	numbers *requestNumbers

	// applied is told that a shard's answer to a lookup of batch asked says that it has this trainer's contributions up to those
	// of batch b. Only where each trainer's are applied alone; else nil.
	applied func(shard int, asked, b schema.Batch)
}

// lookup is one request.
type lookup struct {
	shard    int
	pieces   []piece
	bags     []bagPiece // in place of pieces: bags that the shard pools
	frame    *schema.Frame
	sealed   []byte
	answered bool
	behind   schema.Batch // the rows are of the version so many batches before
}

// requestNumbers numbers a session's requests for rows, from 1. An answer repeats the number of its request, so that it is
// never taken for the answer to another, of whatever kind. It belongs to the goroutine that calls Run.
type requestNumbers struct{ last schema.Sequence }

// take gives the first of n numbers that no other request has.
func (r *requestNumbers) take(n int) (first schema.Sequence) {
	first = r.last + 1
	r.last += schema.Sequence(n)
	return first
}

func newLookups(s *split, t *tables, place *schema.Placement, numbers *requestNumbers) *lookups {
	return &lookups{split: s, tables: t, place: place, numbers: numbers, ready: make(chan struct{}, 1)}
}

// assign finds who has which of the distinct keys of the tables, and asks nobody for rows.
func (l *lookups) assign() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.split.assign(l.tables.keys)
	l.requests, l.open = l.requests[:0], 0
}

// close takes no further answers, and so writes no more rows.
func (l *lookups) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = 0
}

// build makes the requests for the distinct keys of the tables. head is what all frames of the batch have in common.
func (l *lookups) build(head schema.Head) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.split.assign(l.tables.keys)
	l.head, l.requests, l.open = head, l.requests[:0], 0
	for shard := range l.split.shards {
		for _, pieces := range l.split.chunks(shard) {
			l.requests = append(l.requests, lookup{shard: shard, pieces: pieces})
		}
		l.addBags(shard)
	}
	l.first = l.numbers.take(len(l.requests))
	for i := range l.requests {
		if err := l.fill(i); err != nil {
			return err
		}
	}
	return nil
}

func (l *lookups) fill(i int) error {
	r := &l.requests[i]
	layout := l.split.layout(schema.KindLookup, schema.DTypeNone, r.pieces)
	if r.bags != nil {
		layout = bagsLayout(r.bags)
	}
	if i == len(l.frames) {
		l.frames = append(l.frames, new(schema.Frame))
	}
	r.frame = l.frames[i]
	if err := r.frame.Reset(layout); err != nil {
		return fmt.Errorf("build lookup of batch %d: %w", l.head.Batch, err)
	}
	h := l.head
	h.Sequence, h.Chunk, h.Chunks = l.first+schema.Sequence(i), schema.Chunk(i), schema.Chunk(len(l.requests))
	r.frame.SetHead(h)
	if r.bags != nil {
		l.fillBags(r)
		r.sealed = r.frame.Seal()
		return nil
	}
	keys := r.frame.Keys()
	for j, p := range r.pieces {
		r.frame.SetSection(j, schema.Section{Table: schema.Table(p.table), Dim: uint32(l.split.dims[p.table]), Count: uint64(p.count)})
		all := l.tables.keys[p.table]
		for k, at := range l.split.positions(r.shard, p) {
			keys[k] = all[at]
		}
		keys = keys[p.count:]
	}
	r.sealed = r.frame.Seal()
	return nil
}

// kind is the token of the request's subject.
func (r *lookup) kind() string {
	if r.bags != nil {
		return fabric.KindPool
	}
	return fabric.KindLookup
}

// begin makes room for the rows and opens the requests for answers.
func (l *lookups) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tables.size()
	l.open = len(l.requests)
	select {
	case <-l.ready:
	default:
	}
	if l.open == 0 {
		l.ready <- struct{}{}
	}
}

// unanswered calls send for each request without an answer, which may come before send returns. It is called by who builds the requests.
func (l *lookups) unanswered(send func(shard int, sealed []byte, kind string) error) error {
	for i := range l.requests {
		r := &l.requests[i]
		l.mu.Lock()
		answered := r.answered
		l.mu.Unlock()
		if answered {
			continue
		}
		if err := send(r.shard, r.sealed, r.kind()); err != nil {
			return err
		}
	}
	return nil
}

// take places the rows of an answer. One that repeats another or that nobody waits for is ignored. It fails on an answer that a correct shard cannot have given.
func (l *lookups) take(shard int, v *schema.View) (kept bool, err error) {
	h := v.Head()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == 0 || h.Sequence < l.first || h.Sequence-l.first >= schema.Sequence(len(l.requests)) {
		return false, nil
	}
	r := &l.requests[h.Sequence-l.first]
	if r.answered || r.shard != shard {
		return false, nil
	}
	if h.Batch != l.head.Batch {
		return false, fmt.Errorf("rows of batch %d from %s: want those of batch %d", h.Batch, schema.ShardMember(shard), l.head.Batch)
	}
	if r.bags != nil {
		if err := l.takeBags(r, v); err != nil {
			return false, fmt.Errorf("pooled rows of batch %d request %d from %s: %w", h.Batch, h.Chunk, schema.ShardMember(shard), err)
		}
		l.done(r, h)
		return false, nil
	}
	if !slices.Equal(r.frame.Keys(), v.Keys()) {
		return false, fmt.Errorf("rows of batch %d request %d from %s: of other keys than those asked for", h.Batch, h.Chunk, schema.ShardMember(shard))
	}
	if !slices.Equal(r.frame.Sections(), v.Sections()) {
		return false, fmt.Errorf("rows of batch %d request %d from %s: sections %v, want %v", h.Batch, h.Chunk, schema.ShardMember(shard), v.Sections(), r.frame.Sections())
	}
	values := v.Float32s()
	for _, p := range r.pieces {
		dim := l.split.dims[p.table]
		placeRows(l.tables.rows[p.table], dim, l.split.positions(shard, p), values)
		values = values[p.count*dim:]
	}
	l.done(r, h)
	return false, nil
}

// done notes that a request is answered.
func (l *lookups) done(r *lookup, h schema.Head) {
	r.answered, r.behind = true, schema.Batch(h.Offset)
	if l.applied != nil && h.Batch > r.behind {
		l.applied(r.shard, h.Batch, h.Batch-r.behind-1)
	}
	if l.open--; l.open == 0 {
		l.ready <- struct{}{}
	}
}

// placeRows copies row i of from to row at[i] of to. Where one shard holds everything that is one copy.
func placeRows(to []float32, dim int, at []int32, from []float32) {
	if n := len(at); n > 0 && int(at[n-1]-at[0]) == n-1 {
		copy(to[int(at[0])*dim:][:n*dim], from)
		return
	}
	for i, row := range at {
		copy(to[int(row)*dim:][:dim], from[i*dim:])
	}
}

// takeRows is the reverse: it copies row at[i] of from to row i of to.
func takeRows[T any](to []T, dim int, at []int32, from []T) {
	if n := len(at); n > 0 && int(at[n-1]-at[0]) == n-1 {
		copy(to[:n*dim], from[int(at[0])*dim:])
		return
	}
	for i, row := range at {
		copy(to[i*dim:][:dim], from[int(row)*dim:])
	}
}
