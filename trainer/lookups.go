package trainer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/trainer/internal/exchange"
)

// lookups are the requests for the rows of one batch. They are built while the previous batch is under way, and sent to
// all shards at once. Frames and memory are reused. The goroutine that claimed an answer (exchanging) stores its rows
// without a lock.
type lookups struct {
	*exchanging
	who     exchange.Asker
	routing *routing
	tables  *tables
	place   *schema.Placement
	// replicas has the rows of the tables that are not requested.
	replicas *replicas

	head     schema.Head
	requests []lookup
	owners   []int           // shard of each request
	first    schema.Sequence // number of requests[0]; the others follow
	sent     bool            // requests were sent since build
	frames   []*schema.Frame

	// over records, by the head of a shard's rows, that the shard's rounds before their version are over; nil if not
	// needed.
	over func(shard int, h *schema.Head) error
}

// lookup is one request.
type lookup struct {
	shard  int
	pieces []piece
	bags   []bagPiece // instead of pieces: bags that the shard pools
	frame  *schema.Frame
	sealed []byte
	behind schema.Batch // the rows are of the version this many batches earlier
}

func newLookups(s *routing, t *tables, place *schema.Placement, e *exchanging, who exchange.Asker) *lookups {
	return &lookups{exchanging: e, who: who, routing: s, tables: t, place: place}
}

// assign routes the distinct keys of the tables, and makes no requests.
func (l *lookups) assign() {
	l.close(l.who)
	l.routing.assign(l.tables.keys)
	l.requests = l.requests[:0]
}

// build makes the requests for the distinct keys of the tables. head has the common fields of the batch's frames.
func (l *lookups) build(head schema.Head) error {
	l.assign()
	l.head, l.sent, l.owners = head, false, l.owners[:0]
	for shard := range l.routing.shards {
		for _, pieces := range l.routing.chunks(shard) {
			l.requests = append(l.requests, lookup{shard: shard, pieces: pieces})
		}
		l.addBags(shard)
	}
	l.first = l.number(len(l.requests))
	for i := range l.requests {
		l.owners = append(l.owners, l.requests[i].shard)
		if err := l.fill(i); err != nil {
			return err
		}
	}
	return nil
}

func (l *lookups) fill(i int) error {
	r := &l.requests[i]
	layout := l.routing.layout(schema.KindLookup, schema.DTypeNone, r.pieces)
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
		r.frame.SetSection(j, schema.Section{Table: schema.Table(p.table), Dim: uint32(l.routing.dims[p.table]),
			Count: uint64(p.count)})
		all := l.tables.keys[p.table]
		for k, at := range l.routing.positions(r.shard, p) {
			keys[k] = all[at]
		}
		keys = keys[p.count:]
	}
	r.sealed = r.frame.Seal()
	return nil
}

// kind returns the subject token of the request.
func (r *lookup) kind() string {
	if r.bags != nil {
		return fabric.KindPool
	}
	return fabric.KindLookup
}

// begin sizes the rows and opens the requests. atOnce: shards can answer at once; otherwise they park the requests.
func (l *lookups) begin(now time.Duration, atOnce bool) {
	l.tables.size()
	l.ask(l.who, l, l.first, l.owners, now, atOnce)
}

// fit reports whether each shard, which can park parked bytes of lookups, has room for its requests.
func (l *lookups) fit(parked int64) bool {
	bytes, last := int64(0), -1
	for i := range l.requests {
		r := &l.requests[i] // requests of a shard are adjacent
		if r.shard != last {
			bytes, last = 0, r.shard
		}
		if bytes += int64(len(r.sealed)) + shard.FrameBytesOver; bytes > parked {
			return false
		}
	}
	return true
}

// send sends request i.
func (l *lookups) send(c *connection, i int) error {
	r := &l.requests[i]
	link := c.links[r.shard]
	return link.publish(c.subject(r.kind(), link.member).WithBatch(uint64(l.head.Batch)), r.sealed)
}

// take stores the rows of an answer. It fails on an answer that no correct shard sends.
func (l *lookups) take(i int, v *schema.View) (retained bool, err error) {
	h, r := v.Head(), &l.requests[i]
	if h.Batch != l.head.Batch {
		return false, fmt.Errorf("rows of batch %d from %s: want those of batch %d", h.Batch,
			schema.ShardMember(r.shard), l.head.Batch)
	}
	if err := l.put(r, v); err != nil {
		return false, fmt.Errorf("rows of batch %d request %d from %s: %w", h.Batch, h.Chunk,
			schema.ShardMember(r.shard), err)
	}
	r.behind = schema.Batch(h.Offset)
	if l.over != nil {
		err = l.over(r.shard, &h)
	}
	return false, err
}

// put copies the rows of an answer to their place. Requests have disjoint rows.
func (l *lookups) put(r *lookup, v *schema.View) error {
	if r.bags != nil {
		return l.takeBags(r, v)
	}
	if !slices.Equal(r.frame.Keys(), v.Keys()) {
		return fmt.Errorf("of other keys than those asked for")
	}
	if !slices.Equal(r.frame.Sections(), v.Sections()) {
		return fmt.Errorf("sections %v, want %v", v.Sections(), r.frame.Sections())
	}
	values := v.Float32s()
	for _, p := range r.pieces {
		dim := l.routing.dims[p.table]
		placeRows(l.tables.rows[p.table], dim, l.routing.positions(r.shard, p), values)
		values = values[p.count*dim:]
	}
	return nil
}

// placeRows copies row i of from to row at[i] of to. If one shard has all rows, it is one copy.
func placeRows(to []float32, dim int, at []int32, from []float32) {
	if n := len(at); n > 0 && int(at[n-1]-at[0]) == n-1 {
		copy(to[int(at[0])*dim:][:n*dim], from)
		return
	}
	for i, row := range at {
		copy(to[int(row)*dim:][:dim], from[i*dim:])
	}
}

