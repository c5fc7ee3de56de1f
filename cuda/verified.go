package cuda

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// VerifyAuto is one block in verifyDefault where the backend is a GPU's, and none elsewhere; see Options.Verify.
const VerifyAuto = -1

// verifyDefault is one block in how many VerifyAuto takes on a GPU: some 0.1 % of the arithmetic.
const verifyDefault = 1000

// Verified is a backend whose results are computed again, one block in so many, by another backend, and compared bit by
// bit: whatever writes parameters, the state of an optimizer, or the sums of contributions that both follow from. These
// are ApplyDense, AverageApply, ApplyRows, CoalesceApply, Average, Merge and Copy, alone or in a Batch. What a trainer
// computes of its own samples goes through: passes, losses, and the gradients of a lane (BagBackward, Coalesce,
// MatMul). Streams, whose results stay where the host cannot read them, are refused. TestVerifiedKnowsEveryMethod holds
// this list to the interface.
//
// Blocks are whole rows of some 4096 values (verifyValues), at most 64 rows. Each has a number, in the order in which
// calls come, and of each oneIn in turn one is checked, which one being a fixed function of a seed: so every block has
// the same chance, of whatever call and wherever it lies in it, and with oneIn 1 all are checked. A call that does not
// replace what it reads is checked after it, block by block, in the memory of one block; a call in place keeps what the
// oracle made of its blocks until it is done, one oneIn-th of its results. CoalesceApply goes over its keys once more
// for its blocks.
type Verified struct {
	Backend
	oracle   Backend
	oneIn    uint64
	seed     uint64
	ownsBoth bool // Close closes the oracle, too

	blocks     atomic.Uint64 // that went through
	checked    atomic.Uint64
	mismatches atomic.Uint64
	pool       sync.Pool // of *trial
}

// Verify checks one block in oneIn of what a backend writes with an oracle, which must live as long. A result that
// differs gives a *MismatchError, which wraps ErrVerify.
//
//	gpu, _ := Open(Options{Name: "cuda"})
//	cpu, _ := Open(Options{Name: "cpu"})
//	b, err := Verify(gpu, cpu, 1000)
func Verify(b, oracle Backend, oneIn int) (*Verified, error) {
	if oneIn < 1 {
		return nil, fmt.Errorf("verify one block in %d: %w, want at least 1", oneIn, ErrArgument)
	}
	v := &Verified{Backend: b, oracle: oracle, oneIn: uint64(oneIn)}
	v.pool.New = func() any { return new(trial) }
	return v, nil
}

// verifiedBy puts the oracle that Options ask for beside a backend, which it closes where it fails. A GPU is checked by
// the native CPU backend, and that by the portable one; the portable one by a second of its kind, which finds what
// memory or a processor did wrong and not what the program does.
func verifiedBy(b Backend, o Options) (Backend, error) {
	oneIn := o.Verify
	if oneIn == VerifyAuto {
		oneIn = 0
		if b.Name() == "cuda" {
			oneIn = verifyDefault
		}
	}
	if oneIn == 0 {
		return b, nil
	}
	name := "go"
	if b.Name() == "cuda" {
		name = "cpu"
	}
	oracle, err := open(Options{Name: name})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verify: %w", err), b.Close())
	}
	v, err := Verify(b, oracle, oneIn)
	if err != nil {
		return nil, errors.Join(err, oracle.Close(), b.Close())
	}
	v.seed, v.ownsBoth = o.VerifySeed, true
	if o.Log != nil {
		o.Log.Info("what the backend writes is verified", "one_in", oneIn, "by", oracle.Name(), "seed", o.VerifySeed)
	}
	return v, nil
}

// Checked returns the number of blocks that were checked, and of those that differed.
func (v *Verified) Checked() (blocks, mismatches uint64) {
	return v.checked.Load(), v.mismatches.Load()
}

// Injected reports whether a wrong bit was written because Options.WrongBits asked for it.
func (v *Verified) Injected() bool {
	w, ok := v.Backend.(interface{ injected() bool })
	return ok && w.injected()
}

