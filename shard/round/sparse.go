package round

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/internal/planted"
	"gradbus/lane"
	"gradbus/schema"
)

// sparseConfig configures the sparse rounds of one owner.
type sparseConfig struct {
	backend cuda.Backend
	lanes   int
	count   int // as in denseConfig
	ahead   int // as in denseConfig
	summing schema.Summing
	dType   schema.DType // of the rows of contributions
	held    *Held        // counts the bytes of payloads
	tables  []schema.TableSpec
	first   schema.Batch // first batch that has rounds
}

// ResumedWeight replaces the weight of the batch before the first one of a resumed job: it is no longer known, and only
// has to differ from 0.
const ResumedWeight = 1

// Sparse is the state of the sparse rounds of one owner, over its rows of all tables. A round closes when every lane's
// contribution has all its chunks, and rounds close in the order of their batches. It is not safe for concurrent use.
//
// The owner passes a frame through SparseChunk.Check, Check, CheckFinite and Add. Then it closes what Next returns:
// Merge returns the sum of each table, and Close ends the round.
type Sparse struct {
	config sparseConfig
	closed schema.Batch  // earlier batches have closed
	weight float64       // of the last closed batch
	before float64       // of the batch before it
	open   []sparseRound // of batch b at b % len: Ahead+1
	merge  merging
	free   []*sparseSum // free list of sums
	roots  []*sparseSum // free list of sums over all lanes, so that no other sum grows to their size
}

// sparseRound is the round of one batch.
type sparseRound struct {
	batch   schema.Batch
	nodes   []lane.Node  // that have contributed, completely or in part; in lane order, kept after closing
	weights []float64    // of nodes
	terms   []sparseTerm // of nodes; without parts after closing
	lanes   int          // of nodes whose contribution is complete
	started int          // nodes with at least one chunk
	sums    []*sparseSum // of terms that are merged, in lane order
}

// sparseTerm is one node's contribution.
type sparseTerm struct {
	contributor int
	chunks      schema.Chunk
	parts       []SparseChunk // by chunk; complete when it has chunks entries
	bytes       int64
	cost        int64 // sum of Cost over its chunks
	merged      bool  // added to one of the round's sums; has no parts
}

// SparseChunk is one chunk of one node's contribution, in the received payload.
type SparseChunk struct {
	Head        schema.Head
	View        schema.View
	Contributor int     // index in Held
	Bytes       int64   // of the payload
	Payload     Payload // released once, when the rows are no longer needed; may be nil

	low, high rowName // first and last row, if any
}

// rowName is the position of a row, or of a bag, in the order in which the chunks of a contribution list them. The bags
// of one lane may continue in the next chunk. A table has one form in all chunks.
type rowName struct {
	table schema.Table
	bags  bool
	key   uint64 // the lane, for bags
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

// Closed returns the number of closed batches.
func (s *Sparse) Closed() schema.Batch { return s.closed }

// Weight returns the weight, over all lanes, of the round that closed last; 0 before the first.
func (s *Sparse) Weight() float64 { return s.weight }

// WeightBefore returns the weight of the round before it.
func (s *Sparse) WeightBefore() float64 { return s.before }

func (s *Sparse) round(b schema.Batch) *sparseRound {
	if r := &s.open[b%schema.Batch(len(s.open))]; r.batch == b {
		return r
	}
	return nil
}

// begin returns the round of a batch, and makes it in the place of a closed one if it does not exist.
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

// Nodes returns the nodes whose contributions to a batch are complete.
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

// complete reports whether the i-th contribution has all its chunks.
func (r *sparseRound) complete(s *Sparse, i int) bool {
	return r.batch < s.closed || r.terms[i].merged || len(r.terms[i].parts) == int(r.terms[i].chunks)
}

// HeldOf returns the cost of what a batch's open round holds from a contributor.
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

// Check returns why a chunk cannot be added: it was added before, its lanes have been counted, its weight contradicts
// another one of the batch, or its keys do not follow those of the contribution's other chunks. Call c.Check first. It
// changes nothing.
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
		return w.checkTotal(s.config.lanes, s.config.count-r.started, r.nodes, r.weights, at, h.Node, h.Weight)
	}
	if refused.Reason != schema.ReasonDuplicate || h.Batch < s.closed {
		return refused
	}
	_, refused = r.terms[at].place(c)
	return refused
}

// Check checks a chunk by itself, and finds its first and last row.
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

// place finds the position of a chunk among those of its contribution.
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

// CheckFinite refuses values that are NaN or infinite, naming row and column of the first, and invalid counts of rows.
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
	panic("round: a value outside of every row") // unreachable: schema.Verify requires that values are rows
}

