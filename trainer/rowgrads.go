package trainer

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// rowSums sums the sparse gradients of the hosted lanes up the lane tree, table by table, when the last lane of a
// hosted node has ended: one pass over the rows for any number of lanes. Rows have local ids, in the order of their
// keys, so sums over local ids are sums over keys.
type rowSums struct {
	backend cuda.Backend
	lanes   int // of the job
	first   lane.Lane
	dims    []int      // [table] number of values of a row's gradient in frames
	perRow  *rowCounts // counts of tables with PerRow; nil if there is none

	dtype   schema.DType // type of sums in frames
	rounder rounder
	bags    *bagGrads           // gradients of the hosted lanes, as the workload set them
	count   func(table int) int // returns the number of local ids

	open  [][]laneRows // [table] lanes with rows in the node under way, ascending
	terms []cuda.RowsTerm
	node  [][]rows // [hosted node][table] complete sums of the batch

	closes int    // index of the node that the lane under way completes, or -1
	at     int    // index of the hosted lane
	given  []bool // [table] the lane's gradient was set

	single []int64 // 0, 1, 2, ...
	keys   []int64 // scratch of expand
}

// laneRows are the rows of one lane.
type laneRows struct {
	lane lane.Lane
	rows
}

// rows are coalesced gradients of one table: local ids, ascending and distinct, and a row of values for each.
type rows struct {
	ids    []uint64
	values []float32
	halves []uint16 // values as sent, if in 16 bits
}

func (r *rows) set(ids []uint64, values []float32) {
	r.ids, r.values = append(r.ids[:0], ids...), append(r.values[:0], values...)
}

func newRowSums(backend cuda.Backend, lanes int, bags *bagGrads, dims []int) *rowSums {
	s := &rowSums{backend: backend, dtype: bags.dtype, rounder: newRounder(backend), lanes: lanes,
		first: bags.first, dims: dims, bags: bags,
		open: make([][]laneRows, len(dims)), node: make([][]rows, len(bags.nodes)), given: make([]bool, len(dims))}
	for i := range s.node {
		s.node[i] = make([]rows, len(dims))
	}
	return s
}

// singles returns the offsets of n bags of one key.
func (s *rowSums) singles(n int) []int64 {
	for len(s.single) <= n {
		s.single = append(s.single, int64(len(s.single)))
	}
	return s.single[:n+1]
}

// reset starts a batch without rows.
func (s *rowSums) reset() {
	for _, node := range s.node {
		for table := range node {
			node[table].set(nil, nil)
		}
	}
	for table := range s.open {
		s.open[table] = s.open[table][:0]
	}
	s.bags.reset()
}

// begin starts hosted lane at.
func (s *rowSums) begin(at int, l laneSums) {
	s.at, s.closes = at, l.closes
	clear(s.given)
	s.bags.begin(at)
}

func (s *rowSums) give(table int) error {
	if s.given[table] {
		return fmt.Errorf("gradient of table %d is given twice for one lane: coalesce it into one", table)
	}
	s.given[table] = true
	return nil
}

// add sets the lane's gradient of a table. ids are local ids below count, ascending. It copies ids and values
// [len(ids), dim].
func (s *rowSums) add(table int, ids []uint64, values []float32) error {
	if err := s.give(table); err != nil {
		return err
	}
	b := &s.bags.lanes[s.at][table]
	b.given = givenRows
	b.rows.set(ids, values)
	return nil
}

// addBags sets the lane's gradient of a table by bags. The caller must not change ids, the lane's local ids, until the
// batch has been sent. addBags copies offsets and grad.
func (s *rowSums) addBags(table int, mode cuda.Mode, ids, offsets []int64, grad []float32) error {
	if err := s.give(table); err != nil {
		return err
	}
	s.bags.lanes[s.at][table].set(mode, s.perRow.dim(table, s.dims[table]), ids, offsets, grad)
	return nil
}

// next returns the rows of hosted lane at in the node under way, to be filled.
func (s *rowSums) next(table, at int) *rows {
	open := s.open[table]
	if n := len(open); n < cap(open) {
		open = open[:n+1] // reuses its memory
	} else {
		open = append(open, laneRows{})
	}
	s.open[table] = open
	last := &open[len(open)-1]
	last.lane = s.first + lane.Lane(at)
	return &last.rows
}

