package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"
)

// ErrVerify: an optimizer step came out otherwise on the backend than on the one that it was checked with. The backends agree
// bit by bit by contract, so memory or a processor is broken, or a kernel is: the outputs of the call must not be used.
var ErrVerify = errors.New("verification failed")

// MismatchError says where two backends differed. It wraps ErrVerify.
type MismatchError struct {
	Op       string // the operation, for example "average apply"
	Backend  string // whose result was checked
	Oracle   string // that checked it
	What     string // "parameters", a slot's name, or "last step"
	Position int    // the first value that differs: of the tensor, or of the call's rows in their order
	Got      []byte // its bytes
	Want     []byte
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("verification failed: %s: %s at position %d: %s gives %x and %s gives %x", e.Op, e.What, e.Position, e.Backend, e.Got, e.Oracle, e.Want)
}

// Unwrap makes errors.Is(err, ErrVerify) true.
func (e *MismatchError) Unwrap() error { return ErrVerify }

// Blocks of verification: a tensor is cut into blocks of some values, whole rows of it, and a call over rows into blocks of some
// rows. They bound what one check costs: some 10 us.
const (
	verifyValues = 4096
	verifyRows   = 64
)

// Verified is a backend whose optimizer steps are done again, one block in so many, by another backend, and compared bit by bit.
// ApplyDense, AverageApply and ApplyRows are checked, in host memory; all else goes through, CoalesceApply and batches of
// commands among it, and a tensor that is a single row to a row-wise optimizer. Which block of a call is checked follows from how many came before, not from where they lie.
type Verified struct {
	Backend
	oracle Backend
	oneIn  uint64

	blocks     atomic.Uint64 // that went through
	checked    atomic.Uint64
	mismatches atomic.Uint64
	pool       sync.Pool // of *trial
}

// Verify checks one block in oneIn of the optimizer steps of a backend with an oracle, which must live as long. A step that
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

// Checked is how many blocks were checked, and how many of these differed.
func (v *Verified) Checked() (blocks, mismatches uint64) {
	return v.checked.Load(), v.mismatches.Load()
}

// OneIn is what share of blocks is checked.
func (v *Verified) OneIn() int { return int(v.oneIn) }

func (v *Verified) reason() string {
	return fmt.Sprintf("%s; one optimizer block in %d checked by %s (%s)", reasonOf(v.Backend), v.oneIn, v.oracle.Name(), v.oracle.ISA())
}

// openQueue lets streams of the backend be opened; what they run is not checked.
func (v *Verified) openQueue() (queue, error) {
	on, ok := v.Backend.(interface{ openQueue() (queue, error) })
	if !ok {
		return nil, fmt.Errorf("stream of backend %s: %w", v.Name(), ErrUnsupported)
	}
	return on.openQueue()
}

// pick says which of a call's blocks is to be checked; false where none is. It counts them.
func (v *Verified) pick(blocks int) (int, bool) {
	if blocks == 0 {
		return 0, false
	}
	after := v.blocks.Add(uint64(blocks))
	if before := after - uint64(blocks); before/v.oneIn == after/v.oneIn {
		return 0, false
	}
	x := after/v.oneIn + 0x9e3779b97f4a7c15 // splitmix64: calls of one size do not have the same block checked each time
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(blocks)), true
}

// trial is a check under way: what the oracle has made of a block, and memory for it.
type trial struct {
	room  [8][]uint64 // of parameters, slots and steps
	slots []Slot
	terms []Term
	parts []part
}

// part is one output of a block: where the backend has put it and what the oracle made of it, in rows of n values. Row r is
// row from+r of what the backend has written or, in place, row index[r].
type part struct {
	what      string
	got, want Vector
	from, n   int
	index     Vector // none for a tensor
	table     int    // rows of the table; an index beyond it was skipped
	inPlace   bool
}

// take is room for n elements. Eight bytes are the largest element.
func (t *trial) take(i int, dtype DType, n int) Vector {
	words := (n*dtype.Bytes() + 7) / 8
	if cap(t.room[i]) < words {
		t.room[i] = make([]uint64, words)
	}
	return Vector{unsafe.Pointer(unsafe.SliceData(t.room[i][:max(words, 1)])), n, dtype}
}

