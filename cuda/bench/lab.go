package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gradbus/cuda"
	"gradbus/philox"
)

// machine is the backend with its memory. Vectors are written when they are given out: values about one in size, which
// stay finite under any number of optimizer steps.
type machine interface {
	values(n int, dtype cuda.DType) (cuda.Vector, error)
	int64s([]int64) (cuda.Vector, error)
	uint64s([]uint64) (cuda.Vector, error)
	free(cuda.Vector)
	// seconds is the time of one call. Calls go round through the arguments, each a struct of package cuda such as
	// cuda.BagForward.
	seconds(args []any, e effort) (median float64, runs int, err error)
	close()
}

// lab makes the measurements. It keeps the last table of bag_forward, which is the largest thing here.
type lab struct {
	machine
	effort effort
	quick  bool
	ids    idSource

	table     cuda.Vector
	tableRows int

	// Of the measurement under way:
	param, moved cuda.Vector   // the table that an optimizer moves, and its slot
	used         []cuda.Vector // to be freed
	failed       error         // the first failure to give memory
}

func (l *lab) close() {
	l.dropTable()
	l.machine.close()
}

// measure makes the arguments, takes the time and counts the bytes. Backend and rates are the caller's to fill.
func (l *lab) measure(s spec) (Result, error) {
	if l.table.Len() > 0 && (s.op != "bag_forward" || s.rows != l.tableRows || s.rows*s.dim != l.table.Len() ||
		s.dtype != l.table.DType()) {
		l.dropTable()
	}
	defer func() {
		for _, v := range l.used {
			l.free(v)
		}
		l.used, l.failed = nil, nil
	}()
	r := Result{Op: s.op, Dim: s.dim, Rows: s.rows, Bags: s.bags, Length: s.length, N: s.n, Terms: s.terms, IDs: s.ids,
		DType: s.dtype.String()}
	var args []any
	var bytes, distinct int64
	for len(args) == 0 || len(args) < variantsMax && bytes < l.roundBytes() {
		args = append(args, l.arguments(s, uint64(len(args)), &r))
		if l.failed != nil {
			return Result{}, l.failed
		}
		bytes += r.Bytes
		distinct += int64(r.Distinct)
	}
	r.Bytes, r.Distinct = bytes/int64(len(args)), int(distinct/int64(len(args)))
	var err error
	r.Seconds, r.Runs, err = l.seconds(args, l.effort)
	return r, err
}

// Calls go round through different arguments until they have moved so many bytes, so that none finds in a near cache
// what it left there itself.
const variantsMax = 16

func (l *lab) roundBytes() int64 {
	if l.quick {
		return 8 << 20
	}
	return 1 << 30
}

// sgd is the optimizer of every measurement, with one slot.
var sgd = cuda.SGD{LR: 0.01, Momentum: 0.9}

// arguments are those of one call, with ids of their own for each variant, and its bytes in r.
func (l *lab) arguments(s spec, variant uint64, r *Result) any {
	switch s.op {
	case opRead:
		r.Bytes = rowsBytes(s.n, 1, 4)
		return l.take(s.n, cuda.Float32)
	case opCopy:
		r.Bytes = 2 * rowsBytes(s.n, 1, 4)
		return copyOf{to: l.take(s.n, cuda.Float32), from: l.take(s.n, cuda.Float32)}
	case "bag_forward", "bag_backward":
		return l.bags(s, variant, r)
	case "coalesce", "coalesce_apply", "apply_rows", "merge":
		return l.sparse(s, variant, r)
	}
	return l.dense(s, r)
}

// copyOf are the arguments of Backend.Copy.
type copyOf struct{ to, from cuda.Vector }

