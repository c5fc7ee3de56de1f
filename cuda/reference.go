package cuda

import (
	"sync"

	"gradbus/lane"
)

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

func (a *Gather) shape() error {
	const op = "gather"
	if err := checkDim(op, a.Dim); err != nil {
		return err
	}
	if err := firstOf(typed(op, "rows", a.Rows, floats), typed(op, "ids", a.IDs, indexes),
		typed(op, "out", a.Out, only(a.Rows.dtype)), checkFew(op, "ids", a.IDs.n)); err != nil {
		return err
	}
	if _, err := rowsOf(op, "rows", a.Rows.n, a.Dim); err != nil {
		return err
	}
	return firstOf(exactRows(op, "out", a.Out.n, a.IDs.n, a.Dim), apart(op, "out", a.Out, a.Rows, a.IDs))
}

func (a *Gather) data() error { return checkIDs("gather", a.IDs, int64(a.Rows.n/a.Dim), NoPadding) }

// Gather: see the interface.
func (r *reference) Gather(a Gather) error {
	r.calls.n.Add(1)
	return a.inGo()
}

func (a *Gather) inGo() error {
	if err := a.shape(); err != nil {
		return err
	}
	if err := a.data(); err != nil || a.IDs.n == 0 {
		return err
	}
	row := a.Dim * a.Rows.dtype.Bytes()
	if a.IDs.dtype == Int32 {
		gatherRows(a.Out.bytes(), a.Rows.bytes(), row, view[int32](a.IDs))
	} else {
		gatherRows(a.Out.bytes(), a.Rows.bytes(), row, view[int64](a.IDs))
	}
	return nil
}

func gatherRows[T int32 | int64](out, rows []byte, row int, ids []T) {
	for _, id := range ids {
		out = out[copy(out, rows[int(id)*row:(int(id)+1)*row]):]
	}
}

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

// pair is a key and the row that it came with.
type pair struct {
	key uint64
	row int64
}

// sortPairs sorts by key, equal keys in the order they came in, using spare (as long as pairs) as working memory. The
// result lies in one of the two. A radix sort by bytes, from the least: bytes in which all keys agree cost nothing, so
// ids below 2^16 take two passes.
func sortPairs(pairs, spare []pair) []pair {
	if len(pairs) < 48 {
		insertionSort(pairs)
		return pairs
	}
	var differ uint64
	for _, p := range pairs {
		differ |= p.key ^ pairs[0].key
	}
	for shift := 0; shift < 64; shift += 8 {
		if differ>>shift&0xff == 0 {
			continue
		}
		var start [256]int
		for _, p := range pairs {
			start[p.key>>shift&0xff]++
		}
		total := 0
		for i, n := range start {
			start[i] = total
			total += n
		}
		for _, p := range pairs {
			digit := p.key >> shift & 0xff
			spare[start[digit]] = p
			start[digit]++
		}
		pairs, spare = spare, pairs
	}
	return pairs
}

// insertionSort is stable and has no cost of its own, which decides for a handful of pairs.
func insertionSort(pairs []pair) {
	for i := 1; i < len(pairs); i++ {
		p := pairs[i]
		j := i
		for ; j > 0 && pairs[j-1].key > p.key; j-- {
			pairs[j] = pairs[j-1]
		}
		pairs[j] = p
	}
}

// distinct counts the different keys of sorted pairs.
func distinct(pairs []pair) int {
	n := 0
	for i := range pairs {
		if i == 0 || pairs[i].key != pairs[i-1].key {
			n++
		}
	}
	return n
}

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

// Sums along the lane tree. The terms are disjoint nodes of the tree in lane order, so the tree over them is known from
// the depth at which each two neighbours part: the deeper they part, the earlier they are added.

// partDepth is the depth of the smallest node of the tree that holds both a and b, where a ends before b begins.
func partDepth(a, b lane.Node, lanes int) int {
	at := lane.Root(lanes)
	for depth := 0; ; depth++ {
		left, right := at.Split()
		switch {
		case left.Contains(a) && left.Contains(b):
			at = left
		case right.Contains(a) && right.Contains(b):
			at = right
		default:
			return depth
		}
	}
}

// step of a plan: push the term with this index, or, where it is addStep, replace the two topmost sums by left + right.
type step int32

const addStep step = -1

// planner turns the depths at which neighbours part into steps. Of two neighbouring gaps one is always deeper, since
// nodes of equal depth are themselves parted by a higher one.
type planner struct {
	steps  []step
	depths []int // of the gaps between the sums that wait on the stack
}

func (p *planner) reset() { p.steps, p.depths = p.steps[:0], p.depths[:0] }

// push adds a term. depth is that of the gap to the term before it; the first term's is not looked at.
func (p *planner) push(term, depth int) {
	if len(p.steps) > 0 {
		p.fold(depth)
		p.depths = append(p.depths, depth)
	}
	p.steps = append(p.steps, step(term))
}

// fold adds up what parts deeper than depth; fold(-1) ends the plan.
func (p *planner) fold(depth int) {
	for len(p.depths) > 0 && p.depths[len(p.depths)-1] > depth {
		p.steps = append(p.steps, addStep)
		p.depths = p.depths[:len(p.depths)-1]
	}
}

