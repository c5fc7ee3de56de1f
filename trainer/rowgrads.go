package trainer

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// rowSums adds the sparse gradients of the hosted lanes up the lane tree, table by table, once the last lane of a
// hosted node is there: one pass over the rows, however many lanes they come from. Rows are named by local ids, whose
// order is the order of the keys, so that sums over local ids are sums over keys.
type rowSums struct {
	backend cuda.Backend
	lanes   int // of the job
	first   lane.Lane
	dims    []int      // of a row's gradient as it travels
	perRow  *rowCounts // of tables that are divided by them; nil where none is

	dtype   schema.DType // in which sums travel
	rounder rounder
	bags    *bagGrads           // the gradients of the hosted lanes, as they were given
	count   func(table int) int // of local ids

	open  [][]laneRows // [table] of the lanes of the node under way that gave rows, ascending
	terms []cuda.RowsTerm
	node  [][]rows // [hosted node][table] complete sums of the batch

	closes int    // index of the node that the lane under way ends, or -1
	at     int    // number of the hosted lane
	given  []bool // of each table: the lane gave its gradient

	single []int64 // 0, 1, 2, ...
	keys   []int64 // scratch of expand
}

// laneRows are one lane's.
type laneRows struct {
	lane lane.Lane
	rows
}

// rows are coalesced gradients of one table: local ids, ascending and distinct, and a row of values for each.
type rows struct {
	ids    []uint64
	values []float32
	halves []uint16 // values as they travel, where that is in 16 bits
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

// singles are the offsets of n bags of one.
func (s *rowSums) singles(n int) []int64 {
	for len(s.single) <= n {
		s.single = append(s.single, int64(len(s.single)))
	}
	return s.single[:n+1]
}

// reset starts a batch: no node has a row.
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

// begin starts hosted lane number at.
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

// add takes the lane's gradient of a table. ids are local ids below count, ascending; values [len(ids), dim] is not
// kept.
func (s *rowSums) add(table int, ids []uint64, values []float32) error {
	if err := s.give(table); err != nil {
		return err
	}
	b := &s.bags.lanes[s.at][table]
	b.given = givenRows
	b.rows.set(ids, values)
	return nil
}

// addBags takes the lane's gradient of a table by its bags. ids, the lane's local ids, must stay as they are until the
// batch has been sent; offsets and grad are not kept.
func (s *rowSums) addBags(table int, mode cuda.Mode, ids, offsets []int64, grad []float32) error {
	if err := s.give(table); err != nil {
		return err
	}
	s.bags.lanes[s.at][table].set(mode, s.perRow.dim(table, s.dims[table]), ids, offsets, grad)
	return nil
}

// next are the rows of hosted lane at in the node under way, to be set.
func (s *rowSums) next(table, at int) *rows {
	open := s.open[table]
	if n := len(open); n < cap(open) {
		open = open[:n+1] // and its memory
	} else {
		open = append(open, laneRows{})
	}
	s.open[table] = open
	last := &open[len(open)-1]
	last.lane = s.first + lane.Lane(at)
	return &last.rows
}

// expand sums the bags of hosted lane at up by row.
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

// merge adds the lanes of a node that is complete.
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

// end finishes a lane. If that completes a node, it decides in which form each of its tables travels, and adds up those
// that travel as rows.
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

// finite reports whether what the lane under way has given has finite values alone.
func (s *rowSums) finite() bool {
	for table := range s.dims {
		if s.backend.FirstNonFinite(cuda.Float32s(s.bags.lanes[s.at][table].all())) >= 0 {
			return false
		}
	}
	return true
}

// drop forgets what the lane under way has given, and does what follows a lane before it.
func (s *rowSums) drop(late laneSums) error {
	s.bags.there[s.at] = false
	s.closes = late.closes
	return s.end()
}

// replay takes what a hosted lane has given for a table, with the memory of rows.
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

// rounded rounds the sums of a hosted node to what travels, where that has 16 bits. Rows have no error feedback: a
// residual for every row that a trainer ever touches would be as large as the table, and what a rare row is owed would
// be added many batches later, to a gradient that has nothing to do with it.
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

// rowCounts puts behind the gradient of each row how often the lane's keys name it, where a table is divided by that.
// It is added up as the gradient is, so each owner has the number over all lanes that gave one. A nil rowCounts counts
// for no table.
type rowCounts struct {
	tables *tables
	times  []float32 // by local id; scratch
}

// dim returns the number of values of a row's gradient that the workload computes, of those that are sent.
func (c *rowCounts) dim(table, dims int) int {
	if c == nil {
		return dims
	}
	return c.tables.specs[table].Dim
}

// add widens the rows of a hosted lane.
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
	for i := n - 1; i >= 0; i-- { // from the end: nothing is written over that is still needed
		copy(r.values[i*(dim+1):], r.values[i*dim:(i+1)*dim])
		r.values[i*(dim+1)+dim] = c.times[r.ids[i]]
	}
}

