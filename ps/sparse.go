package ps

import (
	"slices"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
)

// sparseRound is the one sparse round of a batch on this shard: over all its table partitions. It closes whole, when
// every lane's contribution is there with all its chunks.
type sparseRound struct {
	exists bool // the job has tables
	bucket schema.Bucket
	closed bool
	terms  []sparseTerm // by node, in lane order; their parts go when the round closes
	nodes  []lane.Node  // of terms, so that place can search them

	result [2]*schema.Frame // says that the round of version v's batch has closed
	sealed [2][]byte

	// Scratch of closing, reused from batch to batch; at most the size of what the round merges.
	merge     []cuda.RowsTerm
	lastKeys  []uint64 // the last of merge as slices, for a round of one term
	lastRows  cuda.Vector
	keys      []uint64 // chunks of one term put together
	rows      []float32
	halves    []uint16 // or these, where values are of 16 bits
	outKeys   []uint64
	outRows   []float32
	firstStep []uint8
	slots     []cuda.Slot // of the optimizer
}

// sparseTerm is one node's contribution.
type sparseTerm struct {
	node   lane.Node
	weight float64
	host   int
	chunks schema.Chunk
	parts  []sparsePart // by chunk; complete when there are chunks of them
	bytes  int64
}

// sparsePart is one chunk of a contribution, as it lies in the received payload.
type sparsePart struct {
	chunk     schema.Chunk
	view      schema.View
	payload   Payload
	low, high rowName // first and last row of the chunk, where it has any
}

// rowName orders rows as they follow each other over the chunks of a contribution.
type rowName struct {
	table schema.Table
	key   uint64
}

func (a rowName) before(b rowName) bool {
	return a.table < b.table || a.table == b.table && a.key < b.key
}

func (s *Shard) makeSparse() (err error) {
	r := &s.sparse
	r.exists, r.bucket = len(s.job.Tables) > 0, s.place.SparseBucket(s.index)
	for v := range r.result {
		if r.result[v], err = schema.NewFrame(schema.Layout{Kind: schema.KindMean}); err != nil {
			return err
		}
	}
	return nil
}

func (r *sparseRound) reset() {
	clear(r.terms)
	r.terms, r.nodes, r.closed = r.terms[:0], r.nodes[:0], false
}

// completeNodes are the nodes whose contributions are there with all chunks.
func (r *sparseRound) completeNodes() []lane.Node {
	var nodes []lane.Node
	for i := range r.terms {
		if r.terms[i].complete() {
			nodes = append(nodes, r.terms[i].node)
		}
	}
	return nodes
}

// weights are those of terms.
func (r *sparseRound) weights() []float64 {
	weights := make([]float64, 0, len(r.terms))
	for i := range r.terms {
		weights = append(weights, r.terms[i].weight)
	}
	return weights
}

// release lets the payloads of the term's chunks go.
func (t *sparseTerm) release() {
	for i := range t.parts {
		round.Release(t.parts[i].payload)
	}
	t.parts = nil
}

func (t *sparseTerm) complete() bool { return len(t.parts) == int(t.chunks) }

// stepSparse takes one chunk of one node's contribution.
func (s *Shard) stepSparse(host int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	ahead, refused := s.reach(h.Batch)
	if refused != nil {
		return refused, nil
	}
	if !s.sparse.exists || h.Bucket != s.sparse.bucket {
		return refuse(schema.ReasonUnknownBucket, "sparse bucket %d is not on %s", h.Bucket, s.member), nil
	}
	node := h.Node
	if refused = round.CheckSender(&s.hosts[host], s.job.Lanes, h); refused != nil {
		return refused, nil
	}
	part, refused := s.checkPart(h, v)
	if refused != nil {
		return refused, nil
	}
	at, in := 0, 0
	if ahead == 0 {
		if at, in, refused = s.checkTerm(host, node, h, &part); refused != nil {
			return refused, nil
		}
	}
	bytes := int64(len(v.Bytes()))
	if refused = s.checkShare(host, h, bytes); refused != nil {
		return refused, nil
	}
	if refused = s.checkStaged(bytes); refused != nil {
		return refused, nil
	}
	if i := s.backend.FirstNonFinite(round.Values(v)); i >= 0 {
		return s.refuseNonFinite(v, node, i), nil
	}
	if ahead == 1 {
		s.advance()
	}
	s.weight.Note(node, h.Weight)
	r := &s.sparse
	if at == len(r.nodes) || r.nodes[at] != node {
		r.nodes = slices.Insert(r.nodes, at, node)
		r.terms = slices.Insert(r.terms, at, sparseTerm{node: node, weight: h.Weight, host: host, chunks: h.Chunks})
	}
	t := &r.terms[at]
	part.payload, s.kept = payload, true
	t.parts = slices.Insert(t.parts, in, part)
	t.bytes += bytes
	s.held.Add(host, bytes)
	if !t.complete() || round.Covered(r.completeNodes(), 0, s.job.Lanes) < s.job.Lanes {
		return nil, nil
	}
	return nil, s.closeSparse()
}