// ApplyDense implements Backend.
func (v *Verified) ApplyDense(a ApplyDense) error {
	block, dim := verifyBlock(a.Dim)
	i, ok := v.pick((a.Param.Len() + block - 1) / block)
	if !ok || dim == 0 {
		return v.Backend.ApplyDense(a)
	}
	t := v.pool.Get().(*trial)
	defer v.pool.Put(t)
	lo, hi := i*block, min((i+1)*block, a.Param.Len())
	if !fits(hi, dim, a.Slots, a.Param, a.Grad, a.Out) {
		return v.Backend.ApplyDense(a) // which refuses it
	}
	b := a
	b.Param, b.Grad, b.Report = a.Param.Slice(lo, hi), a.Grad.Slice(lo, hi), nil
	b.Out, b.Slots = t.dense(a.Param.Len(), lo, hi, a.Slots, a.Out)
	oracle := v.oracle.ApplyDense(b)
	if err := v.Backend.ApplyDense(a); err != nil {
		return err
	}
	return v.settle("apply dense", t, oracle)
}

// AverageApply implements Backend.
func (v *Verified) AverageApply(a AverageApply) error {
	block, dim := verifyBlock(a.Dim)
	i, ok := v.pick((a.Param.Len() + block - 1) / block)
	if !ok || dim == 0 {
		return v.Backend.AverageApply(a)
	}
	t := v.pool.Get().(*trial)
	defer v.pool.Put(t)
	lo, hi := i*block, min((i+1)*block, a.Param.Len())
	t.terms = t.terms[:0]
	whole := fits(hi, dim, a.Slots, a.Param, a.Out)
	for _, term := range a.Terms {
		if whole = whole && term.Values.Len() >= hi; whole {
			t.terms = append(t.terms, Term{term.First, term.Count, term.Values.Slice(lo, hi)})
		}
	}
	if !whole {
		return v.Backend.AverageApply(a) // which refuses it
	}
	b := a
	b.Param, b.Terms, b.Report = a.Param.Slice(lo, hi), t.terms, nil
	b.Out, b.Slots = t.dense(a.Param.Len(), lo, hi, a.Slots, a.Out)
	oracle := v.oracle.AverageApply(b)
	if err := v.Backend.AverageApply(a); err != nil {
		return err
	}
	return v.settle("average apply", t, oracle)
}

// ApplyRows implements Backend.
func (v *Verified) ApplyRows(a ApplyRows) error {
	i, ok := v.pick((a.Index.Len() + verifyRows - 1) / verifyRows)
	if !ok || a.Dim < 1 {
		return v.Backend.ApplyRows(a)
	}
	lo, hi := i*verifyRows, min((i+1)*verifyRows, a.Index.Len())
	if a.Grad.Len() < hi*a.Dim || a.First.Len() > 0 && a.First.Len() < hi {
		return v.Backend.ApplyRows(a) // which refuses it
	}
	t := v.pool.Get().(*trial)
	defer v.pool.Put(t)
	b := a
	b.Index, b.Grad, b.Report = a.Index.Slice(lo, hi), a.Grad.Slice(lo*a.Dim, hi*a.Dim), nil
	if a.First.Len() > 0 {
		b.First = a.First.Slice(lo, hi)
	}
	t.rows(&a, &b, lo, hi)
	oracle := v.oracle.ApplyRows(b)
	if err := v.Backend.ApplyRows(a); err != nil {
		return err
	}
	return v.settle("apply rows", t, oracle)
}

// verifyBlock is how many values a block of a tensor has: whole rows. A dim of 0 is one row, of which nothing can be cut off by
// optimizers that look at whole rows, nor need be by the others.
func verifyBlock(dim int) (block, width int) {
	if dim < 1 {
		return verifyValues, 1
	}
	return max(verifyValues/dim, 1) * dim, dim
}

// fits reports that a block up to hi can be cut out of all operands of a dense call.
func fits(hi, dim int, slots []Slot, vectors ...Vector) bool {
	for _, x := range vectors {
		if x.Len() < hi {
			return false
		}
	}
	rows := vectors[0].Len() / dim
	for _, s := range slots {
		if n := s.Before.Len(); n != vectors[0].Len() && n != rows || s.After.Len() != n {
			return false
		}
	}
	return true
}