// expand sums the bags of hosted lane at by row.
func (s *rowSums) expand(table, at int, b *bagGrad) error {
	dim, count := s.perRow.dim(table, s.dims[table]), s.count(table)
	room, out := min(len(b.ids), count), s.next(table, at)
	s.keys, out.values = grown(s.keys, room), grown(out.values, room*dim)
	n, err := s.backend.BagBackward(cuda.BagBackward{Dim: dim, Mode: cuda.Sum, Padding: cuda.NoPadding, R: int64(count),
		IDs: cuda.Int64s(b.ids), Offsets: cuda.Int64s(b.offsets), GradOut: cuda.Float32s(b.values),
		Keys: cuda.Int64s(s.keys), Out: cuda.Float32s(out.values)})
	if err != nil {
		return fmt.Errorf("sum bag gradients of table %d by row: %w", table, err)
	}
	out.ids, out.values = grown(out.ids, n), out.values[:n*dim]
	for i, id := range s.keys[:n] {
		out.ids[i] = uint64(id)
	}
	s.perRow.add(table, at, out)
	return nil
}

// merge sums the lanes of a complete node.
func (s *rowSums) merge(table, node int) error {
	open, out := s.open[table], &s.node[node][table]
	s.open[table], s.terms = open[:0], s.terms[:0]
	if len(open) == 1 {
		*out, open[0].rows = open[0].rows, *out
		return nil
	}
	n := 0
	for i := range open {
		if o := &open[i]; len(o.ids) > 0 {
			s.terms = append(s.terms, cuda.RowsTerm{First: uint16(o.lane), Count: 1, Keys: cuda.Uint64s(o.ids),
				Rows: cuda.Float32s(o.values)})
			n += len(o.ids)
		}
	}
	out.ids, out.values = grown(out.ids, n), grown(out.values, n*s.dims[table])
	n, err := s.backend.Merge(cuda.Merge{Dim: s.dims[table], Lanes: s.lanes, OutKeys: cuda.Uint64s(out.ids),
		OutRows: cuda.Float32s(out.values),
		Terms:   s.terms})
	if err != nil {
		return fmt.Errorf("add row gradients of table %d over %d lanes: %w", table, len(s.terms), err)
	}
	out.ids, out.values = out.ids[:n], out.values[:n*s.dims[table]]
	return nil
}

// end ends a lane. If that completes a node, end decides for each table whether it is sent as rows or as bags, and sums
// those sent as rows.
func (s *rowSums) end() error {
	g, node := s.bags, s.closes
	if node < 0 {
		return nil
	}
	lo, hi := g.lanesOf(node)
	for table := range s.dims {
		if g.form[node][table] = g.asBags(table, node, s.dims[table], s.count(table)); g.form[node][table] {
			continue
		}
		for at := lo; at < hi; at++ {
			if !g.there[at] {
				continue
			}
			if err := s.replay(table, at, &g.lanes[at][table]); err != nil {
				return err
			}
		}
		if err := s.merge(table, node); err != nil {
			return err
		}
	}
	return nil
}

// finite reports whether the gradients of the lane under way have only finite values.
func (s *rowSums) finite() bool {
	for table := range s.dims {
		if s.backend.FirstNonFinite(cuda.Float32s(s.bags.lanes[s.at][table].all())) >= 0 {
			return false
		}
	}
	return true
}

// drop removes the lane under way, and does what follows the lane before it.
func (s *rowSums) drop(late laneSums) error {
	s.bags.there[s.at] = false
	s.closes = late.closes
	return s.end()
}

// replay adds the gradient that a hosted lane set for a table, and takes over the memory of its rows.
func (s *rowSums) replay(table, at int, b *bagGrad) error {
	switch b.given {
	case givenRows:
		out := s.next(table, at)
		*out, b.rows = b.rows, *out
		s.perRow.add(table, at, out)
	case givenBags:
		return s.expand(table, at, b)
	}
	return nil
}

// rounded rounds the sums of a hosted node if they are sent in 16 bits. Rows have no error feedback. A residual for
// every row that a trainer ever touches would be as large as the table, and the residual of a rare row would be added
// many batches later, to an unrelated gradient.
func (s *rowSums) rounded(node int) ([]rows, error) {
	sums := s.node[node]
	if s.dtype == schema.DTypeFloat32 {
		return sums, nil
	}
	for table := range sums {
		r := &sums[table]
		r.halves = grown(r.halves, len(r.values))
		if err := s.rounder.round(halfVector(s.dtype, r.halves), r.values); err != nil {
			return nil, fmt.Errorf("round %d row gradients of table %d: %w", len(r.ids), table, err)
		}
	}
	return sums, s.roundBags(node)
}

