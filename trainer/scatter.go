package trainer

import "gradbus/schema"

// scatter divides a node's gradients of tables into messages to each shard. A table is sent as rows, or, if bagGrads
// decides so, as bags: for each lane, a shard gets the bags with a key there, with only these keys. A share is cut
// table by table, and within a table lane by lane. A bag that does not fit continues in the next message with the same
// gradient. That changes nothing, since a gradient counts once for each key.
type scatter struct {
	sums  *rowSums
	place *schema.Placement
	rows  *routing                 // routes the rows of a node
	keys  func(table int) []uint64 // by local id

	node   int
	of     []rows         // rows of the node
	bags   [][]routedBags // [shard*tables + table][lane of the node]
	pieces []scatterPiece
	chunks [][]scatterPiece // of one shard
}

// routedBags is one shard's part of one lane's bags of one table.
type routedBags struct {
	keys   []uint64
	bags   []int32 // indices of the lane's bags
	starts []int   // index in keys of each bag's first key
}

// scatterPiece is one message's part of a table: rows if lane is negative, else bags of a lane.
type scatterPiece struct {
	piece
	lane     int // index of the hosted lane
	firstKey int // index in routedBags.keys
	keys     int
}

func newScatter(sums *rowSums, rows *routing, place *schema.Placement, keys func(table int) []uint64) *scatter {
	s := &scatter{sums: sums, rows: rows, place: place, keys: keys}
	most := 0
	for i := range sums.bags.nodes {
		lo, hi := sums.bags.lanesOf(i)
		most = max(most, hi-lo)
	}
	s.bags = make([][]routedBags, rows.shards*len(rows.dims))
	for i := range s.bags {
		s.bags[i] = make([]routedBags, most)
	}
	return s
}

// assign scatters the gradients of a hosted node. owners has the routing of all keys of the batch.
func (s *scatter) assign(node int, owners *routing) (err error) {
	if s.of, err = s.sums.rounded(node); err != nil {
		return err
	}
	s.node = node
	s.rows.assignLocals(owners, func(table int) []uint64 { return s.of[table].ids })
	for table := range s.rows.dims {
		if !s.asBags(table) {
			continue
		}
		g := s.sums.bags
		lo, hi := g.lanesOf(node)
		for at := lo; at < hi; at++ {
			for shard := range s.rows.shards {
				d := s.at(shard, table, at-lo)
				d.keys, d.bags, d.starts = d.keys[:0], d.bags[:0], d.starts[:0]
			}
			switch b := &g.lanes[at][table]; {
			case !g.there[at] || b.given != givenBags:
			case g.whole[table]:
				s.scatterWhole(b, table, at-lo)
			default:
				s.scatterBags(b, table, at-lo, owners)
			}
		}
	}
	return nil
}

func (s *scatter) asBags(table int) bool {
	return s.sums.bags.form[s.node][table]
}

func (s *scatter) at(shard, table, lane int) *routedBags {
	return &s.bags[shard*len(s.rows.dims)+table][lane]
}

func (s *scatter) scatterBags(b *bagGrad, table, lane int, owners *routing) {
	of, keys := owners.of[table], s.keys(table)
	for bag := range len(b.offsets) - 1 {
		for _, id := range b.ids[b.offsets[bag]:b.offsets[bag+1]] {
			d := s.at(int(of[id]), table, lane)
			if n := len(d.bags); n == 0 || d.bags[n-1] != int32(bag) {
				d.bags, d.starts = append(d.bags, int32(bag)), append(d.starts, len(d.keys))
			}
			d.keys = append(d.keys, keys[id])
		}
	}
}

// share returns the messages of the assigned node to a shard. It is valid until the next call.
func (s *scatter) share(shard int) [][]scatterPiece {
	c := cutter{pieces: s.pieces[:0], free: s.rows.valuesMax, max: s.rows.valuesMax}
	for table, dim := range s.rows.dims {
		if !s.asBags(table) {
			c.rows(table, dim, s.rows.shard[shard].counts[table])
			continue
		}
		lo, hi := s.sums.bags.lanesOf(s.node)
		for at := lo; at < hi; at++ {
			c.bags(table, s.dim(shard, table), at, s.at(shard, table, at-lo))
		}
	}
	s.pieces, s.chunks = c.pieces, s.chunks[:0]
	for first := 0; first < len(s.pieces); {
		end := first + 1
		for end < len(s.pieces) && s.pieces[end].chunk == s.pieces[first].chunk {
			end++
		}
		s.chunks = append(s.chunks, s.pieces[first:end])
		first = end
	}
	return s.chunks
}

