package round

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/internal/planted"
	"gradbus/lane"
	"gradbus/schema"
)

// sparseConfig is what the sparse rounds of one owner are made from.
type sparseConfig struct {
	backend cuda.Backend
	lanes   int
	count   int // as in denseConfig
	ahead   int // as in denseConfig
	summing schema.Summing
	dType   schema.DType // of the rows of contributions
	held    *Held        // counts the bytes of what is held
	tables  []schema.TableSpec
	first   schema.Batch // the first that there are rounds of
}

// ResumedWeight stands for the weight of the batch before the first of a job that has been resumed: it is no longer
// known, and nothing depends on it but that it is not 0.
const ResumedWeight = 1

// Sparse is the state of the sparse rounds of one owner, over all rows that it owns of all tables. A round closes
// whole, when every lane's contribution is there with all its chunks, and rounds close in the order of their batches.
// It is not safe for concurrent use.
//
// The owner passes a frame through SparseChunk.Check, Check, CheckFinite and Add, and then closes what Next says: Merge
// gives the sum of each table, and Close ends the round.
type Sparse struct {
	config sparseConfig
	closed schema.Batch  // batches before this one have closed
	weight float64       // of the last of them
	before float64       // of the one before
	open   []sparseRound // of batch b at b % len: Ahead+1
	merge  merging
	free   []*sparseSum // free list: of no round, to be used again
	roots  []*sparseSum // the same of sums over all lanes, so that no other grows to their size
}

// sparseRound is the round of one batch.
type sparseRound struct {
	batch   schema.Batch
	nodes   []lane.Node  // that have contributed, if only in part; in lane order, kept after closing
	weights []float64    // of nodes
	terms   []sparseTerm // of nodes; without parts after closing
	lanes   int          // of nodes whose contribution is there with all chunks
	begun   int          // of nodes
	sums    []*sparseSum // of terms that are merged, in lane order
}

// sparseTerm is one node's contribution.
type sparseTerm struct {
	contributor int
	chunks      schema.Chunk
	parts       []SparseChunk // by chunk; complete when there are chunks of them
	bytes       int64
	cost        int64 // of its chunks, as Cost counts
	merged      bool  // into one of the round's sums, without parts
}

// SparseChunk is one chunk of one node's contribution, as it lies in the received payload.
type SparseChunk struct {
	Head        schema.Head
	View        schema.View
	Contributor int     // who sent it, as Held counts
	Bytes       int64   // of the payload
	Payload     Payload // released once, when the rows are needed no more; may be nil

	low, high rowName // first and last row, where there is any
}

// rowName orders rows as they follow each other over the chunks of a contribution, and bags: those of one lane may go
// on in the next chunk. A table has one form in all chunks.
type rowName struct {
	table schema.Table
	bags  bool
	key   uint64 // or the lane, of bags
}

func rowNames(p *schema.Part) (low, high rowName) {
	if p.Bags > 0 {
		low = rowName{p.Table, true, uint64(p.Lane)}
		return low, low
	}
	return rowName{p.Table, false, p.Keys[0]}, rowName{p.Table, false, p.Keys[len(p.Keys)-1]}
}

func (a rowName) before(b rowName) bool {
	if a.table != b.table {
		return a.table < b.table
	}
	return a.bags == b.bags && (a.key < b.key || a.bags && a.key == b.key)
}

// newSparse makes the round of the first batch.
func newSparse(c sparseConfig) *Sparse {
	if c.count == 0 {
		c.count = c.lanes
	}
	s := &Sparse{config: c, open: make([]sparseRound, c.ahead+1), closed: c.first}
	if c.first > 0 {
		s.weight, s.before = ResumedWeight, ResumedWeight
	}
	return s
}

// Closed is the number of batches that have closed.
func (s *Sparse) Closed() schema.Batch { return s.closed }

// Weight is that of the round that closed last, over all lanes; 0 before the first.
func (s *Sparse) Weight() float64 { return s.weight }

// WeightBefore is that of the round before it.
func (s *Sparse) WeightBefore() float64 { return s.before }

func (s *Sparse) round(b schema.Batch) *sparseRound {
	if r := &s.open[b%schema.Batch(len(s.open))]; r.batch == b {
		return r
	}
	return nil
}

// begin returns the round of a batch, a new one if there is none. It takes the place of one that has closed.
func (s *Sparse) begin(b schema.Batch) *sparseRound {
	r := &s.open[b%schema.Batch(len(s.open))]
	if r.batch != b {
		if r.batch >= s.closed && len(r.terms) > 0 || b < r.batch {
			panic(fmt.Sprintf("round: sparse batch %d begins in place of batch %d, which is open", b, r.batch))
		}
		*r = sparseRound{batch: b, nodes: r.nodes[:0], weights: r.weights[:0], terms: r.terms[:0], sums: r.sums}
	}
	return r
}