func (l *lab) bags(s spec, variant uint64, r *Result) any {
	n, value := s.bags*s.length, s.dtype.Bytes()
	ids, offsets := l.ids.draw(n, s.rows, s.ids, variant), make([]int64, s.bags+1)
	for i := range offsets {
		offsets[i] = int64(i * s.length)
	}
	r.Distinct = distinct(ids, s.rows)
	r.N = n
	each := l.take(s.bags*s.dim, s.dtype)
	if s.op == "bag_backward" {
		r.Bytes = bagBackwardBytes(n, r.Distinct, s.bags, s.dim, value)
		return cuda.BagBackward{
			Dim: s.dim, Padding: cuda.NoPadding, R: int64(s.rows), IDs: l.takeInts(ids), Offsets: l.takeInts(offsets),
			GradOut: each,
			Keys:    l.takeInts(make([]int64, n)), Out: l.take(n*s.dim, s.dtype),
		}
	}
	r.Bytes = bagForwardBytes(n, r.Distinct, s.bags, s.dim, value)
	if l.table.Len() == 0 && l.failed == nil {
		l.table, l.failed = l.values(s.rows*s.dim, s.dtype)
		l.tableRows = s.rows
	}
	return cuda.BagForward{
		Dim: s.dim, Padding: cuda.NoPadding, Rows: l.table, IDs: l.takeInts(ids), Offsets: l.takeInts(offsets), Out: each,
	}
}

func (l *lab) sparse(s spec, variant uint64, r *Result) any {
	if s.op == "merge" {
		return l.merge(s, variant, r)
	}
	value := s.dtype.Bytes()
	ids := ascending(s.n, s.rows, variant)
	if s.ids != idsAscending {
		ids = l.ids.draw(s.n, s.rows, s.ids, variant)
	}
	r.Distinct = distinct(ids, s.rows)
	keys, grad := l.takeInts(ids), l.take(s.n*s.dim, s.dtype)
	if s.op == "coalesce" {
		r.Bytes = coalesceBytes(s.n, r.Distinct, s.dim, value)
		return cuda.Coalesce{
			Dim: s.dim, Keys: keys, Rows: grad, OutKeys: l.takeInts(make([]int64, s.n)), OutRows: l.take(s.n*s.dim, s.dtype),
		}
	}
	if variant == 0 {
		l.param, l.moved = l.take(s.rows*s.dim, s.dtype), l.take(s.rows*s.dim, s.dtype)
	}
	table, slots := l.param, []cuda.Slot{{Name: "momentum", Before: l.moved, After: l.moved}}
	if s.op == "apply_rows" {
		r.Bytes = applyRowsBytes(s.n, s.dim, value, 1)
		return cuda.ApplyRows{Dim: s.dim, Optimizer: sgd, Weight: 1, Slots: slots, Table: table, Index: keys,
			Grad: grad, Out: table}
	}
	r.Bytes = coalesceApplyBytes(s.n, r.Distinct, s.dim, value, 1)
	return cuda.CoalesceApply{Dim: s.dim, Optimizer: sgd, Weight: 1, Slots: slots, Table: table, Keys: keys,
		Rows: grad, Out: table}
}

// merge adds terms whose keys were drawn each for itself, so that some meet and some do not.
func (l *lab) merge(s spec, variant uint64, r *Result) any {
	m := cuda.Merge{Dim: s.dim, Lanes: s.terms, Weight: 1}
	var all []int64
	for i := range s.terms {
		ids := l.ids.draw(s.n/s.terms, s.rows, s.ids, variant*uint64(s.terms)+uint64(i))
		slices.Sort(ids)
		ids = slices.Compact(ids)
		all = append(all, ids...)
		m.Terms = append(m.Terms, cuda.RowsTerm{
			First: uint16(i), Count: 1, Keys: l.takeKeys(ids), Rows: l.take(len(ids)*s.dim, s.dtype),
		})
	}
	r.N, r.Distinct = len(all), distinct(all, s.rows)
	r.Bytes = coalesceBytes(r.N, r.Distinct, s.dim, s.dtype.Bytes())
	m.OutKeys, m.OutRows = l.takeKeys(make([]int64, r.Distinct)), l.take(r.Distinct*s.dim, s.dtype)
	return m
}