// Add adds a chunk that has passed Check. If it completes a contribution, Add adds up what it can, unless the round is
// now complete and the rest is to be fused: then Merge adds all that remains. An error comes from the backend; the sums
// cannot be trusted after it.
func (s *Sparse) Add(c *SparseChunk, w *Weights) error {
	h := &c.Head
	r := s.begin(h.Batch)
	at, refused := place(r.nodes, h.Node)
	if refused == nil {
		w.note(h.Node, h.Weight)
		r.nodes = slices.Insert(r.nodes, at, h.Node)
		r.weights = slices.Insert(r.weights, at, h.Weight)
		r.started += int(h.Node.Count)
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

// Next returns the oldest open round if it has all its lanes: its batch, and its weight over all lanes. Call Merge for
// the sums, Close to end it, and Next again, since a later round may be complete.
func (s *Sparse) Next() (b schema.Batch, weight float64, ok bool) {
	r := s.round(s.closed)
	if r == nil || r.lanes < s.config.count {
		return 0, 0, false
	}
	return r.batch, TreeWeight(s.config.lanes, r.nodes, r.weights), true
}

// Close ends the round that Next returned, and releases its payloads.
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

// Forget drops a contributor's incomplete contributions to open rounds.
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
			r.started -= int(r.nodes[k].Count)
			r.terms = slices.Delete(r.terms, k, k+1)
			r.nodes, r.weights = slices.Delete(r.nodes, k, k+1), slices.Delete(r.weights, k, k+1)
		}
	}
}

// Chunks returns the number of chunks that are held of a batch.
func (s *Sparse) Chunks(b schema.Batch) int {
	n := 0
	if r := s.round(b); r != nil {
		for i := range r.terms {
			n += len(r.terms[i].parts)
		}
	}
	return n
}

// String lists the open rounds, for tests.
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

// Release releases the payloads of open rounds. The Sparse must not be used afterwards.
func (s *Sparse) Release() {
	for i := range s.open {
		for k := range s.open[i].terms {
			s.release(&s.open[i].terms[k])
		}
	}
	s.open = nil
}

// merging is scratch memory of sums over rows, reused from batch to batch. It is at most as large as what a round
// merges.
type merging struct {
	terms    []cuda.RowsTerm
	lastKeys []uint64 // last of terms as slices, for a round of one term
	lastRows cuda.Vector
	keys     []uint64 // joined chunks of one term
	rows     []float32
	halves   []uint16 // the same for 16-bit values
	out      sumRows  // rows of a table when the round closes
	bags     expanding
	counted  []float32 // rows with their counts, of a table that is divided by them
	divided  []float32
}

// Merge adds up the contributions to one table of the round that Next returned, along the lane tree. It returns
// ascending keys, a row of dim values for each, and the divisor of the rows: total, the round's weight. Rows of a table
// with PerRow are already divided by their own counts, and the divisor is 1. Keys and rows are valid until the next
// Merge or Close, and empty if the table was not touched.
func (s *Sparse) Merge(id schema.Table, dim int, total float64) (keys []uint64, rows cuda.Vector, divisor float32,
	err error) {
	perRow := s.config.tables[id].PerRow
	if perRow {
		dim++
	}
	keys, rows, _, err = s.mergeNode(s.round(s.closed), id, dim, lane.Root(s.config.lanes), &s.merge.out)
	if err != nil || !perRow {
		return keys, rows, float32(total), err
	}
	m := &s.merge
	m.counted, m.divided = grown(m.counted, rows.Len()), grown(m.divided, len(keys)*(dim-1))
	if err := s.config.backend.Copy(cuda.Float32s(m.counted), rows); err != nil {
		return nil, cuda.Vector{}, 0, err
	}
	divideByCounts(m.divided, m.counted, dim-1)
	return keys, cuda.Float32s(m.divided), 1, nil
}

// divideByCounts divides rows of dim values by the count that follows each.
func divideByCounts(to, counted []float32, dim int) {
	for ; len(counted) > 0; to, counted = to[dim:], counted[dim+1:] {
		count := counted[dim]
		for i, v := range counted[:dim] {
			to[i] = v / count
		}
	}
}

// checkCounts refuses rows with an invalid count.
func (s *Sparse) checkCounts(c *SparseChunk) *schema.FrameError {
	for _, part := range c.View.Parts() {
		spec := &s.config.tables[part.Table]
		if !spec.PerRow {
			continue
		}
		for i, key := range part.Keys {
			if n := part.Rows[(i+1)*part.Dim-1]; n < 1 || n != float32(int64(n)) {
				return schema.Refuse(schema.ReasonWrongShape,
					"key %d of table %q, lanes %v, with count %v: want a number of at least 1",
					key, spec.Name, c.Head.Node, n)
			}
		}
	}
	return nil
}