// OneIn returns n if one block in n is checked.
func (v *Verified) OneIn() int { return int(v.oneIn) }

// Close implements Backend. The oracle is closed where Open gave it.
func (v *Verified) Close() error {
	err := v.Backend.Close()
	if v.ownsBoth {
		err = errors.Join(err, v.oracle.Close())
	}
	return err
}

func (v *Verified) reason() string {
	return fmt.Sprintf("%s; one optimizer block in %d checked by %s (%s)", reasonOf(v.Backend), v.oneIn, v.oracle.Name(),
		v.oracle.ISA())
}

// openQueue refuses: what a stream writes stays on the device, and nothing that is not checked may go through here.
func (v *Verified) openQueue() (queue, error) {
	return nil,
		fmt.Errorf("%w: backend %s is verified, which needs results that the host can read: open a stream on one that is not",
			ErrUnsupported, v.Name())
}

// due is the first block to be checked in [from, end); false where there is none.
func (v *Verified) due(from, end uint64) (uint64, bool) {
	for ; from < end; from = (from/v.oneIn + 1) * v.oneIn {
		turn := from / v.oneIn
		if at := turn*v.oneIn + mix(turn+v.seed*0x9e3779b97f4a7c15)%v.oneIn; at >= from {
			return at, at < end
		}
	}
	return 0, false
}

// number counts blocks that go through: those of this call are [first, first+blocks). due says that some are to be
// checked.
func (v *Verified) number(blocks int) (first uint64, due bool) {
	if blocks <= 0 {
		return 0, false
	}
	end := v.blocks.Add(uint64(blocks))
	first = end - uint64(blocks)
	_, due = v.due(first, end)
	return first, due
}

// mix is splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// check does a call of which blocks are due, and checks those. again has the oracle do one block, and notes in the
// trial what to compare. Where the call replaces what it reads (inPlace) the oracle goes first.
func (v *Verified) check(op string, first uint64, blocks int, inPlace bool, call func() error, again func(t *trial,
	block int) error) error {
	t := v.borrow()
	defer v.giveBack(t)
	end := first + uint64(blocks)
	var refused error
	if inPlace {
		for at, ok := v.due(first, end); ok && refused == nil; at, ok = v.due(at+1, end) {
			t.begin(int(at - first))
			refused = again(t, t.block)
		}
	}
	if err := call(); err != nil {
		return err
	}
	if inPlace {
		return v.settle(op, t, refused)
	}
	for at, ok := v.due(first, end); ok; at, ok = v.due(at+1, end) {
		t.clear()
		t.begin(int(at - first))
		if err := v.settle(op, t, again(t, t.block)); err != nil {
			return err
		}
	}
	return nil
}

// settle compares what the backend has done with what the oracle made of it, or failed to.
func (v *Verified) settle(op string, t *trial, refused error) error {
	v.checked.Add(uint64(t.blocks))
	if e, ok := refused.(*MismatchError); ok { // the oracle has seen it
		return v.mismatch(op, e)
	}
	if refused != nil { // arguments that the backend has taken
		v.mismatches.Add(1)
		return fmt.Errorf("%w: %s: %s took what %s refuses: %w", ErrVerify, op, v.Name(), v.oracle.Name(), refused)
	}
	for i := range t.parts {
		if e := t.parts[i].differs(); e != nil {
			return v.mismatch(op, e)
		}
	}
	return nil
}

func (v *Verified) mismatch(op string, e *MismatchError) error {
	v.mismatches.Add(1)
	e.Op, e.backend, e.oracle = op, v.Name(), v.oracle.Name()
	e.injected = v.Injected()
	return e
}

func (v *Verified) borrow() *trial { return v.pool.Get().(*trial) }

func (v *Verified) giveBack(t *trial) {
	t.clear()
	v.pool.Put(t)
}

