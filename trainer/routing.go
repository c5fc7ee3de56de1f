package trainer

import "gradbus/schema"

// routing finds the shards that own the distinct keys of a batch, and cuts each shard's share into messages whose
// values fit a chunk. Lookups use it for all keys, sparse gradients for the keys with a gradient in a tree node. Its
// memory is reused: its results are valid until the next assign.
type routing struct {
	dims      []int // of each table
	shards    int
	valuesMax int // float32 values in one message
	owner     func(table int, key uint64) int
	quiet     []bool // [table] its keys are routed but not sent; nil: none is quiet

	shard []shardKeys
	of    [][]uint16 // [table][local id] owning shard
}

// shardKeys is one shard's share: positions of keys by table, ascending within a table.
type shardKeys struct {
	at     []int32
	counts []int // of each table
	starts []int // first index in at of each table
	pieces []piece
	chunks [][]piece // pieces, by message
}

// piece is a run of one table's keys within one message: count keys from index first of the shard's share of that
// table. Pieces with one chunk number form one message.
type piece struct {
	chunk, table, first, count int
}

func newRouting(dims []int, shards, valuesMax int, owner func(table int, key uint64) int) *routing {
	s := &routing{dims: dims, shards: shards, valuesMax: valuesMax, owner: owner}
	s.shard = make([]shardKeys, shards)
	for i := range s.shard {
		s.shard[i].counts, s.shard[i].starts = make([]int, len(dims)), make([]int, len(dims))
	}
	s.of = make([][]uint16, len(dims))
	return s
}

// assign routes keys[table], ascending and distinct, to the shards.
func (s *routing) assign(keys [][]uint64) {
	s.begin()
	for table := range s.dims {
		of := grown(s.of[table], len(keys[table]))
		s.of[table] = of
		for i, key := range keys[table] {
			shard := 0
			if s.shards > 1 {
				shard = s.owner(table, key)
			}
			of[i] = uint16(shard)
			if s.quiet != nil && s.quiet[table] {
				continue
			}
			s.shard[shard].at = append(s.shard[shard].at, int32(i))
		}
		s.end(table)
	}
	s.cut()
}

// assignLocals routes the keys whose local ids are in chosen[table], ascending, to their shards in from. Positions are
// indices into chosen.
func (s *routing) assignLocals(from *routing, chosen func(table int) []uint64) {
	s.begin()
	for table := range s.dims {
		of := from.of[table]
		for i, local := range chosen(table) {
			shard := &s.shard[of[local]]
			shard.at = append(shard.at, int32(i))
		}
		s.end(table)
	}
	s.cut()
}

func (s *routing) begin() {
	for i := range s.shard {
		s.shard[i].at = s.shard[i].at[:0]
	}
}

func (s *routing) end(table int) {
	for i := range s.shard {
		k := &s.shard[i]
		k.starts[table] = 0
		if table > 0 {
			k.starts[table] = k.starts[table-1] + k.counts[table-1]
		}
		k.counts[table] = len(k.at) - k.starts[table]
	}
}

func (s *routing) cut() {
	for i := range s.shard {
		k := &s.shard[i]
		k.pieces, k.chunks = appendPieces(k.pieces[:0], k.counts, s.dims, s.valuesMax), k.chunks[:0]
		for first := 0; first < len(k.pieces); {
			end := first + 1
			for end < len(k.pieces) && k.pieces[end].chunk == k.pieces[first].chunk {
				end++
			}
			k.chunks = append(k.chunks, k.pieces[first:end])
			first = end
		}
	}
}

// chunks returns the messages to a shard: for each its pieces, table by table.
func (s *routing) chunks(shard int) [][]piece { return s.shard[shard].chunks }

// positions returns the positions of a piece's keys among the assigned keys of its table, ascending.
func (s *routing) positions(shard int, p piece) []int32 {
	k := &s.shard[shard]
	first := k.starts[p.table] + p.first
	return k.at[first : first+p.count]
}

// layout returns the frame layout for the pieces of one message.
func (s *routing) layout(kind schema.Kind, dtype schema.DType, pieces []piece) schema.Layout {
	l := schema.Layout{Kind: kind, DType: dtype, Sections: len(pieces)}
	for _, p := range pieces {
		l.Keys += p.count
		l.Values += dtype.Bytes() * p.count * s.dims[p.table]
	}
	return l
}

// appendPieces cuts counts[table] rows of dims[table] values into chunks of at most valuesMax values. A larger row gets
// a chunk of its own.
func appendPieces(to []piece, counts, dims []int, valuesMax int) []piece {
	chunk, free := 0, valuesMax
	for table, count := range counts {
		for first := 0; first < count; {
			n := min(count-first, free/dims[table])
			if n == 0 && free == valuesMax {
				n = 1
			}
			if n > 0 {
				to = append(to, piece{chunk, table, first, n})
				first += n
				free -= n * dims[table]
			}
			if first < count {
				chunk, free = chunk+1, valuesMax
			}
		}
	}
	return to
}