func (l *lab) dense(s spec, r *Result) any {
	value := s.dtype.Bytes()
	var terms []cuda.Term
	for i := range s.terms {
		terms = append(terms, cuda.Term{First: uint16(i), Count: 1, Values: l.take(s.n, s.dtype)})
	}
	if s.op == "average" {
		r.Bytes = averageBytes(s.terms, s.n, value)
		return cuda.Average{Lanes: s.terms, Weight: float32(s.terms), Terms: terms, Out: l.take(s.n, s.dtype)}
	}
	param, moved := l.take(s.n, s.dtype), l.take(s.n, s.dtype)
	slots := []cuda.Slot{{Name: "momentum", Before: moved, After: moved}}
	if s.op == "average_apply" {
		r.Bytes = averageApplyBytes(s.terms, s.n, value, 1)
		return cuda.AverageApply{Lanes: s.terms, Optimizer: sgd, Weight: float32(s.terms), Terms: terms, Slots: slots,
			Param: param, Out: param}
	}
	r.Bytes = applyDenseBytes(s.n, value, 1)
	return cuda.ApplyDense{Optimizer: sgd, Weight: 1, Slots: slots, Param: param, Grad: l.take(s.n, s.dtype), Out: param}
}

// take gives memory for the measurement under way; the first failure is kept in failed.
func (l *lab) take(n int, dtype cuda.DType) cuda.Vector {
	if l.failed != nil {
		return cuda.Vector{}
	}
	v, err := l.values(n, dtype)
	return l.keep(v, err)
}

func (l *lab) takeInts(ids []int64) cuda.Vector {
	if l.failed != nil {
		return cuda.Vector{}
	}
	v, err := l.int64s(ids)
	return l.keep(v, err)
}

// takeKeys is takeInts as uint64, for keys that are not rows of a table.
func (l *lab) takeKeys(ids []int64) cuda.Vector {
	keys := make([]uint64, len(ids))
	for i, id := range ids {
		keys[i] = uint64(id)
	}
	if l.failed != nil {
		return cuda.Vector{}
	}
	v, err := l.uint64s(keys)
	return l.keep(v, err)
}

func (l *lab) keep(v cuda.Vector, err error) cuda.Vector {
	if err != nil {
		l.failed = fmt.Errorf("memory: %w", err)
		return cuda.Vector{}
	}
	l.used = append(l.used, v)
	return v
}

func (l *lab) dropTable() {
	if l.table.Len() > 0 {
		l.free(l.table)
	}
	l.table = cuda.Vector{}
}