// mergeScratch is the memory of sums along the tree.
type mergeScratch struct {
	plan   planner
	gaps   []int       // gaps[i] is the depth at which terms i and i+1 part
	heads  []int       // how many keys of each term are done
	active []int       // terms that have the present key
	stack  [][]float32 // sums that wait; entry i is a term's own memory or own[i]
	own    [][]float32

	quotient []float32 // a sum divided, before it is narrowed
}

// gapsOf fills gaps for n nodes.
func (m *mergeScratch) gapsOf(lanes, n int, node func(i int) lane.Node) {
	m.gaps = grow(m.gaps, max(n-1, 0))
	for i := range m.gaps {
		m.gaps[i] = partDepth(node(i), node(i+1), lanes)
	}
}

// run executes the plan over rows of n values and returns the sum, which is a term's memory or scratch.
func (m *mergeScratch) run(n int, term func(i int) Vector) []float32 {
	top := 0
	for _, s := range m.plan.steps {
		if s != addStep {
			if top == len(m.stack) {
				m.stack, m.own = append(m.stack, nil), append(m.own, nil)
			}
			m.stack[top] = floats32(term(int(s)), &m.own[top])
			top++
			continue
		}
		top--
		m.own[top-1] = grow(m.own[top-1], n)
		sum, left, right := m.own[top-1], m.stack[top-1][:n], m.stack[top][:n]
		for d := range sum {
			sum[d] = left[d] + right[d]
		}
		m.stack[top-1] = sum
	}
	sum := m.stack[0]
	clear(m.stack) // keeps no caller's memory alive
	return sum
}

// Merge: see the interface.
func (r *reference) Merge(a Merge) (int, error) {
	r.calls.n.Add(1)
	if err := a.check(); err != nil {
		return 0, err
	}
	s := r.borrow()
	defer r.giveBack(s)
	m := &s.merge
	n := m.union(a.Terms, func(int, uint64) {})
	if n > a.OutKeys.n {
		return 0, tooFew("merge", a.OutKeys.n, n)
	}
	m.gapsOf(a.Lanes, len(a.Terms), func(i int) lane.Node { return a.Terms[i].node() })
	keys := view[uint64](a.OutKeys)
	return m.union(a.Terms, func(position int, key uint64) {
		keys[position] = key
		m.plan.reset()
		for i, t := range m.active {
			depth := 0
			if i > 0 {
				depth = lowest(m.gaps[m.active[i-1]:t])
			}
			m.plan.push(t, depth)
		}
		m.plan.fold(-1)
		sum := m.run(a.Dim, func(i int) Vector {
			return a.Terms[i].Rows.Slice(m.heads[i]*a.Dim, (m.heads[i]+1)*a.Dim)
		})
		m.store(a.OutRows.Slice(position*a.Dim, (position+1)*a.Dim), sum, a.Weight)
	}), nil
}

// store divides a sum, unless weight is 0, and writes it.
func (m *mergeScratch) store(to Vector, sum []float32, weight float32) {
	switch {
	case weight == 0:
		narrow(to, sum)
	case to.dtype == Float32:
		divide(view[float32](to), sum, weight)
	default:
		m.quotient = grow(m.quotient, to.n)
		divide(m.quotient, sum, weight)
		narrow(to, m.quotient)
	}
}

// union visits the union of the terms' keys, ascending, with m.active naming the terms that have the key and m.heads
// the position of it in each of them. It returns the number of keys.
func (m *mergeScratch) union(terms []RowsTerm, visit func(position int, key uint64)) int {
	m.heads = grow(m.heads, len(terms))
	clear(m.heads)
	for position := 0; ; position++ {
		m.active = m.active[:0]
		var key uint64
		for i := range terms {
			if m.heads[i] == terms[i].Keys.n {
				continue
			}
			k := view[uint64](terms[i].Keys)[m.heads[i]]
			if len(m.active) == 0 || k < key {
				m.active, key = append(m.active[:0], i), k
			} else if k == key {
				m.active = append(m.active, i)
			}
		}
		if len(m.active) == 0 {
			return position
		}
		visit(position, key)
		for _, i := range m.active {
			m.heads[i]++
		}
	}
}

func lowest(depths []int) int {
	low := depths[0]
	for _, d := range depths[1:] {
		low = min(low, d)
	}
	return low
}

// tileValues is the number of values of a dense term that are summed at a time, so that the waiting sums stay in the
// first-level cache.
const tileValues = 512

// planOf is the plan of a sum of dense terms.
func (m *mergeScratch) planOf(lanes int, terms []Term) {
	m.gapsOf(lanes, len(terms), func(i int) lane.Node { return terms[i].node() })
	m.plan.reset()
	for i := range terms {
		depth := 0
		if i > 0 {
			depth = m.gaps[i-1]
		}
		m.plan.push(i, depth)
	}
	m.plan.fold(-1)
}

// sum runs the plan over elements [lo, hi).
func (m *mergeScratch) sum(terms []Term, lo, hi int) []float32 {
	return m.run(hi-lo, func(i int) Vector { return terms[i].Values.Slice(lo, hi) })
}

// Average: see the interface.
func (r *reference) Average(a Average) error {
	r.calls.n.Add(1)
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	s.merge.planOf(a.Lanes, a.Terms)
	for lo := 0; lo < a.Out.n; lo += tileValues {
		hi := min(lo+tileValues, a.Out.n)
		s.merge.store(a.Out.Slice(lo, hi), s.merge.sum(a.Terms, lo, hi), a.Weight)
	}
	return nil
}