// Blocks of verification: as many whole rows of a tensor or of a call as have some values, or one row; not too many,
// since a row costs more than its values. They bound what one check costs: some 10 us.
const (
	verifyValues = 4096
	verifyRows   = 64
)

// rowsInBlock returns the number of rows in a block.
func rowsInBlock(dim int) int {
	return min(max(verifyValues/max(dim, 1), 1), verifyRows)
}

// blocksOf returns the number of blocks of a size that n things make.
func blocksOf(n, size int) int { return (n + size - 1) / size }

// cut is a dense tensor of n values in blocks.
type cut struct {
	n     int
	block int // values in a block
}

// cutOf cuts a tensor into blocks that an optimizer sees as it sees the whole: a row-wise one looks at whole rows.
func (u *update) cut(dim int) cut {
	n := u.table.n
	if !u.known || !u.hyper.rowwise() || dim < 0 {
		return cut{n, verifyValues}
	}
	width := u.width(dim)
	return cut{n, max(verifyValues/width, 1) * width}
}

func (c cut) blocks() int { return blocksOf(c.n, c.block) }

func (c cut) of(block int) (lo, hi int) { return block * c.block, min((block+1)*c.block, c.n) }

// replaces reports whether a dense step writes over anything that it reads.
func replaces(slots []Slot, param, out Vector) bool {
	return out.is(param) || slices.ContainsFunc(slots, func(s Slot) bool { return s.After.is(s.Before) })
}

// ApplyDense implements Backend.
func (v *Verified) ApplyDense(a ApplyDense) error {
	u := a.update()
	c := u.cut(a.Dim)
	first, due := v.number(c.blocks())
	if !due || a.shape() != nil { // which the backend refuses
		return v.Backend.ApplyDense(a)
	}
	return v.check(u.op, first, c.blocks(), replaces(a.Slots, a.Param, a.Out),
		func() error { return v.Backend.ApplyDense(a) },
		func(t *trial, block int) error {
			lo, hi := c.of(block)
			b := a
			b.Param, b.Grad, b.Report = a.Param.Slice(lo, hi), a.Grad.Slice(lo, hi), nil
			b.Out, b.Slots = t.dense(c, lo, hi, a.Slots, a.Out)
			return v.oracle.ApplyDense(b)
		})
}

// AverageApply implements Backend.
func (v *Verified) AverageApply(a AverageApply) error {
	u := a.update()
	c := u.cut(a.Dim)
	first, due := v.number(c.blocks())
	if !due || a.shape() != nil {
		return v.Backend.AverageApply(a)
	}
	return v.check(u.op, first, c.blocks(), replaces(a.Slots, a.Param, a.Out),
		func() error { return v.Backend.AverageApply(a) },
		func(t *trial, block int) error {
			lo, hi := c.of(block)
			b := a
			b.Param, b.Terms, b.Report = a.Param.Slice(lo, hi), t.slices(a.Terms, lo, hi), nil
			b.Out, b.Slots = t.dense(c, lo, hi, a.Slots, a.Out)
			return v.oracle.AverageApply(b)
		})
}

// slices are values [lo, hi) of all terms.
func (t *trial) slices(terms []Term, lo, hi int) []Term {
	t.terms = t.terms[:0]
	for i := range terms {
		t.terms = append(t.terms, Term{terms[i].First, terms[i].Count, terms[i].Values.Slice(lo, hi)})
	}
	return t.terms
}

// dense makes the oracle's outputs for values [lo, hi) of a tensor, and notes what to compare.
func (t *trial) dense(c cut, lo, hi int, slots []Slot, out Vector) (Vector, []Slot) {
	t.slots = t.slots[:0]
	made := t.take(out.dtype, hi-lo)
	t.note(part{what: "parameters", got: out, want: made, from: lo, n: 1})
	for i := range slots {
		s := &slots[i]
		per := c.n / max(s.Before.n, 1) // values of the tensor to one of the slot
		from, to := lo/per, hi/per
		after := t.take(s.Before.dtype, to-from)
		t.slots = append(t.slots, Slot{s.Name, s.Before.Slice(from, to), after})
		t.note(part{what: s.Name, got: s.After, want: after, from: from, n: 1})
	}
	return made, t.slots
}