// roundBags rounds the bags of a hosted node.
func (s *rowSums) roundBags(node int) error {
	g := s.bags
	lo, hi := g.lanesOf(node)
	for table, asBags := range g.form[node] {
		for at := lo; at < hi && asBags; at++ {
			b := &g.lanes[at][table]
			if !g.there[at] || b.given != givenBags {
				continue
			}
			b.halves = grown(b.halves, len(b.values))
			if err := s.rounder.round(halfVector(s.dtype, b.halves), b.values); err != nil {
				return fmt.Errorf("round %d bag gradients of table %d: %w", len(b.offsets)-1, table, err)
			}
		}
	}
	return nil
}

// rowCounts appends to the gradient of each row how often the lane's keys name it, for tables with PerRow. Counts are
// summed as gradients are, so each owner has the count over all lanes with a gradient. A nil rowCounts counts nothing.
type rowCounts struct {
	tables *tables
	times  []float32 // [local id] scratch
}

// dim returns the number of values of a row's gradient without a count; dims is the number in frames.
func (c *rowCounts) dim(table, dims int) int {
	if c == nil {
		return dims
	}
	return c.tables.specs[table].Dim
}

// add appends the counts to the rows of a hosted lane.
func (c *rowCounts) add(table, at int, r *rows) {
	if c == nil || !c.tables.specs[table].PerRow {
		return
	}
	c.times = grown(c.times, len(c.tables.keys[table]))
	clear(c.times)
	for _, id := range c.tables.laneIDs(table, at) {
		c.times[id]++
	}
	dim, n := c.tables.specs[table].Dim, len(r.ids)
	r.values = append(r.values, make([]float32, n)...)
	for i := n - 1; i >= 0; i-- { // from the end, so no value is overwritten before it is moved
		copy(r.values[i*(dim+1):], r.values[i*dim:(i+1)*dim])
		r.values[i*(dim+1)+dim] = c.times[r.ids[i]]
	}
}

// bagGrads has the row gradients of the hosted lanes as the workload set them. When the last lane of a hosted node has
// ended, it decides, table by table, in which form they are sent: all as bags, lane by lane, or all as rows, summed.
// The bits are the same, unless values are rounded to 16 bits: then one form rounds bags and the other sums of them.
type bagGrads struct {
	dtype  schema.DType
	first  lane.Lane
	nodes  []lane.Node
	owners *routing // routes all keys of the batch to their shards

	lanes [][]bagGrad // [hosted lane][table]
	form  [][]bool    // [hosted node][table] sent as bags
	there []bool      // [hosted lane] it is present

	seen []uint32  // [local id] number of the last count that saw it
	now  uint32    // number of the current count
	last []counted // [shard] last counted item

	whole  []bool // [table] shards pool it, so it is always sent as bags
	perRow []bool // [table] rows have counts, so it is always sent as rows
}

// bagGrad is one lane's gradient of one table.
type bagGrad struct {
	given   givenAs
	ids     []int64   // local ids of the lane's keys, in the order of the bags
	keys    []uint64  // the keys, instead of ids, if shards pool the table
	offsets []int64   // [bags+1]
	values  []float32 // [bags, dim], scaled so that rows are plain sums of them
	halves  []uint16  // values as sent, if in 16 bits
	rows    rows      // if given is givenRows
}

type givenAs uint8

const (
	givenNothing givenAs = iota
	givenRows
	givenBags
)

func newBagGrads(dtype schema.DType, plan *lanePlan, owners *routing, specs []schema.TableSpec) *bagGrads {
	tables := len(specs)
	g := &bagGrads{dtype: dtype, first: plan.first, nodes: plan.nodes, owners: owners,
		lanes: make([][]bagGrad, len(plan.lanes)), form: make([][]bool, len(plan.nodes)),
		there: make([]bool, len(plan.lanes)), last: make([]counted, owners.shards),
		whole: make([]bool, tables), perRow: make([]bool, tables)}
	for i := range specs {
		g.whole[i], g.perRow[i] = pooledByShards(specs[i]), specs[i].PerRow
	}
	for i := range g.lanes {
		g.lanes[i] = make([]bagGrad, tables)
	}
	for i := range g.form {
		g.form[i] = make([]bool, tables)
	}
	return g
}

// reset starts a batch.
func (g *bagGrads) reset() {
	clear(g.there)
	for _, tables := range g.form {
		clear(tables)
	}
}

// begin starts a lane.
func (g *bagGrads) begin(at int) {
	g.there[at] = true
	for i := range g.lanes[at] {
		g.lanes[at][i].given = givenNothing
	}
}

// all returns the values that were set.
func (b *bagGrad) all() []float32 {
	switch b.given {
	case givenRows:
		return b.rows.values
	case givenBags:
		return b.values
	}
	return nil
}

