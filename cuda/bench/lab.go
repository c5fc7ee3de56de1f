package bench

import (
	"fmt"
	"slices"

	"gradbus/cuda"
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