// ApplyRows implements Backend.
func (v *Verified) ApplyRows(a ApplyRows) error {
	size := rowsInBlock(a.Dim)
	blocks := blocksOf(a.Index.n, size)
	first, due := v.number(blocks)
	if !due || a.shape() != nil {
		return v.Backend.ApplyRows(a)
	}
	inPlace := a.Out.is(a.Table)
	return v.check("apply rows", first, blocks, inPlace, func() error { return v.Backend.ApplyRows(a) },
		func(t *trial, block int) error {
			lo, hi := block*size, min((block+1)*size, a.Index.n)
			b := a
			b.Index, b.Grad, b.Report = a.Index.Slice(lo, hi), a.Grad.Slice(lo*a.Dim, hi*a.Dim), nil
			if a.First.n > 0 {
				b.First = a.First.Slice(lo, hi)
			}
			t.update(&b, &a, part{from: lo, keys: b.Index, limit: a.Table.n / a.Dim, inPlace: inPlace})
			return v.oracle.ApplyRows(b)
		})
}

// update makes the oracle's outputs for the rows that b names, always compact, and notes what to compare: at is where
// the rows are in what a writes.
func (t *trial) update(b, a *ApplyRows, at part) {
	t.slots = t.slots[:0]
	count := b.Index.n
	note := func(what string, got, want Vector, n int) {
		at.what, at.got, at.want, at.n = what, got, want, n
		t.note(at)
	}
	b.Out = t.take(a.Out.dtype, count*a.Dim)
	note("parameters", a.Out, b.Out, a.Dim)
	for i := range a.Slots {
		s := &a.Slots[i]
		n := s.Before.n / max(at.limit, 1)
		after := t.take(s.Before.dtype, count*n)
		t.slots = append(t.slots, Slot{s.Name, s.Before, after})
		note(s.Name, s.After, after, n)
	}
	b.Slots = t.slots
	if a.Steps.LastAfter.n > 0 {
		b.Steps.LastAfter = t.take(Int64, count)
		note("last step", a.Steps.LastAfter, b.Steps.LastAfter, 1)
	}
}

// verifiedBatch is a batch of a verified backend: the commands as the backend beneath keeps them, and as they were
// given. Where blocks of them are due they run one by one.
type verifiedBatch struct {
	owner  *Verified
	inner  *Batch
	given  recorded
	blocks int  // at most, of all commands
	single bool // the last run was one by one
}

// NewBatch implements Backend.
func (v *Verified) NewBatch() *Batch {
	return newBatch(&verifiedBatch{owner: v, inner: v.Backend.NewBatch()})
}

// Submit implements Backend.
func (v *Verified) Submit(b *Batch) error {
	c, ok := b.commands.(*verifiedBatch)
	if !ok || c.owner != v {
		return fmt.Errorf("submit: %w: the batch is another backend's", ErrArgument)
	}
	if c.single = !v.pass(c.blocks); !c.single {
		return v.Backend.Submit(c.inner)
	}
	return c.given.run(v)
}

// pass numbers blocks, if none of them is due. Otherwise the checker numbers them.
func (v *Verified) pass(blocks int) bool {
	for {
		first := v.blocks.Load()
		if _, due := v.due(first, first+uint64(blocks)); due {
			return false
		}
		if v.blocks.CompareAndSwap(first, first+uint64(blocks)) {
			return true
		}
	}
}

func (c *verifiedBatch) add(a command) error {
	if err := c.inner.commands.add(a); err != nil {
		return err
	}
	c.blocks += blocksOfCommand(a)
	return c.given.add(a)
}