// takeRows copies row at[i] of from to row i of to.
func takeRows[T any](to []T, dim int, at []int32, from []T) {
	if n := len(at); n > 0 && int(at[n-1]-at[0]) == n-1 {
		copy(to[:n*dim], from[int(at[0])*dim:])
		return
	}
	for i, row := range at {
		copy(to[i*dim:][:dim], from[int(row)*dim:])
	}
}

// fetch waits for the rows of the lookups, and sends them to all shards first if they were not sent. The earlier
// batches are complete, so shards can answer at once.
func (l *lookups) fetch(ctx context.Context) error {
	if !l.sent {
		if err := l.askFor(true); err != nil {
			return err
		}
	}
	if err := l.replicas.fill(l.tables); err != nil {
		return err
	}
	return l.awaitAnswers(ctx, l.who)
}

// askAhead sends lookups of a batch whose rows may not exist yet, if shards have room to park them.
func (l *lookups) askAhead() error {
	if !l.fit(l.conn.joined.ParkedBytes) {
		return nil
	}
	return l.askFor(false)
}

// askFor sends the lookups. Until the last answer nothing else may use the rows.
func (l *lookups) askFor(atOnce bool) error {
	l.begin(l.conn.since(), atOnce)
	l.sent = true
	for i := range l.requests {
		if err := l.send(l.conn, i); err != nil {
			return err
		}
	}
	return nil
}

// Lookups of bags: a request has the keys of bags, lane by lane, and the answer has one pooled row per bag.

// bagPiece is a run of one lane's bags of one table within one request. Bags without keys are left out.
type bagPiece struct {
	table, lane int
	dim         int // number of columns on the shard
	column      int // first of them
	first       int // index in laneBags.full
	count       int
	firstKey    int // index of the first key among the lane's keys
	keys        int
}

// addBags appends the requests for bags that a shard pools. A request and its answer fit a chunk each; a larger bag
// gets a request of its own.
func (l *lookups) addBags(shard int) {
	var now []bagPiece
	values, room := 0, 0
	flush := func() {
		if len(now) > 0 {
			l.requests = append(l.requests, lookup{shard: shard, bags: now})
			now, values, room = nil, 0, 0
		}
	}
	for table, lanes := range l.tables.bags {
		if !l.tables.specs[table].Cut().PooledByShards() {
			continue
		}
		column, dim := l.place.Columns(schema.Table(table), shard)
		for at := range lanes {
			b := &lanes[at]
			if dim == 0 || len(b.offsets) == 0 || len(b.full) == 0 {
				continue
			}
			p := bagPiece{table: table, lane: at, dim: dim, column: column}
			for i, bag := range b.full {
				n := int(b.offsets[bag+1] - b.offsets[bag])
				if p.count > 0 && (values+dim > l.routing.valuesMax || room+1+2*n > l.routing.valuesMax) {
					now = append(now, p)
					flush()
					p = bagPiece{table: table, lane: at, dim: dim, column: column, first: i, firstKey: int(b.offsets[bag])}
				}
				p.count, p.keys, values, room = p.count+1, p.keys+n, values+dim, room+1+2*n
			}
			now = append(now, p)
			if len(now) == schema.SectionsMax {
				flush()
			}
		}
	}
	flush()
}

func bagsLayout(pieces []bagPiece) schema.Layout {
	l := schema.Layout{Kind: schema.KindLookup, Sections: len(pieces)}
	for _, p := range pieces {
		l.Keys, l.Bags = l.Keys+p.keys, l.Bags+p.count
	}
	return l
}

// fillBags writes a request for bags.
func (l *lookups) fillBags(r *lookup) {
	f := r.frame
	keys, offsets := f.Keys(), f.Offsets()
	for i, p := range r.bags {
		b := &l.tables.bags[p.table][p.lane]
		f.SetSection(i, schema.Section{Table: schema.Table(p.table), Dim: uint32(p.dim), Count: uint64(p.keys)})
		f.Bags()[i] = schema.Bags{Lane: uint32(p.lane), Count: uint32(p.count)}
		for k, bag := range b.full[p.first : p.first+p.count] {
			offsets[k] = uint32(int(b.offsets[bag]) - p.firstKey)
		}
		copy(keys, l.tables.laneKeys(p.table, p.lane)[p.firstKey:p.firstKey+p.keys])
		keys, offsets = keys[p.keys:], offsets[p.count:]
	}
}

// takeBags stores the pooled rows of an answer.
func (l *lookups) takeBags(r *lookup, v *schema.View) error {
	sections, bags := v.Sections(), v.Bags()
	if len(sections) != len(r.bags) || len(bags) != len(r.bags) {
		return fmt.Errorf("%d sections, %d of bags: want %d", len(sections), len(bags), len(r.bags))
	}
	values := v.Float32s()
	for i, p := range r.bags {
		if s := sections[i]; s.Table != schema.Table(p.table) || int(s.Dim) != p.dim ||
			bags[i] != (schema.Bags{Lane: uint32(p.lane), Count: uint32(p.count)}) {
			return fmt.Errorf("section %d: table %d dim %d lane %d with %d bags: want table %d dim %d lane %d with %d",
				i, s.Table, s.Dim, bags[i].Lane, bags[i].Count, p.table, p.dim, p.lane, p.count)
		}
		b, whole := &l.tables.bags[p.table][p.lane], l.tables.specs[p.table].Dim
		for _, bag := range b.full[p.first : p.first+p.count] {
			at := int(bag)*whole + p.column
			values = values[copy(b.pooled[at:at+p.dim], values):]
		}
	}
	return nil
}
