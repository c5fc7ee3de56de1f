package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// Random arguments, right and wrong, must be accepted or refused alike by every backend: with the same error, the same
// faulty position, and the same outputs, which a refusal leaves as they were.

// sentinels are the errors that tell calls apart.
// the draws reach the first six
var sentinels = []error{ErrUnsupported, ErrShape, ErrArgument, ErrID, ErrOrder, ErrNode, ErrOverlap, ErrNonFinite}

// verdict is what a call answered, in words that backends can be compared by.
func verdict(n int, err error) string {
	if err == nil {
		return fmt.Sprintf("%d keys", n)
	}
	var id *idError
	var bad *NonFiniteError
	switch {
	case errors.As(err, &id):
		return fmt.Sprintf("id %d at %d of %d", id.id, id.position, id.limit)
	case errors.As(err, &bad):
		return fmt.Sprintf("%d not finite from %d", bad.count, bad.position)
	}
	at := slices.IndexFunc(sentinels, func(s error) bool { return errors.Is(err, s) })
	if at < 0 {
		return err.Error()
	}
	return sentinels[at].Error()
}

// wild draws arguments of which now and then one is wrong.
type wild struct {
	*rand.Rand
	written []Vector // outputs
}

// attempt is a call whose arguments are drawn.
type attempt func() (int, error)

func (w *wild) rarely() bool { return w.IntN(25) == 0 }

// n is a length near the right one.
func (w *wild) n(right int) int {
	if w.rarely() {
		return max(0, right+w.IntN(5)-2)
	}
	return right
}

func (w *wild) floatType() DType { return floatTypes[w.IntN(3)] }

// floats is an input of a type of floats, now and then of another type or length, or with a value that is not finite.
func (w *wild) floats(dtype DType, n int) Vector {
	if w.rarely() {
		return Int32s(make([]int32, n))
	}
	if w.rarely() {
		dtype = w.floatType()
	}
	return awkwardOf(w.Rand, dtype, w.n(n), w.IntN(4) == 0)
}

// ids are below limit, now and then not.
func (w *wild) ids(n int, limit int64) Vector {
	ids := make([]int64, w.n(n))
	for i := range ids {
		ids[i] = w.Int64N(max(limit, 1))
		if w.IntN(60) == 0 {
			ids[i] = []int64{-1, limit, limit + 5, -7}[w.IntN(4)]
		}
	}
	return idsOf([]DType{Int64, Int64, Int32, Int32, Int32, Uint64}[w.IntN(6)], ids)
}

func (w *wild) offsets(bags, n int) Vector {
	offsets := make([]int64, bags+1)
	for i := range offsets {
		offsets[i] = w.Int64N(int64(n) + 1)
	}
	slices.Sort(offsets)
	offsets[0], offsets[bags] = 0, int64(n)
	if w.rarely() {
		offsets[w.IntN(bags+1)] = w.Int64N(int64(n) + 2)
	}
	return idsOf([]DType{Int64, Int32}[w.IntN(2)], offsets)
}

// out is an output, of one of two types.
func (w *wild) out(dtype DType, n int) Vector {
	v := cleared([]DType{Float32, dtype}[w.IntN(2)], w.n(n))
	w.written = append(w.written, v)
	return v
}

func (w *wild) outIDs(dtype DType, n int) Vector {
	v := idsOf(dtype, slices.Repeat([]int64{-7}, w.n(n)))
	w.written = append(w.written, v)
	return v
}

func (w *wild) weight() float32 {
	if w.rarely() {
		return []float32{0, -1, inf, nan}[w.IntN(4)]
	}
	return []float32{1, 3}[w.IntN(2)]
}

func (w *wild) optimizer() Optimizer {
	o, _ := randomOptimizer(w.Rand)
	if w.rarely() {
		o = []Optimizer{nil, SGD{LR: nan}, Adam{Beta1: 2, Step: 1}, Adam{}}[w.IntN(4)]
	}
	return o
}

func (w *wild) slots(o Optimizer, rows, dim, outRows int, inPlace bool) (slots []Slot) {
	if o == nil {
		return nil
	}
	for _, name := range o.SlotNames() {
		dtype, width := w.floatType(), dim
		if name == "sum" {
			dtype, width = Float32, 1
		}
		before := w.floats(dtype, rows*width)
		if name != "momentum" && floats.has(before.dtype) {
			x := unpacked(before)
			for i := range x {
				x[i] = float32(math.Abs(float64(x[i])))
			}
			narrow(before, x)
		}
		after := before
		if !inPlace {
			after = cleared(dtype, w.n(outRows*width))
		}
		w.written, slots = append(w.written, after), append(slots, Slot{name, before, after})
	}
	if w.rarely() {
		slots = append(slots, Slot{Name: "other"})
	}
	return slots
}

