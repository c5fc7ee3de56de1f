package cuda

// Sums in canonical order, in portable Go. Rows are added four at a time, which changes nothing in the order of
// additions of any one element but loads and stores the running sum a quarter as often.
const (
	blockTerms = 64              // terms of a block
	superTerms = 64 * blockTerms // terms of a superblock
)

// scratch is the memory of one call. It belongs to a pool of its backend.
type scratch struct {
	pairs, spare    []pair
	index, position []int64   // rows of a sum, and their positions among the ids
	bags            []int64   // of each position
	ids, offsets    []int64   // widened from int32
	levels          []float32 // two rows: the block's and the superblock's running sums
	term            []float32 // one row, widened or weighted
	values          []float32 // an operation's own: a scaled gradient, a transposed matrix
	row             []float32 // one row: of a transposed matrix, the exponentials of one sample, a result to be narrowed
	state           [2 * (1 + slotsMax)][]float32
	replayed        [1 + slotsMax][]float32
	zeros, before   []float32 // of a replayed step: its gradient, and the row before it
	merge           mergeScratch
}

// grow returns a slice of n elements, reusing the memory of s. The contents are undefined.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

// addends are the rows that a sum chooses from: rows [R, dim] of floats. Where weights are given, a row is multiplied
// by the weight of its position; where argmax [R, dim] is, elements count only where it names the position.
type addends struct {
	rows    Vector
	weights []float32
	argmax  []int32
}

// direct is the rows where they can be added as they are, else nil.
func (a *addends) direct() []float32 {
	if a.rows.dtype != Float32 || a.weights != nil || a.argmax != nil {
		return nil
	}
	return view[float32](a.rows)
}

// sumRows writes the canonical sum of the chosen rows to out, len(out) being the length of a row. position is that of
// each row, for weights and argmax.
func (s *scratch) sumRows(out []float32, from *addends, index, position []int64) {
	clear(out)
	if len(index) <= blockTerms {
		// a sum is never -0, so adding it to +0 at the two upper levels would change nothing
		s.addBlock(out, from, index, position)
		return
	}
	s.levels = grow(s.levels, 2*len(out))
	block, super := s.levels[:len(out)], s.levels[len(out):]
	for lo := 0; lo < len(index); lo += superTerms {
		end := min(lo+superTerms, len(index))
		clear(super)
		for at := lo; at < end; at += blockTerms {
			n := min(blockTerms, end-at)
			clear(block)
			if position != nil {
				s.addBlock(block, from, index[at:at+n], position[at:at+n])
			} else {
				s.addBlock(block, from, index[at:at+n], nil)
			}
			add(super, block)
		}
		add(out, super)
	}
}

// addBlock adds the rows of one block to acc, one after the other.
func (s *scratch) addBlock(acc []float32, from *addends, index, position []int64) {
	if rows := from.direct(); rows != nil {
		addRows(acc, rows, index)
		return
	}
	dim := len(acc)
	for i, row := range index {
		lo := int(row) * dim
		term := floats32(from.rows.Slice(lo, lo+dim), &s.term)
		if from.weights != nil {
			s.term = grow(s.term, dim)
			w := from.weights[position[i]]
			for d := range s.term {
				s.term[d] = float32(w * term[d])
			}
			term = s.term
		}
		if from.argmax != nil {
			for d, at := range from.argmax[lo:][:dim] {
				if int64(at) == position[i] {
					acc[d] += term[d]
				}
			}
			continue
		}
		add(acc, term)
	}
}

// addRows adds the chosen rows to acc, one after the other.
func addRows(acc, rows []float32, index []int64) {
	dim := len(acc)
	at := func(i int64) []float32 { return rows[int(i)*dim:][:dim] }
	for ; len(index) >= 4; index = index[4:] {
		r0, r1, r2, r3 := at(index[0]), at(index[1]), at(index[2]), at(index[3])
		for d := range acc {
			v := acc[d] + r0[d]
			v += r1[d]
			v += r2[d]
			acc[d] = v + r3[d]
		}
	}
	for _, i := range index {
		add(acc, at(i))
	}
}

// add adds term to acc, element by element.
func add(acc, term []float32) {
	term = term[:len(acc)]
	for d := range acc {
		acc[d] += term[d]
	}
}

// sumValues is the canonical sum of a slice.
func sumValues(x []float32) float32 {
	var total float32
	for len(x) > 0 {
		part := x[:min(superTerms, len(x))]
		x = x[len(part):]
		var super float32
		for len(part) > 0 {
			n := min(blockTerms, len(part))
			var block float32
			for _, v := range part[:n] {
				block += v
			}
			super += block
			part = part[n:]
		}
		total += super
	}
	return total
}

// addProducts adds a[k] * b[k*len(acc):...] to acc for each k in turn, each product rounded first.
func addProducts(acc, a, b []float32) {
	n := len(acc)
	for ; len(a) >= 4; a, b = a[4:], b[4*n:] {
		a0, a1, a2, a3 := a[0], a[1], a[2], a[3]
		b0, b1, b2, b3 := b[:n], b[n:][:n], b[2*n:][:n], b[3*n:][:n]
		for j := range acc {
			v := acc[j] + float32(a0*b0[j])
			v += float32(a1 * b1[j])
			v += float32(a2 * b2[j])
			acc[j] = v + float32(a3*b3[j])
		}
	}
	for k, v := range a {
		row := b[k*n:][:n]
		for j := range acc {
			acc[j] += float32(v * row[j])
		}
	}
}

// product writes the canonical sum over k of a[k] * (row k of b) to out.
func (s *scratch) product(out, a, b []float32) {
	clear(out)
	if len(a) <= blockTerms {
		addProducts(out, a, b)
		return
	}
	n := len(out)
	s.levels = grow(s.levels, 2*n)
	block, super := s.levels[:n], s.levels[n:]
	for len(a) > 0 {
		part := a[:min(superTerms, len(a))]
		a = a[len(part):]
		clear(super)
		for len(part) > 0 {
			m := min(blockTerms, len(part))
			clear(block)
			addProducts(block, part[:m], b)
			add(super, block)
			part, b = part[m:], b[m*n:]
		}
		add(out, super)
	}
}
