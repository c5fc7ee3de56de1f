package cuda

import "sync"

// reference is the portable backend: the oracle of the others, and the fallback of a build without the native library.
// Its operations run on the calling goroutine.
type reference struct {
	pool sync.Pool // of *scratch
}

func newReference() *reference {
	return &reference{pool: sync.Pool{New: func() any { return new(scratch) }}}
}

func (r *reference) borrow() *scratch    { return r.pool.Get().(*scratch) }
func (r *reference) giveBack(s *scratch) { r.pool.Put(s) }

func (r *reference) Name() string { return "go" }
func (r *reference) ISA() string  { return "portable" }

// Alloc maps memory outside the Go heap; see allocate.
func (r *reference) Alloc(float32s int) (*Buffer, error) { return allocate(float32s) }

// Close does nothing: the backend owns nothing but garbage-collected scratch memory.
func (r *reference) Close() error { return nil }

// BagForward: see the interface.
func (r *reference) BagForward(a BagForward) error {
	bags, err := a.check()
	if err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	for b := range bags {
		ids := s.withoutPadding(a.IDs[a.Offsets[b]:a.Offsets[b+1]], a.Padding)
		out := a.Out[b*a.Dim:][:a.Dim]
		s.sumRows(out, a.Rows, ids)
		if a.Mode == Mean && len(ids) > 1 {
			divide(out, out, float32(len(ids)))
		}
	}
	return nil
}

// withoutPadding is ids without those that are padding; it may be ids itself.
func (s *scratch) withoutPadding(ids []int64, padding int64) []int64 {
	if padding == NoPadding {
		return ids
	}
	s.index = s.index[:0]
	for _, id := range ids {
		if id != padding {
			s.index = append(s.index, id)
		}
	}
	return s.index
}

// divide writes x / by to out, which may be x.
func divide(out, x []float32, by float32) {
	x = x[:len(out)]
	for d := range out {
		out[d] = x[d] / by
	}
}

// BagBackward: see the interface.
func (r *reference) BagBackward(a BagBackward) (int, error) {
	bags, err := a.check()
	if err != nil {
		return 0, err
	}
	s := r.borrow()
	defer r.giveBack(s)
	grad := a.GradOut
	if a.Mode == Mean {
		s.values = grow(s.values, len(a.GradOut))
		grad = s.values
	}
	s.pairs = s.pairs[:0]
	for b := range bags {
		before := len(s.pairs)
		for _, id := range a.IDs[a.Offsets[b]:a.Offsets[b+1]] {
			if a.Padding == NoPadding || id != a.Padding {
				s.pairs = append(s.pairs, pair{uint64(id), int64(b)})
			}
		}
		if n := len(s.pairs) - before; a.Mode == Mean && n > 0 {
			divide(grad[b*a.Dim:][:a.Dim], a.GradOut[b*a.Dim:], float32(n))
		}
	}
	s.spare = grow(s.spare, len(s.pairs))
	sorted := sortPairs(s.pairs, s.spare)
	n := distinct(sorted)
	if n > len(a.Keys) {
		return 0, tooFew("bag backward", len(a.Keys), n)
	}
	s.sumSegments(sorted, grad, a.Dim, func(segment int, key uint64) []float32 {
		a.Keys[segment] = int64(key)
		return a.Out[segment*a.Dim:][:a.Dim]
	})
	return n, nil
}

// Coalesce: see the interface.
func (r *reference) Coalesce(a Coalesce) (int, error) {
	if err := a.check(); err != nil {
		return 0, err
	}
	s := r.borrow()
	defer r.giveBack(s)
	s.pairs, s.spare = grow(s.pairs, len(a.Keys)), grow(s.spare, len(a.Keys))
	for i, key := range a.Keys {
		s.pairs[i] = pair{key, int64(i)}
	}
	sorted := sortPairs(s.pairs, s.spare)
	n := distinct(sorted)
	if n > len(a.OutKeys) {
		return 0, tooFew("coalesce", len(a.OutKeys), n)
	}
	s.sumSegments(sorted, a.Rows, a.Dim, func(segment int, key uint64) []float32 {
		a.OutKeys[segment] = key
		return a.OutRows[segment*a.Dim:][:a.Dim]
	})
	return n, nil
}

// sumSegments sums the rows of each run of equal keys into the row that begin gives for it.
func (s *scratch) sumSegments(sorted []pair, rows []float32, dim int, begin func(segment int, key uint64) []float32) {
	for segment := 0; len(sorted) > 0; segment++ {
		n := 1
		for n < len(sorted) && sorted[n].key == sorted[0].key {
			n++
		}
		s.index = grow(s.index, n)
		for i, p := range sorted[:n] {
			s.index[i] = p.row
		}
		s.sumRows(begin(segment, sorted[0].key), rows, s.index)
		sorted = sorted[n:]
	}
}