// mergeNode merges one table over one node of the tree, whose required lanes are present. The sum is merged into the
// memory of out; a single term is returned in place.
func (s *Sparse) mergeNode(r *sparseRound, id schema.Table, dim int, at lane.Node, out *sumRows) (keys []uint64,
	rows cuda.Vector, merged bool, err error) {
	m := &s.merge
	defer func() { // drops the payloads
		clear(m.terms)
		m.lastKeys, m.lastRows = nil, cuda.Vector{}
	}()
	if err := s.gather(r, id, at); err != nil {
		return nil, cuda.Vector{}, false, err
	}
	switch len(m.terms) {
	case 0:
		return nil, cuda.Vector{}, false, nil
	case 1: // a node with one present child is that child
		return m.lastKeys, m.lastRows, false, nil
	}
	keysMax := 0
	for _, term := range m.terms {
		keysMax += term.Keys.Len()
	}
	out.keys, out.rows = grown(out.keys, keysMax), grown(out.rows, keysMax*dim)
	n, err := s.config.backend.Merge(cuda.Merge{
		Dim: dim, Lanes: s.config.lanes, Terms: m.terms, OutKeys: cuda.Uint64s(out.keys), OutRows: cuda.Float32s(out.rows),
	})
	if err != nil {
		return nil, cuda.Vector{}, false, cuda.NameMismatch(err, func(e *cuda.MismatchError) string {
			if e.Key < 0 {
				return fmt.Sprintf("table %q", s.config.tables[id].Name)
			}
			return e.InTable(s.config.tables[id].Name, uint64(e.Key))
		})
	}
	out.keys, out.rows = out.keys[:n], out.rows[:n*dim]
	return out.keys, cuda.Float32s(out.rows), true, nil
}

// gather lists the terms of one table below a node. A contribution in one chunk is used in place; one in several chunks
// is joined first, and bags are expanded.
func (s *Sparse) gather(r *sparseRound, id schema.Table, at lane.Node) error {
	m, dtype := &s.merge, s.config.dType
	m.terms = m.terms[:0]
	total := 0
	for i := range r.terms {
		total += r.terms[i].spread(id)
	}
	m.keys, m.rows, m.halves, m.bags.used = grown(m.keys, total)[:0], m.rows[:0], m.halves[:0], 0
	var last *sparseSum
	for i := range r.terms {
		t := &r.terms[i]
		if t.merged && at.Contains(r.nodes[i]) {
			if sum := r.sumOf(r.nodes[i]); sum != last {
				last = sum
				m.addSum(sum, id)
			}
			continue
		}
		if r.weights[i] == 0 || !at.Contains(r.nodes[i]) {
			continue // lanes without samples are absent
		}
		switch first, chunks := t.first(id); {
		case len(first.Keys) == 0:
		case first.Bags > 0:
			if err := s.expand(t, id); err != nil {
				return err
			}
		case chunks == 1:
			m.add(r.nodes[i], first.Keys, rows(dtype, &first))
		default:
			keys, rows := m.join(t, id, dtype)
			m.add(r.nodes[i], keys, rows)
		}
	}
	if m.bags.used > 0 && len(m.terms) > 1 {
		return s.widen()
	}
	return nil
}

func (m *merging) add(n lane.Node, keys []uint64, rows cuda.Vector) {
	m.lastKeys, m.lastRows = keys, rows
	m.terms = append(m.terms, cuda.RowsTerm{First: uint16(n.First), Count: n.Count, Keys: cuda.Uint64s(keys), Rows: rows})
}

func (m *merging) addSum(sum *sparseSum, id schema.Table) {
	if t := &sum.tables[id]; len(t.keys) > 0 {
		m.add(sum.node, t.keys, cuda.Float32s(t.rows))
	}
}

// join concatenates the chunks of one term.
func (m *merging) join(t *sparseTerm, id schema.Table, dtype schema.DType) ([]uint64, cuda.Vector) {
	firstKey, floats, halves := len(m.keys), len(m.rows), len(m.halves)
	for k := range t.parts {
		part := t.parts[k].section(id)
		m.keys, m.rows, m.halves = append(m.keys, part.Keys...), append(m.rows, part.Rows...),
			append(m.halves, part.Halves...)
	}
	return m.keys[firstKey:], vector(dtype, m.rows[floats:], m.halves[halves:])
}

// spread returns the number of the term's keys of a table if they are in more than one chunk, else 0.
func (t *sparseTerm) spread(id schema.Table) int {
	if first, chunks := t.first(id); chunks < 2 || first.Bags > 0 {
		return 0
	}
	keys := 0
	for i := range t.parts {
		keys += len(t.parts[i].section(id).Keys)
	}
	return keys
}

