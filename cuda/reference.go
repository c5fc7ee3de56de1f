package cuda

import "sync"

// reference is the portable backend: the oracle of the others, and the fallback of a build without the native library.
// Its operations run on the calling goroutine. Sums and steps of float32 work in place; other types are widened into
// scratch memory first and narrowed at the end.
type reference struct {
	pool  sync.Pool // of *scratch
	calls callCounter
}

func newReference() *reference {
	return &reference{pool: sync.Pool{New: func() any { return new(scratch) }}}
}

func (r *reference) borrow() *scratch    { return r.pool.Get().(*scratch) }
func (r *reference) giveBack(s *scratch) { r.pool.Put(s) }

func (r *reference) Name() string { return "go" }
func (r *reference) ISA() string  { return "portable" }
func (r *reference) Threads() int { return 1 }

// Alloc maps memory outside the Go heap; see allocate.
func (r *reference) Alloc(float32s int) (*Buffer, error) { return allocate(float32s) }

// Close does nothing: the backend owns nothing but garbage-collected scratch memory.
func (r *reference) Close() error { return nil }

// Copy: see the interface.
func (r *reference) Copy(to, from Vector) error {
	r.calls.n.Add(1)
	if err := copyShape(to, from); err != nil || to.n == 0 {
		return err
	}
	copy(to.bytes(), from.bytes())
	return nil
}

// bytes is the vector's memory.
func (a Vector) bytes() []byte {
	return view[byte](Vector{a.data, a.n * a.dtype.Bytes(), Uint8})
}

// optional is view, and nil for a vector that is not given.
func optional[T any](v Vector) []T {
	if v.n == 0 {
		return nil
	}
	return view[T](v)
}

// tell fills a report, where one is asked for.
func tell(to *Report, what Report) {
	if to != nil {
		*to = what
	}
}

// bagsOf reads ids and offsets, widened to 64 bits; an end is appended to open offsets.
func (s *scratch) bagsOf(p *pooling) (ids, offsets []int64) {
	ids, offsets = ints64(p.ids, &s.ids), ints64(p.offsets, &s.offsets)
	if p.open {
		s.offsets = append(append(s.offsets[:0], offsets...), int64(p.ids.n))
		offsets = s.offsets
	}
	return ids, offsets
}

// BagForward: see the interface.
func (r *reference) BagForward(a BagForward) error {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	p := a.pooling()
	ids, offsets := s.bagsOf(&p)
	from := addends{rows: a.Rows, weights: optional[float32](a.Weights)}
	var skipped int64
	for b := range p.bags() {
		lo, hi := int(offsets[b]), int(offsets[b+1])
		index, position, bad := s.counting(&p, ids[lo:hi], lo)
		skipped += bad
		to := a.Out.Slice(b*a.Dim, (b+1)*a.Dim)
		out := room32(to, &s.row)
		if a.Mode == Max {
			argmax := a.ArgMax
			if argmax.n > 0 {
				argmax = argmax.Slice(b*a.Dim, (b+1)*a.Dim)
			}
			s.largestRow(out, a.Rows, index, position, optional[int32](argmax))
		} else {
			s.sumRows(out, &from, index, position)
		}
		if a.Mode == Mean && len(index) > 1 {
			divide(out, out, float32(len(index)))
		}
		store32(to, out)
	}
	tell(a.Report, Report{skipped: skipped})
	return nil
}

// counting is the ids of a bag that count, neither padding nor to be skipped, and their positions, where those are
// needed. The first position is lo. The result may be ids itself.
func (s *scratch) counting(p *pooling, ids []int64, lo int) (index, position []int64, skipped int64) {
	if p.padding == NoPadding && !p.skip && !p.placed() {
		return ids, nil, 0
	}
	s.index, s.position = s.index[:0], s.position[:0]
	for i, id := range ids {
		switch {
		case p.padding != NoPadding && id == p.padding:
		case uint64(id) >= uint64(p.limit):
			skipped++
		default:
			s.index, s.position = append(s.index, id), append(s.position, int64(lo+i))
		}
	}
	return s.index, s.position, skipped
}

// largestRow writes the largest value of each column to out, and the position it came from to argmax, where there is
// one.
func (s *scratch) largestRow(out []float32, rows Vector, index, position []int64, argmax []int32) {
	dim := len(out)
	clear(out)
	for d := range argmax {
		argmax[d] = -1
	}
	for i, row := range index {
		x := floats32(rows.Slice(int(row)*dim, int(row+1)*dim), &s.term)
		for d, v := range x {
			if best := out[d]; i == 0 || v > best || v != v && best == best {
				out[d] = v
				if argmax != nil {
					argmax[d] = int32(position[i])
				}
			}
		}
	}
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
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return 0, err
	}
	s := r.borrow()
	defer r.giveBack(s)
	p := a.pooling()
	grad, skipped := s.scatter(&p, floats32(a.GradOut, &s.values))
	sorted := sortPairs(s.pairs, s.spare)
	n := distinct(sorted)
	if n > a.Keys.n {
		return 0, tooFew(p.op, a.Keys.n, n)
	}
	keys := view[int64](a.Keys)
	from := addends{Float32s(grad), optional[float32](a.Weights), optional[int32](a.ArgMax)}
	for rank := range n {
		keys[rank] = int64(sorted[0].key)
		var index, position []int64
		index, sorted = s.segment(sorted)
		if p.placed() { // what was sorted are positions
			s.position = grow(s.position, len(index))
			position = s.position
			for i, at := range index {
				position[i], index[i] = at, s.bags[at]
			}
		}
		to := a.Out.Slice(rank*a.Dim, (rank+1)*a.Dim)
		out := room32(to, &s.row)
		s.sumRows(out, &from, index, position)
		store32(to, out)
	}
	tell(a.Report, Report{skipped: skipped})
	return n, nil
}

// placed reports whether it matters at which position a row stands.
func (p *pooling) placed() bool { return p.weights.n > 0 || p.mode == Max }

// scatter fills s.pairs with the ids that count and where their gradient is: the bag, or, where positions matter, the
// position, whose bag is in s.bags. It returns the gradients of the bags, divided where the mode is Mean.
func (s *scratch) scatter(p *pooling, grad []float32) (scaled []float32, skipped int64) {
	ids, offsets := s.bagsOf(p)
	scaled = grad
	if p.mode == Mean {
		s.values = grow(s.values, len(grad))
		scaled = s.values
	}
	if p.placed() {
		s.bags = grow(s.bags, len(ids))
	}
	s.pairs = s.pairs[:0]
	for b := range p.bags() {
		lo, hi, before := int(offsets[b]), int(offsets[b+1]), len(s.pairs)
		for i, id := range ids[lo:hi] {
			switch {
			case p.padding != NoPadding && id == p.padding:
			case uint64(id) >= uint64(p.limit):
				skipped++
			case p.placed():
				s.bags[lo+i] = int64(b)
				s.pairs = append(s.pairs, pair{uint64(id), int64(lo + i)})
			default:
				s.pairs = append(s.pairs, pair{uint64(id), int64(b)})
			}
		}
		if n := len(s.pairs) - before; p.mode == Mean && n > 0 {
			divide(scaled[b*p.dim:][:p.dim], grad[b*p.dim:], float32(n))
		}
	}
	s.spare = grow(s.spare, len(s.pairs))
	return scaled, skipped
}