// blocksOfCommand returns the largest number of blocks of a command: in a merge, all keys may be distinct.
func blocksOfCommand(a command) int {
	switch a := a.(type) {
	case *ApplyDense:
		u := a.update()
		return u.cut(a.Dim).blocks()
	case *AverageApply:
		u := a.update()
		return u.cut(a.Dim).blocks()
	case *ApplyRows:
		return blocksOf(a.Index.n, rowsInBlock(a.Dim))
	case *CoalesceApply:
		return blocksOf(a.Keys.n, rowsInBlock(a.Dim))
	case *Average:
		return blocksOf(a.Out.n, verifyValues)
	case *Merge:
		keys := 0
		for i := range a.Terms {
			keys += a.Terms[i].Keys.n
		}
		return max(blocksOf(keys, rowsInBlock(a.Dim)), 1)
	case *copying:
		return blocksOf(a.to.n, verifyValues)
	}
	return 0
}

func (c *verifiedBatch) len() int { return c.inner.commands.len() }

func (c *verifiedBatch) report(i int) Report {
	if c.single {
		return c.given.report(i)
	}
	return c.inner.commands.report(i)
}

func (c *verifiedBatch) count(i int) int {
	if c.single {
		return c.given.count(i)
	}
	return c.inner.commands.count(i)
}

func (c *verifiedBatch) reset() {
	c.inner.commands.reset()
	c.given.reset()
	c.blocks, c.single = 0, false
}

func (c *verifiedBatch) free() { c.inner.Free() }

// CoalesceApply implements Backend. A block is of the call's keys as they come; checked is every row that is first
// named in it, with all its positions, so that a row has the same chance however often it is named.
func (v *Verified) CoalesceApply(a CoalesceApply) (int, error) {
	size := rowsInBlock(a.Dim)
	blocks := blocksOf(a.Keys.n, size)
	first, due := v.number(blocks)
	if !due || a.shape() != nil {
		return v.Backend.CoalesceApply(a)
	}
	t := v.borrow()
	defer v.giveBack(t)
	t.keys = t.keys[:0]
	rows := int64(a.Table.n / a.Dim)
	for at, ok := v.due(first, first+uint64(blocks)); ok; at, ok = v.due(at+1, first+uint64(blocks)) {
		lo := int(at-first) * size
		for i := lo; i < min(lo+size, a.Keys.n); i++ {
			if key := indexAt(a.Keys, i); key >= 0 && key < rows {
				t.keys = append(t.keys, key)
			}
		}
	}
	slices.Sort(t.keys)
	t.keys = slices.Compact(t.keys)
	t.gather(a.Keys)
	t.keepFirst(func(position int64) bool {
		at := first + uint64(position)/uint64(size)
		_, due := v.due(at, at+1)
		return due
	})

	inPlace, n := a.Out.is(a.Table), 0
	call := func() (err error) { n, err = v.Backend.CoalesceApply(a); return err }
	var refused error
	for lo := 0; inPlace && lo < len(t.keys) && refused == nil; lo += size {
		refused = v.again(t, &a, lo, min(lo+size, len(t.keys)), Vector{})
	}
	if err := call(); err != nil {
		return 0, err
	}
	if inPlace {
		return n, v.settle("coalesce apply", t, refused)
	}
	if n < 0 || n > a.OutKeys.n {
		return n,
			v.settle("coalesce apply", t, shapeError("coalesce apply", "%d distinct keys, in room for %d", n, a.OutKeys.n))
	}
	for lo := 0; lo < len(t.keys); lo += size {
		t.clear()
		if err := v.settle("coalesce apply", t, v.again(t, &a, lo, min(lo+size, len(t.keys)), a.OutKeys.Slice(0, n))); err !=
			nil {
			return n, err
		}
	}
	return n, nil
}