// newMachine is the backend with a stream and device memory, or, where it has none, with its caller's memory.
func newMachine(b cuda.Backend) (machine, error) {
	stream, err := cuda.OpenStream(b)
	if errors.Is(err, cuda.ErrUnsupported) {
		return newHost(b)
	} else if err != nil {
		return nil, err
	}
	d := &device{backend: b, stream: stream, memory: map[cuda.Vector]*cuda.DeviceMemory{}}
	if d.pinned, err = b.Alloc(noiseValues); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// device is a backend with memory of its own. Calls are queued.
type device struct {
	backend cuda.Backend
	stream  *cuda.Stream
	pinned  *cuda.Buffer // through which everything gets there
	memory  map[cuda.Vector]*cuda.DeviceMemory
}

// alloc gives memory of the device for so many elements.
func (d *device) alloc(n int, dtype cuda.DType) (cuda.Vector, *cuda.DeviceMemory, error) {
	m, err := d.stream.AllocDevice(max(wordsOf(n, dtype), 1) * 4)
	if errors.Is(err, cuda.ErrMemory) {
		return cuda.Vector{}, nil, fmt.Errorf("%w: %w", errLeftOut, err)
	} else if err != nil {
		return cuda.Vector{}, nil, err
	}
	v := m.Vector(dtype, 0, n)
	d.memory[v] = m
	return v, m, nil
}

// wordsOf returns the number of 32-bit words for n elements.
func wordsOf(n int, dtype cuda.DType) int { return (n*dtype.Bytes() + 3) / 4 }

// upload copies words through the pinned buffer to the device; fill(part, at) writes those from word at on.
func (d *device) upload(to cuda.Vector, fill func(part []float32, at int)) error {
	buffer := d.pinned.Float32s()
	for at := 0; at < to.Len(); at += len(buffer) {
		part := buffer[:min(len(buffer), to.Len()-at)]
		fill(part, at)
		if err := d.stream.Copy(to.Slice(at, at+len(part)), cuda.Float32s(part)); err != nil {
			return err
		}
		if err := d.stream.Wait(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// values repeats what the first pinned buffer holds.
func (d *device) values(n int, dtype cuda.DType) (cuda.Vector, error) {
	v, m, err := d.alloc(n, dtype)
	if err != nil {
		return v, err
	}
	words := wordsOf(n, dtype)
	all := m.Float32s(0, words)
	first := all.Slice(0, min(words, noiseValues))
	if err := d.upload(first, func(part []float32, _ int) { d.fill(part, dtype) }); err != nil {
		return v, err
	}
	for at := first.Len(); at < words; at += first.Len() {
		to := all.Slice(at, min(at+first.Len(), words))
		if err := d.stream.Copy(to, first.Slice(0, to.Len())); err != nil {
			return v, err
		}
	}
	return v, d.stream.Wait(context.Background())
}

func (d *device) fill(words []float32, dtype cuda.DType) {
	if dtype == cuda.Float32 {
		_ = philox.FillTensor(words, philox.Normal, 1, seed, "noise") // only an unknown kind fails
		return
	}
	for i := range words {
		low, high := half(uint16(2*i*40503)), half(uint16((2*i+1)*40503))
		words[i] = math.Float32frombits(uint32(high)<<16 | uint32(low))
	}
}

func (d *device) int64s(ids []int64) (cuda.Vector, error) { return longs(d, ids, cuda.Int64) }

func (d *device) uint64s(keys []uint64) (cuda.Vector, error) { return longs(d, keys, cuda.Uint64) }

// longs brings 64-bit numbers to the device, as two words each.
func longs[T int64 | uint64](d *device, all []T, dtype cuda.DType) (cuda.Vector, error) {
	v, m, err := d.alloc(len(all), dtype)
	if err != nil {
		return v, err
	}
	return v, d.upload(m.Float32s(0, 2*len(all)), func(part []float32, at int) {
		for i := range part {
			part[i] = math.Float32frombits(uint32(uint64(all[(at+i)/2]) >> (32 * ((at + i) % 2))))
		}
	})
}

func (d *device) free(v cuda.Vector) {
	if m, ok := d.memory[v]; ok {
		m.Free()
		delete(d.memory, v)
	}
}

func (d *device) close() {
	for _, m := range d.memory {
		m.Free()
	}
	d.pinned.Free()
	_ = d.stream.Close() // whatever failed has been told by the last Wait
}

// burstSeconds is the duration of calls that are timed together: long compared with the wait for their end.
const burstSeconds = 10e-3

// seconds queues so many calls that waiting for their end does not show.
func (d *device) seconds(args []any, e effort) (float64, int, error) {
	single, err := batchesOf(d.backend, args)
	defer free(single)
	if err != nil {
		return 0, 0, err
	}
	var one float64
	for i, b := range single {
		for range 2 { // the first loads code and lets workspaces grow
			if one, err = d.burst(b); err != nil {
				return 0, 0, err
			}
		}
		if err := checkFound(b, args[i]); err != nil {
			return 0, 0, err
		}
	}
	rounds := min(max(int(burstSeconds/one), 1), 500)/len(args) + 1
	many := d.backend.NewBatch()
	defer many.Free()
	for range rounds {
		for _, a := range args {
			if err := add(many, a); err != nil {
				return 0, 0, err
			}
		}
	}
	if _, err := d.burst(many); err != nil {
		return 0, 0, err
	}
	e.time /= time.Duration(many.Len()) // the samples are of one call each
	return e.median(func() (float64, error) {
		s, err := d.burst(many)
		return s / float64(many.Len()), err
	})
}

// burst is the time from queueing a batch to its end.
func (d *device) burst(b *cuda.Batch) (float64, error) {
	start := time.Now()
	err := d.stream.Submit(b)
	if err == nil {
		err = d.stream.Wait(context.Background())
	}
	return time.Since(start).Seconds(), err
}
