package trainer

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

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

// counted is what was counted last of a shard's: its rows have a section; the lane and the bag, from 1.
type counted struct {
	any       bool
	lane, bag int
}