// checkPart checks a chunk on its own.
func (s *Shard) checkPart(h *schema.Head, v *schema.View) (sparsePart, *refusal) {
	p := sparsePart{chunk: h.Chunk, view: *v}
	if _, refused := s.checkSections(v); refused != nil {
		return p, refused
	}
	if h.Chunks > 1 && len(v.Keys()) == 0 {
		return p, refuse(schema.ReasonWrongShape, "chunk %d of %d has no rows: want no chunks without rows but for a contribution of one",
			h.Chunk, h.Chunks)
	}
	first := true
	for _, part := range v.Parts() {
		if len(part.Keys) == 0 {
			continue
		}
		if first {
			p.low, first = rowName{part.Table, part.Keys[0]}, false
		}
		p.high = rowName{part.Table, part.Keys[len(part.Keys)-1]}
	}
	return p, nil
}

// checkTerm finds where a chunk belongs among what is there: the term's index and the chunk's within it.
func (s *Shard) checkTerm(host int, node lane.Node, h *schema.Head, p *sparsePart) (at, in int, refused *refusal) {
	r := &s.sparse
	if refused = s.weight.Check(node, h.Weight); refused != nil {
		return 0, 0, refused
	}
	at, refused = round.Place(r.nodes, node)
	if refused == nil {
		return at, 0, s.checkSparseTotal(at, node, h.Weight)
	}
	if refused.Reason != schema.ReasonDuplicate || r.closed {
		return 0, 0, refused
	}
	t := &r.terms[at]
	if t.chunks != h.Chunks {
		return 0, 0, refuse(schema.ReasonWrongChunk, "chunk %d of %d of lanes %v: its other chunks say %d", h.Chunk, h.Chunks, node, t.chunks)
	}
	in, found := slices.BinarySearchFunc(t.parts, p.chunk, func(x sparsePart, c schema.Chunk) int { return int(x.chunk) - int(c) })
	if found {
		return 0, 0, repeated()
	}
	if in > 0 && !t.parts[in-1].high.before(p.low) || in < len(t.parts) && !p.high.before(t.parts[in].low) {
		return 0, 0, refuse(schema.ReasonUnsortedKeys, "chunk %d of lanes %v: keys do not follow on those of the other chunks", h.Chunk, node)
	}
	return at, in, nil
}

// checkShare refuses what does not fit its sender's share of the budget together with the sparse contributions to this
// batch that it has sent: all of them have to be here before the round closes, so waiting for room would never end.
// Dense contributions do not count, since their rounds close without it.
func (s *Shard) checkShare(host int, h *schema.Head, bytes int64) *refusal {
	share := s.stagedMax / int64(len(s.hosts))
	if h.Kind != schema.KindSparse || h.Batch != s.batch || s.sparse.closed {
		return nil
	}
	held := int64(0)
	for i := range s.sparse.terms {
		if t := &s.sparse.terms[i]; t.host == host {
			held += t.bytes
		}
	}
	if held+bytes <= share {
		return nil
	}
	return refuse(schema.ReasonOverBudget, "%d bytes after %d: a trainer's sparse gradients of one batch may take %d bytes on a shard, "+
		"its share of %d; raise the server's --staged-mib or send smaller batches", bytes, held, share, s.stagedMax)
}

// checkSparseTotal looks ahead: where the node is the last, the weights must add up as in other rounds.
func (s *Shard) checkSparseTotal(at int, node lane.Node, weight float64) *refusal {
	return s.weight.CheckTotal(s.job.Lanes, s.sparse.nodes, s.sparse.weights(), at, node, weight)
}

// refuseNonFinite names the row and column of the i-th value of a frame.
func (s *Shard) refuseNonFinite(v *schema.View, node lane.Node, i int) *refusal {
	value, help := round.NonFinite(s.backend, round.Values(v), i)
	for _, part := range v.Parts() {
		if n := len(part.Keys) * part.Dim; i >= n {
			i -= n
			continue
		}
		return refuse(schema.ReasonNonFinite, "column %d of key %d of table %q, lanes %v, is %v%s",
			i%part.Dim, part.Keys[i/part.Dim], s.job.Tables[part.Table].Name, node, value, help)
	}
	panic("ps: a value outside of every row") // schema.Verify: rows are all values
}

// closeSparse merges the contributions along the lane tree and runs the optimizer on the touched rows, beside the table.
func (s *Shard) closeSparse() error {
	r := &s.sparse
	total := round.TreeWeight(s.job.Lanes, r.nodes, r.weights())
	if total > 0 {
		for _, t := range s.tables {
			if t == nil {
				continue
			}
			if err := s.closeTable(t, float32(total)); err != nil {
				return err
			}
		}
	}
	s.weight.NoteTotal(total)
	for i := range r.terms {
		t := &r.terms[i]
		s.held.Add(t.host, -t.bytes)
		t.release()
	}
	r.closed = true
	s.open--
	version := (s.batch + 1) % 2
	r.result[version].SetHead(s.meanHead(r.bucket, total))
	r.sealed[version] = r.result[version].Seal()
	s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: schema.All, Batch: s.batch, Bucket: r.bucket, Frame: r.sealed[version]})
	return nil
}