// bags calls BagForward or BagBackward.
func (w *wild) bags(b Backend, report *Report) attempt {
	const rows, bags = 9, 5
	dim, n, dtype := []int{0, 1, 3, 16, 17}[min(4, w.IntN(60))], w.IntN(30), w.floatType()
	mode, padding := Mode(w.IntN(3)), []int64{NoPadding, 4}[w.IntN(2)]
	if w.rarely() {
		mode, padding = Mode(w.IntN(5)), w.Int64N(5)-3
	}
	ids, offsets, skip, open := w.ids(n, rows), w.offsets(bags, n), w.IntN(3) == 0, false
	if w.IntN(3) == 0 {
		open, offsets = true, offsets.Slice(0, bags)
	}
	var weights, argmax Vector
	if mode == Sum && w.IntN(2) == 0 || w.rarely() {
		weights = w.floats(Float32, n)
	}
	if w.IntN(2) == 0 {
		if mode == Max || w.rarely() {
			argmax = Int32s(slices.Repeat([]int32{-7}, w.n(bags*dim)))
			w.written = append(w.written, argmax)
		}
		a := BagForward{Dim: dim, Mode: mode, Padding: padding, SkipBadIDs: skip, OpenOffsets: open,
			Rows: w.floats(dtype, rows*dim),
			IDs:  ids, Offsets: offsets, Weights: weights, Out: w.out(dtype, bags*dim), ArgMax: argmax, Report: report}
		return func() (int, error) { return 0, b.BagForward(a) }
	}
	if mode == Max || w.rarely() {
		argmax = Int32s(make([]int32, w.n(bags*dim)))
	}
	room := min(n, rows)
	a := BagBackward{Dim: dim, Mode: mode, Padding: padding, SkipBadIDs: skip, OpenOffsets: open, R: rows, IDs: ids,
		Offsets: offsets,
		Weights: weights, ArgMax: argmax, GradOut: w.floats(dtype, bags*dim), Keys: w.outIDs(Int64, room),
		Out: w.out(dtype, room*dim), Report: report}
	return func() (int, error) { return b.BagBackward(a) }
}

func (w *wild) coalesce(b Backend, _ *Report) attempt {
	dim, n, dtype := 1+w.IntN(17), w.IntN(30), w.floatType()
	keys := w.ids(n, 12)
	a := Coalesce{Dim: dim, Weight: w.weight(), Keys: keys, Rows: w.floats(dtype, n*dim),
		OutKeys: w.outIDs(keys.dtype, min(n, 12)),
		OutRows: w.out(dtype, min(n, 12)*dim)}
	return func() (int, error) { return b.Coalesce(a) }
}

// terms calls Merge, Average or AverageApply.
func (w *wild) terms(b Backend, report *Report) attempt {
	lanes, dtype, dim := 4, w.floatType(), 1+w.IntN(17)
	first := func(l int) uint16 {
		if w.rarely() {
			return uint16(w.IntN(6))
		}
		return uint16(l)
	}
	if w.IntN(3) == 0 {
		var terms []RowsTerm
		for l := range lanes {
			var keys []uint64
			for key := range uint64(12) {
				if w.IntN(2) == 0 {
					keys = append(keys, key)
				}
			}
			if w.rarely() {
				slices.Reverse(keys)
			}
			terms = append(terms, RowsTerm{first(l), 1, Uint64s(keys), w.floats(dtype, len(keys)*dim)})
		}
		a := Merge{Dim: dim, Lanes: lanes, Weight: w.weight(), Terms: terms, OutKeys: w.outIDs(Uint64, 12),
			OutRows: w.out(dtype, 12*dim)}
		return func() (int, error) { return b.Merge(a) }
	}
	var terms []Term
	n := 3 * dim
	for l := range lanes {
		terms = append(terms, Term{first(l), 1, w.floats(dtype, n)})
	}
	if w.IntN(2) == 0 {
		a := Average{lanes, w.weight(), terms, w.out(dtype, n)}
		return func() (int, error) { return 0, b.Average(a) }
	}
	o := w.optimizer()
	param := w.floats(w.floatType(), n)
	width := dim
	if w.rarely() {
		width = w.IntN(5) - 1
	}
	a := AverageApply{Dim: width, Lanes: lanes, Optimizer: o, Weight: w.weight(), First: w.IntN(2) == 0,
		NonFinite: NonFinite(w.IntN(3)),
		Terms:     terms, Slots: w.slots(o, 3, dim, 3, w.IntN(2) == 0), Param: param, Out: w.out(param.dtype, n),
		Report: report}
	return func() (int, error) { return 0, b.AverageApply(a) }
}