// dense makes the oracle's outputs for values [lo, hi) of a tensor of n, and notes what to compare.
func (t *trial) dense(n, lo, hi int, slots []Slot, out Vector) (Vector, []Slot) {
	t.parts, t.slots = t.parts[:0], t.slots[:0]
	made := t.take(0, out.DType(), hi-lo)
	t.parts = append(t.parts, part{what: "parameters", got: out, want: made, from: lo, n: 1})
	for i, s := range slots {
		per := n / max(s.Before.Len(), 1) // values of the tensor to one of the slot
		from, to := lo/per, hi/per
		after := t.take(1+i, s.Before.DType(), to-from)
		t.slots = append(t.slots, Slot{s.Name, s.Before.Slice(from, to), after})
		t.parts = append(t.parts, part{what: s.Name, got: s.After, want: after, from: from, n: 1})
	}
	return made, t.slots
}

// rows makes the oracle's outputs for rows [lo, hi) of a call, always compact, and notes what to compare.
func (t *trial) rows(a, b *ApplyRows, lo, hi int) {
	t.parts, t.slots = t.parts[:0], t.slots[:0]
	count, table := hi-lo, max(a.Table.Len()/a.Dim, 1)
	note := func(what string, got, want Vector, n int) {
		t.parts = append(t.parts, part{what: what, got: got, want: want, from: lo, n: n, index: b.Index, table: table,
			inPlace: a.Out.data == a.Table.data})
	}
	b.Out = t.take(0, a.Out.DType(), count*a.Dim)
	note("parameters", a.Out, b.Out, a.Dim)
	for i, s := range a.Slots {
		n := s.Before.Len() / table
		after := t.take(1+i, s.Before.DType(), count*n)
		t.slots = append(t.slots, Slot{s.Name, s.Before, after})
		note(s.Name, s.After, after, n)
	}
	b.Slots = t.slots
	if a.Steps.LastAfter.Len() > 0 {
		b.Steps.LastAfter = t.take(1+len(a.Slots), Int64, count)
		note("last step", a.Steps.LastAfter, b.Steps.LastAfter, 1)
	}
}

// settle compares what the backend has done with what the oracle made of it, or failed to.
func (v *Verified) settle(op string, t *trial, oracle error) error {
	v.checked.Add(1)
	if oracle != nil { // of arguments that the backend has taken
		v.mismatches.Add(1)
		return fmt.Errorf("%s: %w: %s took what %s refuses: %w", op, ErrVerify, v.Name(), v.oracle.Name(), oracle)
	}
	for i := range t.parts {
		if e := t.parts[i].differs(); e != nil {
			v.mismatches.Add(1)
			e.Op, e.Backend, e.Oracle = op, v.Name(), v.oracle.Name()
			return e
		}
	}
	return nil
}

// differs finds the first value that is not the same bit by bit; nil where there is none. Any NaN is as good as another.
func (p *part) differs() *MismatchError {
	rows := 0
	if p.n > 0 {
		rows = p.want.Len() / p.n
	}
	for r := range rows {
		at := p.from + r
		if p.index.Len() > 0 {
			id := indexAt(p.index, r)
			if id < 0 || id >= p.table {
				continue
			}
			if p.inPlace {
				at = id
			}
		}
		got, want := p.got.Slice(at*p.n, (at+1)*p.n), p.want.Slice(r*p.n, (r+1)*p.n)
		if bytes.Equal(rawBytes(got), rawBytes(want)) {
			continue
		}
		for i := range p.n {
			g, w := got.Slice(i, i+1), want.Slice(i, i+1)
			if !bytes.Equal(rawBytes(g), rawBytes(w)) && !(isNaN(g) && isNaN(w)) {
				return &MismatchError{What: p.what, Position: (p.from+r)*p.n + i, Got: bytes.Clone(rawBytes(g)), Want: bytes.Clone(rawBytes(w))}
			}
		}
	}
	return nil
}

// isNaN reports that the one value of a vector is no number.
func isNaN(v Vector) bool {
	switch v.DType() {
	case Float32:
		x := view[float32](v)[0]
		return x != x
	case Float16:
		return view[uint16](v)[0]&0x7fff > 0x7c00
	case BFloat16:
		return view[uint16](v)[0]&0x7fff > 0x7f80
	}
	return false
}

func indexAt(v Vector, i int) int {
	if v.DType() == Int32 {
		return int(view[int32](v)[i])
	}
	return int(view[int64](v)[i])
}

func rawBytes(v Vector) []byte {
	return unsafe.Slice((*byte)(v.data), v.n*v.dtype.Bytes())
}