// lanesOf returns the hosted lanes [lo, hi) of a node.
func (g *bagGrads) lanesOf(node int) (lo, hi int) {
	n := g.nodes[node]
	return int(n.First) - int(g.first), n.End() - int(g.first)
}

// set stores a gradient by bags. It divides mean bags by their length in float32, as BagBackward does.
func (b *bagGrad) set(mode cuda.Mode, dim int, ids, offsets []int64, grad []float32) {
	b.given, b.ids, b.keys = givenBags, ids, nil
	b.offsets, b.values = append(b.offsets[:0], offsets...), append(b.values[:0], grad...)
	if mode != cuda.Mean {
		return
	}
	for i := 1; i < len(offsets); i++ {
		if n := offsets[i] - offsets[i-1]; n > 1 {
			for j := (i - 1) * dim; j < i*dim; j++ {
				b.values[j] /= float32(n)
			}
		}
	}
}

// checkBags checks a gradient by bags.
func checkBags(mode cuda.Mode, dim, ids int, offsets []int64, grad []float32) error {
	bags := len(offsets) - 1
	switch {
	case mode != cuda.Sum && mode != cuda.Mean:
		return fmt.Errorf("mode %d: want sum or mean", mode)
	case bags < 0 || len(grad) != bags*dim:
		return fmt.Errorf("%d values for %d offsets: want one offset more than bags, and %d values for each bag", len(grad),
			len(offsets), dim)
	case offsets[0] != 0 || offsets[bags] != int64(ids):
		return fmt.Errorf("offsets from %d to %d: want 0 to %d, the number of the lane's keys", offsets[0],
			offsets[bags], ids)
	}
	for i := range bags {
		if offsets[i+1] < offsets[i] {
			return fmt.Errorf("offset %d after %d: want offsets that do not fall", offsets[i+1], offsets[i])
		}
	}
	return nil
}

// asBags reports whether a table of a node is sent as bags. Gradients that the workload set by rows are not. Otherwise
// the form with fewer bytes of sections, keys, offsets and values is used. Trainers may decide differently, since
// frames describe their content.
func (g *bagGrads) asBags(table, node, dim, distinct int) bool {
	if g.perRow[table] {
		return false
	}
	lo, hi := g.lanesOf(node)
	some := false
	for at := lo; at < hi; at++ {
		switch b := &g.lanes[at][table]; {
		case !g.there[at]:
		case b.given == givenRows && len(b.rows.ids) > 0:
			return false
		case b.given == givenBags && len(b.ids)+len(b.keys) > 0:
			some = true
		}
	}
	if !some || g.whole[table] {
		return some
	}
	rows, bags := g.bytes(table, lo, hi, dim, distinct)
	return bags < rows
}

// Bytes of a section in either form, and of its entries except values.
const (
	rowsSectionBytes = 16
	bagsSectionBytes = 24
	keyBytes         = 8
	offsetBytes      = 4
)

// bytes returns the bytes of a table of lanes [lo, hi), as rows and as bags: sections, keys, offsets and values on all
// shards. For 16-bit values it counts as if there were one shard: the form then shows in the bits, which must not
// depend on the number of shards.
func (g *bagGrads) bytes(table, lo, hi, dim, distinct int) (rows, bags int) {
	of, row := g.owners.of[table], dim*g.dtype.Bytes()
	g.seen = grown(g.seen, distinct)
	if g.now++; g.now == 0 { // the number has wrapped around
		clear(g.seen[:cap(g.seen)])
		g.now = 1
	}
	clear(g.last)
	for at := lo; at < hi; at++ {
		b := &g.lanes[at][table]
		if !g.there[at] || b.given != givenBags {
			continue
		}
		for bag := range len(b.offsets) - 1 {
			for _, id := range b.ids[b.offsets[bag]:b.offsets[bag+1]] {
				last := &g.last[0]
				if g.dtype == schema.DTypeFloat32 {
					last = &g.last[of[id]]
				}
				if g.seen[id] != g.now {
					g.seen[id] = g.now
					rows += keyBytes + row
					if !last.any {
						last.any, rows = true, rows+rowsSectionBytes
					}
				}
				if last.lane != at+1 {
					last.lane, last.bag, bags = at+1, 0, bags+bagsSectionBytes
				}
				if last.bag != bag+1 {
					last.bag, bags = bag+1, bags+offsetBytes+row
				}
				bags += keyBytes
			}
		}
	}
	return rows, bags
}

// counted is a shard's last counted item: whether its rows have a section, and the lane and the bag, from 1.
type counted struct {
	any       bool
	lane, bag int
}
