package trainer

import (
	"fmt"

	"gradbus/schema"
)

// Lookups of bags: what a shard pools is asked for with the bags' keys, lane by lane, and answered by one row a bag.

// bagPiece is a run of one lane's bags of one table within one request. Bags without keys are left out.
type bagPiece struct {
	table, lane int
	dim         int // columns that the shard has
	column      int // the first of them
	first       int // of laneBags.full
	count       int
	firstKey    int // of the lane's keys
	keys        int
}

// addBags appends the requests for what a shard pools: no more in one than fits a chunk, whose answer is no larger than
// one either. A bag that is larger travels alone.
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

// fillBags writes a request.
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

// takeBags places the pooled rows of an answer.
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
