package trainer

// split deals the distinct keys of a batch to the shards that own them, and cuts each shard's share into messages whose
// values fit a chunk. Lookups and sparse gradients both use it: the first for all keys, the second for those that a tree
// node has a gradient for. Its memory is reused; what it returns is valid until the next assign.
type split struct {
	dims      []int // of each table
	shards    int
	valuesMax int // float32 values in one message
	owner     func(table int, key uint64) int

	shard []shardKeys
	of    [][]uint16 // [table][local id] owning shard
}

// shardKeys is one shard's share: local ids by table, ascending within a table.
type shardKeys struct {
	local  []int32
	counts []int // of each table
	starts []int // first index in local of each table
	pieces []piece
}

// piece is a run of one table's keys within one message: count of them, the first being number first of the shard's
// share of that table. Pieces of one chunk travel together.
type piece struct {
	chunk, table, first, count int
}

func newSplit(dims []int, shards, valuesMax int, owner func(table int, key uint64) int) *split {
	s := &split{dims: dims, shards: shards, valuesMax: valuesMax, owner: owner}
	s.shard = make([]shardKeys, shards)
	for i := range s.shard {
		s.shard[i].counts, s.shard[i].starts = make([]int, len(dims)), make([]int, len(dims))
	}
	s.of = make([][]uint16, len(dims))
	return s
}

// assign deals keys[table], ascending and distinct, to the shards.
func (s *split) assign(keys [][]uint64) {
	for i := range s.shard {
		s.shard[i].local = s.shard[i].local[:0]
	}
	for table := range s.dims {
		s.of[table] = grown(s.of[table], len(keys[table]))
		s.begin(table)
		for local, key := range keys[table] {
			shard := s.owner(table, key)
			s.of[table][local] = uint16(shard)
			s.shard[shard].local = append(s.shard[shard].local, int32(local))
		}
		s.end(table)
	}
	s.cut()
}

// assignLocals deals the keys that chosen[table] names by their local ids, ascending, to the shards that from gave them
// to.
func (s *split) assignLocals(from *split, chosen [][]uint64) {
	for i := range s.shard {
		s.shard[i].local = s.shard[i].local[:0]
	}
	for table := range s.dims {
		s.begin(table)
		of := from.of[table]
		for _, local := range chosen[table] {
			shard := &s.shard[of[local]]
			shard.local = append(shard.local, int32(local))
		}
		s.end(table)
	}
	s.cut()
}

func (s *split) begin(table int) {
	for i := range s.shard {
		s.shard[i].starts[table] = len(s.shard[i].local)
	}
}

func (s *split) end(table int) {
	for i := range s.shard {
		s.shard[i].counts[table] = len(s.shard[i].local) - s.shard[i].starts[table]
	}
}

func (s *split) cut() {
	for i := range s.shard {
		k := &s.shard[i]
		k.pieces = appendPieces(k.pieces[:0], k.counts, s.dims, s.valuesMax)
	}
}

// pieces lists what a shard is sent, by chunk and table.
func (s *split) pieces(shard int) []piece { return s.shard[shard].pieces }

// chunks is the number of messages that a shard is sent.
func (s *split) chunks(shard int) int {
	p := s.shard[shard].pieces
	if len(p) == 0 {
		return 0
	}
	return p[len(p)-1].chunk + 1
}

// locals are the local ids of a piece, ascending.
func (s *split) locals(shard int, p piece) []int32 {
	k := &s.shard[shard]
	first := k.starts[p.table] + p.first
	return k.local[first : first+p.count]
}

// appendPieces cuts counts[table] rows of dims[table] values into chunks of at most valuesMax values. A row that is
// larger than that travels alone.
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