// first returns the term's first part of a table, and the number of chunks that have one.
func (t *sparseTerm) first(id schema.Table) (first schema.Part, chunks int) {
	for i := range t.parts {
		if own := t.parts[i].section(id); len(own.Keys) > 0 {
			if chunks++; chunks == 1 {
				first = own
			}
		}
	}
	return first, chunks
}

// section returns a chunk's first part of a table, or one without keys. In form rows it is the only part.
func (c *SparseChunk) section(id schema.Table) schema.Part {
	for _, part := range c.View.Parts() {
		if part.Table == id {
			return part
		}
	}
	return schema.Part{}
}

// grown returns n elements, with undefined values, that reuse s if it is large enough.
func grown[T any](s []T, n int) []T {
	if cap(s) >= n {
		return s[:n]
	}
	return slices.Grow(s[:0], n)[:n]
}

// sparseSum is the sum over a node of the tree, for every table, of contributions that arrived before the last one of
// the round. Their payloads are released.
type sparseSum struct {
	node   lane.Node
	tables []sumRows // by table
}

// sumRows are rows in separate memory, with ascending keys.
type sumRows struct {
	keys []uint64
	rows []float32
}

// combineUp adds the complete contribution of a node to its sibling if that is complete, too, and so on up the tree to
// the root's children.
func (s *Sparse) combineUp(r *sparseRound, node lane.Node) error {
	for {
		parent, ok := lane.Parent(node, s.config.lanes)
		if !ok || int(parent.Count) == s.config.lanes {
			return nil
		}
		left, right := parent.Split()
		if !s.present(r, left) || !s.present(r, right) {
			return nil
		}
		if err := s.addChildren(r, parent); err != nil {
			return fmt.Errorf("add rows of lanes %v and %v: %w", left, right, err)
		}
		node = parent
	}
}

// present reports whether a node's rows are present: as a complete contribution or as a sum.
func (s *Sparse) present(r *sparseRound, n lane.Node) bool {
	if at, ok := slices.BinarySearchFunc(r.nodes, n, compareNodes); ok {
		return r.complete(s, at)
	}
	return slices.ContainsFunc(r.sums, func(x *sparseSum) bool { return x.node == n })
}

// addChildren makes the sum over a node from those of its two children that are present.
func (s *Sparse) addChildren(r *sparseRound, parent lane.Node) error {
	sum := s.newSum(parent)
	for id := range s.config.tables {
		t := &sum.tables[id]
		keys, rows, merged, err := s.mergeNode(r, schema.Table(id), s.config.tables[id].Dim, parent, t)
		if err != nil {
			return err
		}
		if merged {
			continue
		}
		t.keys, t.rows = append(t.keys[:0], keys...), grown(t.rows, rows.Len())
		if len(keys) == 0 {
			continue
		}
		if err := s.config.backend.Copy(cuda.Float32s(t.rows), rows); err != nil {
			return err
		}
	}
	for i, n := range r.nodes {
		if parent.Contains(n) && !r.terms[i].merged {
			t := &r.terms[i]
			s.config.held.add(t.contributor, -t.bytes)
			for k := range t.parts {
				Release(t.parts[k].Payload)
			}
			t.merged, t.parts, t.bytes = true, nil, 0 // the cost stays, as a bound of the sum's memory
		}
	}
	r.sums = slices.DeleteFunc(r.sums, func(x *sparseSum) bool {
		if parent.Contains(x.node) {
			s.freeSum(x)
			return true
		}
		return false
	})
	at, _ := slices.BinarySearchFunc(r.sums, parent,
		func(x *sparseSum, n lane.Node) int { return compareNodes(x.node, n) })
	r.sums = slices.Insert(r.sums, at, sum)
	return nil
}

// newSum returns a sum over a node, from the free list if possible.
func (s *Sparse) newSum(n lane.Node) *sparseSum {
	free := s.freeList(n)
	if last := len(*free) - 1; last >= 0 {
		sum := (*free)[last]
		sum.node, *free = n, (*free)[:last]
		return sum
	}
	return &sparseSum{node: n, tables: make([]sumRows, len(s.config.tables))}
}

// freeSum puts a sum that is no longer needed on the free list.
func (s *Sparse) freeSum(sum *sparseSum) {
	free := s.freeList(sum.node)
	*free = append(*free, sum)
}

func (s *Sparse) freeList(n lane.Node) *[]*sparseSum {
	if int(n.Count) == s.config.lanes {
		return &s.roots
	}
	return &s.free
}

// sumOf returns the sum to which a contribution was added.
func (r *sparseRound) sumOf(n lane.Node) *sparseSum {
	for _, sum := range r.sums {
		if sum.node.Contains(n) {
			return sum
		}
	}
	panic("round: rows were added to no sum")
}