// gather finds the positions of t.keys among all keys: those of key i are t.order[t.offsets[i]:t.offsets[i+1]],
// ascending.
func (t *trial) gather(keys Vector) {
	const bits = 1 << 16
	t.filter = grow(t.filter, bits/64)
	clear(t.filter)
	place := func(key int64) uint64 { return uint64(key) * 0x9e3779b97f4a7c15 >> 48 }
	for _, key := range t.keys {
		t.filter[place(key)/64] |= 1 << (place(key) % 64)
	}
	t.sorted = t.sorted[:0]
	wanted := Int64s(t.keys)
	for i := range keys.n {
		key := indexAt(keys, i)
		if p := place(key); t.filter[p/64]>>(p%64)&1 != 0 {
			if rank := rankOf(wanted, key); rank >= 0 {
				t.sorted = append(t.sorted, pair{uint64(rank), int64(i)})
			}
		}
	}
	t.spare = grow(t.spare, len(t.sorted))
	sorted := sortPairs(t.sorted, t.spare)
	t.order, t.offsets = grow(t.order, len(sorted)), grow(t.offsets, len(t.keys)+1)
	rank := 0
	for i, p := range sorted {
		for ; rank <= int(p.key); rank++ {
			t.offsets[rank] = int64(i)
		}
		t.order[i] = p.row
	}
	for ; rank < len(t.offsets); rank++ {
		t.offsets[rank] = int64(len(sorted))
	}
}

// keepFirst keeps those keys whose first position is one of those wanted.
func (t *trial) keepFirst(wanted func(position int64) bool) {
	kept, end := 0, int64(0)
	for i, key := range t.keys {
		positions := t.order[t.offsets[i]:t.offsets[i+1]]
		if !wanted(positions[0]) {
			continue
		}
		t.keys[kept] = key
		t.offsets[kept] = end // which is at most what it was
		end += int64(copy(t.order[end:], positions))
		kept++
	}
	t.keys, t.offsets = t.keys[:kept], t.offsets[:kept+1]
	t.offsets[kept] = end
}

// again has the oracle do rows [lo, hi) of t.keys: it pools what is summed for each, in the same canonical order, and
// steps. found are the keys that the backend has written, where it has.
func (v *Verified) again(t *trial, a *CoalesceApply, lo, hi int, found Vector) error {
	t.begin(lo / rowsInBlock(a.Dim))
	count := hi - lo
	from, to := t.offsets[lo], t.offsets[hi]
	offsets := t.take(Int64, count+1)
	for i, at := range t.offsets[lo : hi+1] {
		view[int64](offsets)[i] = at - from
	}
	sums := t.take(Float32, count*a.Dim)
	if err := v.oracle.BagForward(BagForward{Dim: a.Dim, Mode: Sum, Padding: NoPadding, Rows: a.Rows,
		IDs: Int64s(t.order[from:to]), Offsets: offsets, Out: sums}); err != nil {
		return err
	}
	whole := ApplyRows{Slots: a.Slots, Steps: a.Steps, Out: a.Out, Dim: a.Dim}
	b := ApplyRows{Dim: a.Dim, Optimizer: a.Optimizer, Clip: a.Clip, Weight: a.Weight, NonFinite: a.NonFinite,
		Steps: a.Steps, Table: a.Table,
		Index: Int64s(t.keys[lo:hi]), Grad: sums}
	t.update(&b, &whole, part{from: lo, keys: b.Index, limit: a.Table.n / a.Dim, inPlace: a.Out.is(a.Table), found: found})
	return v.oracle.ApplyRows(b)
}

// Average implements Backend.
func (v *Verified) Average(a Average) error {
	c := cut{a.Out.n, verifyValues}
	first, due := v.number(c.blocks())
	if !due || a.shape() != nil {
		return v.Backend.Average(a)
	}
	inPlace := false
	for i := range a.Terms {
		inPlace = inPlace || a.Terms[i].Values.is(a.Out)
	}
	return v.check("average", first, c.blocks(), inPlace, func() error { return v.Backend.Average(a) },
		func(t *trial, block int) error {
			lo, hi := c.of(block)
			b := a
			b.Terms, b.Out = t.slices(a.Terms, lo, hi), t.take(a.Out.dtype, hi-lo)
			t.note(part{what: "sum", got: a.Out, want: b.Out, from: lo, n: 1})
			return v.oracle.Average(b)
		})
}