// cutter cuts a share into messages. Sizes are counted in float32 values: dim for a row; for a bag dim, one for the
// offset, and two for each key.
type cutter struct {
	pieces    []scatterPiece
	chunk     int
	sections  int
	free, max int
}

func (c *cutter) next() { c.chunk, c.sections, c.free = c.chunk+1, 0, c.max }

func (c *cutter) add(p scatterPiece) {
	p.chunk = c.chunk
	c.pieces = append(c.pieces, p)
	if c.sections++; c.sections == schema.SectionsMax {
		c.next()
	}
}

func (c *cutter) rows(table, dim, count int) {
	for first := 0; first < count; {
		n := min(count-first, c.free/dim)
		if n <= 0 && c.free == c.max {
			n = 1
		}
		if n <= 0 {
			c.next()
			continue
		}
		c.free -= n * dim
		c.add(scatterPiece{piece: piece{table: table, first: first, count: n}, lane: -1})
		first += n
	}
}

func (c *cutter) bags(table, dim, at int, d *routedBags) {
	for bag, key := 0, 0; bag < len(d.bags); {
		p := scatterPiece{piece: piece{table: table, first: bag}, lane: at, firstKey: key}
		for bag < len(d.bags) {
			room := (c.free - dim - 1) / 2
			if c.free == c.max {
				room = max(room, c.max/2, 1) // a row that is larger than a message gets a message of its own
			}
			if room < 1 {
				break
			}
			n := min(d.end(bag)-key, room)
			p.count, p.keys, key, c.free = p.count+1, p.keys+n, key+n, c.free-dim-1-2*n
			if key < d.end(bag) {
				break // the bag continues in the next message
			}
			bag++
		}
		if p.count > 0 {
			c.add(p)
		}
		if bag < len(d.bags) && c.free < c.max {
			c.next()
		}
	}
}

// end returns the index after the last key of a bag.
func (d *routedBags) end(bag int) int {
	if bag+1 < len(d.starts) {
		return d.starts[bag+1]
	}
	return len(d.keys)
}

// layout returns the frame layout for the pieces of one message.
func (s *scatter) layout(shard int, pieces []scatterPiece) schema.Layout {
	l := schema.Layout{Kind: schema.KindSparse, DType: s.sums.dtype, Sections: len(pieces)}
	for _, p := range pieces {
		l.Values += l.DType.Bytes() * p.count * s.dim(shard, p.table)
		if p.lane < 0 {
			l.Keys += p.count
			continue
		}
		l.Keys, l.Bags = l.Keys+p.keys, l.Bags+p.count
	}
	return l
}

// fill writes a message to a shard into a frame of the layout.
func (s *scatter) fill(f *schema.Frame, shard int, pieces []scatterPiece) {
	keys, values, halves, offsets := f.Keys(), f.Float32s(), f.Halves(), f.Offsets()
	for i, p := range pieces {
		dim, whole, column := s.rows.dims[p.table], s.rows.dims[p.table], 0
		var at []int32 // indices of rows of from32 or from16
		var from32 []float32
		var from16 []uint16
		if p.lane < 0 {
			p.keys = p.count
			at, from32, from16 = s.rows.positions(shard, p.piece), s.of[p.table].values, s.of[p.table].halves
			for k, position := range at {
				keys[k] = s.keys(p.table)[s.of[p.table].ids[position]]
			}
		} else {
			g := s.sums.bags
			lo, _ := g.lanesOf(s.node)
			d, b := s.at(shard, p.table, p.lane-lo), &g.lanes[p.lane][p.table]
			at, from32, from16 = d.bags[p.first:p.first+p.count], b.values, b.halves
			copy(keys[:p.keys], d.keys[p.firstKey:])
			for k := range p.count {
				offsets[k] = uint32(max(d.starts[p.first+k], p.firstKey) - p.firstKey)
			}
			offsets = offsets[p.count:]
			if g.whole[p.table] {
				column, dim = s.place.Columns(schema.Table(p.table), shard)
			}
			f.Bags()[i] = schema.Bags{Lane: uint32(g.first) + uint32(p.lane), Count: uint32(p.count)}
		}
		f.SetSection(i, schema.Section{Table: schema.Table(p.table), Dim: uint32(dim), Count: uint64(p.keys)})
		keys = keys[p.keys:]
		if halves != nil {
			takeColumns(halves, column, dim, whole, at, from16)
			halves = halves[p.count*dim:]
		} else {
			takeColumns(values, column, dim, whole, at, from32)
			values = values[p.count*dim:]
		}
	}
}
