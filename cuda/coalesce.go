package cuda

// Coalesce: see the interface.
func (r *reference) Coalesce(a Coalesce) (int, error) {
	r.calls.n.Add(1)
	if err := a.check(); err != nil {
		return 0, err
	}
	s := r.borrow()
	defer r.giveBack(s)
	sorted, _ := s.sortKeys(a.Keys, -1)
	n := distinct(sorted)
	if n > a.OutKeys.n {
		return 0, tooFew("coalesce", a.OutKeys.n, n)
	}
	from := addends{rows: a.Rows}
	for rank := range n {
		storeKey(a.OutKeys, rank, sorted[0].key)
		var index []int64
		index, sorted = s.segment(sorted)
		to := a.OutRows.Slice(rank*a.Dim, (rank+1)*a.Dim)
		out := room32(to, &s.row)
		s.sumRows(out, &from, index, nil)
		if a.Weight != 0 {
			divide(out, out, a.Weight)
		}
		store32(to, out)
	}
	return n, nil
}

// sortKeys sorts keys, each with its position, leaving out those that are not in [0, limit); a limit of -1 means none.
func (s *scratch) sortKeys(keys Vector, limit int64) (sorted []pair, skipped int64) {
	s.pairs, s.spare = grow(s.pairs, keys.n)[:0], grow(s.spare, keys.n)
	for i, key := range ints64(keys, &s.ids) {
		if uint64(key) >= uint64(limit) && limit >= 0 {
			skipped++
			continue
		}
		s.pairs = append(s.pairs, pair{uint64(key), int64(i)})
	}
	return sortPairs(s.pairs, s.spare[:len(s.pairs)]), skipped
}

// segment takes the run of equal keys at the front of sorted pairs. It returns the rows that came with them, in scratch
// memory, and the rest.
func (s *scratch) segment(sorted []pair) (rows []int64, rest []pair) {
	n := 1
	for n < len(sorted) && sorted[n].key == sorted[0].key {
		n++
	}
	s.index = grow(s.index, n)
	for i, p := range sorted[:n] {
		s.index[i] = p.row
	}
	return s.index, sorted[n:]
}

// storeKey writes a key to a vector of any type of keys.
func storeKey(keys Vector, at int, key uint64) {
	if keys.dtype == Int32 {
		view[int32](keys)[at] = int32(key)
	} else {
		view[uint64](keys)[at] = key
	}
}