// Copy implements Backend. What was copied needs no oracle.
func (v *Verified) Copy(to, from Vector) error {
	c := cut{to.n, verifyValues}
	first, due := v.number(c.blocks())
	if !due || copyShape(to, from) != nil {
		return v.Backend.Copy(to, from)
	}
	return v.check("copy", first, c.blocks(), false, func() error { return v.Backend.Copy(to, from) },
		func(t *trial, block int) error {
			lo, hi := c.of(block)
			t.note(part{what: "copy", got: to, want: from.Slice(lo, hi), from: lo, n: 1})
			return nil
		})
}

// Merge implements Backend. Its blocks are of the rows that come out: the keys from one block's first to before the
// next one's first are merged again, so that one that is missing is found as well.
func (v *Verified) Merge(a Merge) (int, error) {
	n, err := v.Backend.Merge(a)
	if err != nil {
		return n, err
	}
	size := rowsInBlock(a.Dim)
	first, due := v.number(max(blocksOf(n, size), 1)) // of no rows, there may have to be some
	if !due {
		return n, nil
	}
	t := v.borrow()
	defer v.giveBack(t)
	if n < 0 || n > a.OutKeys.n {
		return n, v.settle("merge", t, shapeError("merge", "%d distinct keys, in room for %d", n, a.OutKeys.n))
	}
	keys, end := view[uint64](a.OutKeys)[:n], first+uint64(max(blocksOf(n, size), 1))
	for at, ok := v.due(first, end); ok; at, ok = v.due(at+1, end) {
		t.clear()
		t.begin(int(at - first))
		if err := v.settle("merge", t, v.mergeAgain(t, &a, keys, size)); err != nil {
			return n, err
		}
	}
	return n, nil
}

// mergeAgain has the oracle make a block of rows of a merge.
func (v *Verified) mergeAgain(t *trial, a *Merge, keys []uint64, size int) error {
	lo, hi := t.block*size, min((t.block+1)*size, len(keys))
	least, most := uint64(0), uint64(math.MaxUint64)
	if lo > 0 {
		least = keys[lo]
	}
	if hi < len(keys) {
		most = keys[hi] - 1
	}
	t.rows = t.rows[:0]
	room := 0
	for i := range a.Terms {
		term := &a.Terms[i]
		all := view[uint64](term.Keys)
		from := sort.Search(len(all), func(i int) bool { return all[i] >= least })
		to := max(sort.Search(len(all), func(i int) bool { return all[i] > most }), from)
		to = min(to, from+size+1) // one more than there can be in a block shows that too many are missing
		room += to - from
		t.rows = append(t.rows,
			RowsTerm{term.First, term.Count, term.Keys.Slice(from, to), term.Rows.Slice(from*a.Dim, to*a.Dim)})
	}
	b := *a
	b.Terms, b.OutKeys, b.OutRows = t.rows, t.take(Uint64, room), t.take(a.OutRows.dtype, room*a.Dim)
	n, err := v.oracle.Merge(b)
	if err != nil {
		return err
	}
	if n != hi-lo { // the first that is missing, or too many
		i, made := 0, view[uint64](b.OutKeys)[:n]
		for i < min(n, hi-lo) && made[i] == keys[lo+i] {
			i++
		}
		e := &MismatchError{What: "keys", block: t.block, Position: lo + i, Width: 1, Key: -1, dType: Uint64}
		if lo+i < hi {
			e.got = rawBytes(Uint64s([]uint64{keys[lo+i]}))
		}
		if i < n {
			e.want = rawBytes(Uint64s([]uint64{made[i]}))
		}
		return e
	}
	t.note(part{what: "keys", got: a.OutKeys, want: b.OutKeys.Slice(0, n), from: lo, n: 1})
	t.note(part{what: "sum", got: a.OutRows, want: b.OutRows.Slice(0, n*a.Dim), from: lo, n: a.Dim, keys: b.OutKeys,
		limit: anyKey})
	return nil
}