// bagGrads keeps the row gradients of the hosted lanes as the workload gave them. When the last lane of a hosted node
// is there it decides, table by table, in which form they travel: a table of a node is either all bags, lane by lane,
// or all rows, added up. The bits are the same, unless values are rounded to 16 bits: then bags are rounded in one form
// and sums of them in the other.
type bagGrads struct {
	dtype  schema.DType
	first  lane.Lane
	nodes  []lane.Node
	owners *routing // of all keys of the batch: which shard owns which

	lanes [][]bagGrad // [hosted lane][table]
	form  [][]bool    // [hosted node][table]: as bags
	there []bool      // of each hosted lane: it is present

	seen []uint32  // of a table's local ids: the count that has seen it
	now  uint32    // number of the count
	last []counted // of each shard

	whole  []bool // of each table: shards pool it, so it always travels as bags
	perRow []bool // of each table: rows have their count behind them, so it always travels as rows
}

// bagGrad is one lane's gradient of one table.
type bagGrad struct {
	given   givenAs
	ids     []int64   // local ids of the lane's keys, in the order of the bags
	keys    []uint64  // in place of ids: the keys themselves, where shards pool the table
	offsets []int64   // [bags+1]
	values  []float32 // [bags, dim], scaled so that rows are plain sums of them
	halves  []uint16  // values as they travel, where that is in 16 bits
	rows    rows      // where rows were given
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

// all are the values that were given.
func (b *bagGrad) all() []float32 {
	switch b.given {
	case givenRows:
		return b.rows.values
	case givenBags:
		return b.values
	}
	return nil
}

// lanesOf are the hosted lanes [lo, hi) of a node.
func (g *bagGrads) lanesOf(node int) (lo, hi int) {
	n := g.nodes[node]
	return int(n.First) - int(g.first), n.End() - int(g.first)
}

// set keeps a gradient given by bags. Mean bags are divided by their length here, in float32, as BagBackward does.
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

// checkBags checks a gradient given by bags.
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

// asBags says whether a table of a node travels as bags. Rows that the workload gave do not; what may travel as either
// goes by the bytes of sections, keys, offsets and values. Each trainer may decide for itself, since the frames say
// what they hold.
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

// Bytes of a section in either form, and of what it holds beside values.
const (
	rowsSectionBytes = 16
	bagsSectionBytes = 24
	keyBytes         = 8
	offsetBytes      = 4
)

// bytes are those of a table of lanes [lo, hi), as rows and as bags: sections, keys, offsets and values on all shards.
// With 16-bit values they are counted as if there were one shard: the form then shows in the bits, which may not depend
// on how many shards there are.
func (g *bagGrads) bytes(table, lo, hi, dim, distinct int) (rows, bags int) {
	of, row := g.owners.of[table], dim*g.dtype.Bytes()
	g.seen = grown(g.seen, distinct)
	if g.now++; g.now == 0 { // stamps start over
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

// counted is the last counted item of a shard: its rows have a section; the lane and the bag, from 1.
type counted struct {
	any       bool
	lane, bag int
}