// rows calls ApplyRows or CoalesceApply, compact or in place.
func (w *wild) rows(b Backend, report *Report) attempt {
	const rows = 9
	dim, n, inPlace, o := 1+w.IntN(17), w.IntN(rows), w.IntN(2) == 0, w.optimizer()
	table := w.floats(w.floatType(), rows*dim)
	index := w.ids(n, rows)
	if inPlace && !w.rarely() {
		var sorted []int64
		sorted = append(sorted, ints64(index, &sorted)...)
		slices.Sort(sorted)
		index = idsOf(index.dtype, slices.Compact(sorted))
		n = index.n
	}
	var steps Steps
	out := table
	w.written = append(w.written, table)
	if !inPlace {
		out = w.out(table.dtype, n*dim)
	}
	if w.IntN(2) == 0 {
		last := make([]int64, w.n(rows))
		for i := range last {
			last[i] = w.Int64N(6) - 1
		}
		steps = Steps{Int64s(last), Int64s(last), w.Int64N(8), w.IntN(3) == 0}
		if !inPlace {
			steps.LastAfter = Int64s(make([]int64, w.n(n)))
		}
		w.written = append(w.written, steps.LastAfter)
	}
	slots := w.slots(o, rows, dim, n, inPlace != w.rarely())
	grad, policy, skip := w.floats(w.floatType(), n*dim), NonFinite(w.IntN(3)), w.IntN(2) == 0
	if w.IntN(2) == 0 {
		var first Vector
		if steps.Last.n == 0 && w.IntN(2) == 0 {
			first = Uint8s(make([]uint8, w.n(n)))
		}
		a := ApplyRows{Dim: dim, Optimizer: o, Weight: w.weight(), SkipBadIDs: skip, NonFinite: policy, Slots: slots,
			Steps: steps, Table: table,
			Index: index, First: first, Grad: grad, Out: out, Report: report}
		return func() (int, error) { return 0, b.ApplyRows(a) }
	}
	keys := w.outIDs(Int64, n)
	if inPlace && w.IntN(2) == 0 {
		keys = Vector{}
	}
	a := CoalesceApply{Dim: dim, Optimizer: o, Weight: w.weight(), SkipBadIDs: skip, NonFinite: policy, Slots: slots,
		Steps: steps, Table: table,
		Keys: index, Rows: grad, OutKeys: keys, Out: out, Report: report}
	return func() (int, error) { return b.CoalesceApply(a) }
}

// wildCall makes the seed's call and says what came of it. A refusal must leave all outputs as they were.
func wildCall(t *testing.T, b Backend, seed uint64) (answer string, report Report, written []Vector) {
	t.Helper()
	w := &wild{Rand: rand.New(rand.NewPCG(seed, 73))}
	kinds := []func(Backend, *Report) attempt{w.bags, w.coalesce, w.terms, w.rows}
	try := kinds[w.IntN(len(kinds))](b, &report)
	var before []string
	for _, v := range w.written {
		before = append(before, string(v.bytes()))
	}
	n, err := try()
	for i, v := range w.written {
		if err != nil && string(v.bytes()) != before[i] {
			t.Fatalf("seed %d: output %d was written by a call that answered %v", seed, i, err)
		}
	}
	if err != nil { // what a report says beside a refusal is not promised, but for the values that were refused
		report.skipped = 0
		if !errors.Is(err, ErrNonFinite) {
			report.nonFinite = 0
		}
	}
	return verdict(n, err), report, w.written
}