// Nodes are those whose contributions to a batch are there with all chunks.
func (s *Sparse) Nodes(b schema.Batch) []lane.Node {
	var nodes []lane.Node
	if r := s.round(b); r != nil {
		for i := range r.terms {
			if r.complete(s, i) {
				nodes = append(nodes, r.nodes[i])
			}
		}
	}
	return nodes
}

// complete reports that the i-th contribution is there with all its chunks.
func (r *sparseRound) complete(s *Sparse, i int) bool {
	return r.batch < s.closed || r.terms[i].merged || len(r.terms[i].parts) == int(r.terms[i].chunks)
}

// HeldOf is the cost of what a batch's open round holds of a sender.
func (s *Sparse) HeldOf(b schema.Batch, contributor int) int64 {
	n := int64(0)
	if r := s.round(b); r != nil && b >= s.closed {
		for i := range r.terms {
			if t := &r.terms[i]; t.contributor == contributor {
				n += t.cost
			}
		}
	}
	return n
}

// Check says why a chunk cannot be added: it was, its lanes have been counted, its weight contradicts another one of
// the batch, or its keys do not follow on those of the contribution's other chunks. c.Check comes first. Nothing
// changes.
func (s *Sparse) Check(c *SparseChunk, w *Weights) *schema.FrameError {
	h := &c.Head
	if refused := w.check(h.Node, h.Weight); refused != nil {
		return refused
	}
	r := s.round(h.Batch)
	if r == nil {
		return nil
	}
	at, refused := place(r.nodes, h.Node)
	if refused == nil {
		return w.checkTotal(s.config.lanes, s.config.count-r.begun, r.nodes, r.weights, at, h.Node, h.Weight)
	}
	if refused.Reason != schema.ReasonDuplicate || h.Batch < s.closed {
		return refused
	}
	_, refused = r.terms[at].place(c)
	return refused
}

// Check checks a chunk on its own, and finds its first and last row.
func (c *SparseChunk) Check() *schema.FrameError {
	if c.Head.Chunks > 1 && len(c.View.Keys()) == 0 {
		return schema.Refuse(schema.ReasonWrongShape,
			"chunk %d of %d has no rows: want no chunks without rows but for a contribution of one",
			c.Head.Chunk, c.Head.Chunks)
	}
	first := true
	for _, part := range c.View.Parts() {
		if len(part.Keys) == 0 {
			continue
		}
		low, high := rowNames(&part)
		if first {
			c.low, first = low, false
		}
		c.high = high
	}
	return nil
}

// place finds where a chunk belongs among those of its contribution.
func (t *sparseTerm) place(c *SparseChunk) (int, *schema.FrameError) {
	h := &c.Head
	if t.chunks != h.Chunks {
		return 0, schema.Refuse(schema.ReasonWrongChunk, "chunk %d of %d of lanes %v: its other chunks say %d", h.Chunk,
			h.Chunks, h.Node, t.chunks)
	}
	if t.merged {
		return 0, &schema.FrameError{Reason: schema.ReasonDuplicate}
	}
	in, found := slices.BinarySearchFunc(t.parts, h.Chunk, func(x SparseChunk, c schema.Chunk) int {
		return int(x.Head.Chunk) - int(c)
	})
	if found {
		return in, &schema.FrameError{Reason: schema.ReasonDuplicate}
	}
	if in > 0 && !t.parts[in-1].high.before(c.low) || in < len(t.parts) && !c.high.before(t.parts[in].low) {
		return in, schema.Refuse(schema.ReasonUnsortedKeys,
			"chunk %d of lanes %v: keys do not follow on those of the other chunks", h.Chunk, h.Node)
	}
	return in, nil
}

// CheckFinite refuses values that are NaN or infinite, and names row and column of the first; and counts of rows that
// are none.
func (s *Sparse) CheckFinite(c *SparseChunk) *schema.FrameError {
	values := Values(&c.View)
	i := s.config.backend.FirstNonFinite(values)
	if i < 0 {
		return s.checkCounts(c)
	}
	value, help := NonFinite(s.config.backend, values, i)
	for _, part := range c.View.Parts() {
		n, what := len(part.Keys), "key"
		if part.Bags > 0 {
			n, what = part.Bags, "bag"
		}
		if n *= part.Dim; i >= n {
			i -= n
			continue
		}
		row := uint64(i / part.Dim)
		if part.Bags == 0 {
			row = part.Keys[row]
		}
		return schema.Refuse(schema.ReasonNonFinite, "column %d of %s %d of table %q, lanes %v, is %v%s",
			i%part.Dim, what, row, s.config.tables[part.Table].Name, c.Head.Node, value, help)
	}
	panic("round: a value outside of every row") // schema.Verify: rows are all values
}