// pin moves a command's vectors to memory from Alloc, at odd multiples of their elements' size. What was one memory
// still is. back moves what it then is to where it was.
func pin(t *testing.T, b Backend, c command) (back func()) {
	lengths, at := map[unsafe.Pointer]int{}, map[unsafe.Pointer]*Buffer{}
	vectors(c, func(v *Vector) {
		if v.n > 0 {
			lengths[v.data] = max(lengths[v.data], len(bytesOf(*v)))
		}
	})
	var all []func()
	vectors(c, func(v *Vector) {
		if v.n == 0 {
			return
		}
		was := *v
		if at[was.data] == nil {
			pinned, err := b.Alloc(lengths[was.data]/4 + 4)
			must(t, err)
			at[was.data] = pinned
		}
		now := at[was.data].vector(was.dtype, was.dtype.Bytes(), was.n)
		copy(bytesOf(now), bytesOf(was))
		all, *v = append(all, func() { copy(bytesOf(was), bytesOf(now)); *v = was }), now
	})
	return func() {
		for _, f := range all {
			f()
		}
		for _, pinned := range at {
			pinned.Free()
		}
	}
}

// pinnedCalls does each call on pinned memory.
type pinnedCalls struct {
	Backend
	t *testing.T
}

func (p pinnedCalls) do(c command) (int, error) {
	back := pin(p.t, p.Backend, c)
	defer back()
	return c.on(p.Backend)
}

func withoutCount(_ int, err error) error { return err }

func (p pinnedCalls) BagForward(a BagForward) error              { return withoutCount(p.do(&a)) }
func (p pinnedCalls) BagBackward(a BagBackward) (int, error)     { return p.do(&a) }
func (p pinnedCalls) Coalesce(a Coalesce) (int, error)           { return p.do(&a) }
func (p pinnedCalls) Merge(a Merge) (int, error)                 { return p.do(&a) }
func (p pinnedCalls) ApplyRows(a ApplyRows) error                { return withoutCount(p.do(&a)) }
func (p pinnedCalls) CoalesceApply(a CoalesceApply) (int, error) { return p.do(&a) }
func (p pinnedCalls) ApplyDense(a ApplyDense) error              { return withoutCount(p.do(&a)) }
func (p pinnedCalls) Average(a Average) error                    { return withoutCount(p.do(&a)) }
func (p pinnedCalls) AverageApply(a AverageApply) error          { return withoutCount(p.do(&a)) }

// TestPinnedCalls: a device that reaches its caller's memory writes there what the others write, and where a call is
// refused nothing.
func TestPinnedCalls(t *testing.T) {
	oracle := newReference()
	onStreams(t, func(t *testing.T, b Backend, _ *Stream) {
		for seed := range uint64(2000) {
			want, wantReport, wantWritten := wildCall(t, oracle, seed)
			got, report, written := wildCall(t, pinnedCalls{b, t}, seed)
			if got != want || report != wantReport {
				t.Fatalf("seed %d: %q %+v, the portable backend %q %+v", seed, got, report, want, wantReport)
			}
			for i := range written {
				sameVector(t, fmt.Sprintf("seed %d (%s): output %d", seed, want, i), written[i], wantWritten[i])
			}
		}
	})
}

func TestBackendsAgreeOnEveryCall(t *testing.T) {
	const calls = 6000
	oracle := newReference()
	onEach(t, func(t *testing.T, b Backend) {
		answers := map[string]int{}
		for seed := range uint64(calls) {
			want, wantReport, wantWritten := wildCall(t, oracle, seed)
			got, report, written := wildCall(t, b, seed)
			if got != want || report != wantReport {
				t.Fatalf("seed %d: %q %+v, the portable backend %q %+v", seed, got, report, want, wantReport)
			}
			for i := range written {
				sameVector(t, fmt.Sprintf("seed %d (%s): output %d", seed, want, i), written[i], wantWritten[i])
			}
			answers[want]++
		}
		for _, sentinel := range sentinels[:6] {
			if sentinel != ErrID && answers[sentinel.Error()] == 0 {
				t.Errorf("no call of %d answered %q", calls, sentinel)
			}
		}
		if answers["0 keys"] < calls/8 || len(answers) < 100 {
			t.Errorf("%d calls without keys went well, and there are %d different answers: the draws see too little",
				answers["0 keys"], len(answers))
		}
	})
}

// sameVector compares vectors of any type; a NaN equals any NaN.
func sameVector(t *testing.T, what string, got, want Vector) {
	t.Helper()
	if floats.has(want.dtype) {
		wantVector(t, what, got, unpacked(want))
		return
	}
	if string(got.bytes()) != string(want.bytes()) {
		t.Fatalf("%s, %v: differs", what, got.dtype)
	}
}