// Add takes a chunk that Check has passed. Where it completes a contribution it adds up what can be, unless the round
// is now complete and the rest is to be fused: then Merge adds all that is left. An error is the backend's, and leaves
// sums that cannot be trusted.
func (s *Sparse) Add(c *SparseChunk, w *Weights) error {
	h := &c.Head
	r := s.begin(h.Batch)
	at, refused := place(r.nodes, h.Node)
	if refused == nil {
		w.note(h.Node, h.Weight)
		r.nodes = slices.Insert(r.nodes, at, h.Node)
		r.weights = slices.Insert(r.weights, at, h.Weight)
		r.begun += int(h.Node.Count)
		r.terms = slices.Insert(r.terms, at, sparseTerm{contributor: c.Contributor, chunks: h.Chunks})
	}
	t := &r.terms[at]
	in, refused := t.place(c)
	if refused != nil {
		panic("round: rows were added that Check refuses")
	}
	t.parts = slices.Insert(t.parts, in, *c)
	t.bytes, t.cost = t.bytes+c.Bytes, t.cost+s.Cost(c)
	s.config.held.add(c.Contributor, c.Bytes)
	if len(t.parts) < int(t.chunks) {
		return nil
	}
	r.lanes += int(h.Node.Count)
	if s.config.summing == schema.SummingAtClose || r.lanes == s.config.count ||
		s.config.dType != schema.DTypeFloat32 { // sums are float32
		return nil
	}
	return s.combineUp(r, h.Node)
}

// Next gives the oldest open round if all its lanes are there: its batch and its weight over all lanes. Merge then
// gives the sums, and Close ends it; then ask again, since a later round may have waited for it.
func (s *Sparse) Next() (b schema.Batch, weight float64, ok bool) {
	r := s.round(s.closed)
	if r == nil || r.lanes < s.config.count {
		return 0, 0, false
	}
	return r.batch, TreeWeight(s.config.lanes, r.nodes, r.weights), true
}

// Close ends the round that Next gave, and releases its payloads.
func (s *Sparse) Close(w *Weights, total float64) {
	r := s.round(s.closed)
	for i := range r.terms {
		s.release(&r.terms[i])
	}
	for _, sum := range r.sums {
		s.freeSum(sum)
	}
	r.sums = r.sums[:0]
	w.noteTotal(total)
	s.closed, s.weight, s.before = s.closed+1, total, s.weight
}

func (s *Sparse) release(t *sparseTerm) {
	s.config.held.add(t.contributor, -t.bytes)
	for i := range t.parts {
		Release(t.parts[i].Payload)
	}
	t.parts, t.bytes, t.cost = nil, 0, 0
}

// Forget drops what has come of a contributor's contributions to open rounds that lack chunks, and makes room for them.
func (s *Sparse) Forget(contributor int) {
	for i := range s.open {
		r := &s.open[i]
		if r.batch < s.closed {
			continue
		}
		for k := len(r.terms) - 1; k >= 0; k-- {
			if r.terms[k].contributor != contributor || r.complete(s, k) && !planted.Is(planted.CountNodeTwice) {
				continue
			}
			s.release(&r.terms[k])
			r.begun -= int(r.nodes[k].Count)
			r.terms = slices.Delete(r.terms, k, k+1)
			r.nodes, r.weights = slices.Delete(r.nodes, k, k+1), slices.Delete(r.weights, k, k+1)
		}
	}
}

// Chunks is how many chunks are held of a batch.
func (s *Sparse) Chunks(b schema.Batch) int {
	n := 0
	if r := s.round(b); r != nil {
		for i := range r.terms {
			n += len(r.terms[i].parts)
		}
	}
	return n
}

// String lists what is known of the open rounds, for tests.
func (s *Sparse) String() string {
	text := fmt.Sprint("closed ", s.closed)
	for i := range s.open {
		r := &s.open[i]
		text += fmt.Sprint(" batch ", r.batch, ":")
		for k := range r.terms {
			t := &r.terms[k]
			text += fmt.Sprintf(" %v:%v/%d(%d)", r.nodes[k], len(t.parts), t.chunks, t.bytes)
		}
	}
	return text
}

// Release gives back what open rounds hold. The Sparse must not be used afterwards.
func (s *Sparse) Release() {
	for i := range s.open {
		for k := range s.open[i].terms {
			s.release(&s.open[i].terms[k])
		}
	}
	s.open = nil
}
