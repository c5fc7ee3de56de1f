package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"
	"unsafe"
)

// ErrVerify: a result came out otherwise on the backend than on the one that it was checked with. The backends agree
// bit by bit by contract, so memory or a processor is broken, or a kernel is: the outputs of the call must not be used.
var ErrVerify = errors.New("verification failed")

// MismatchError says where two backends differed. It wraps ErrVerify.
type MismatchError struct {
	Op       string // the operation, for example "average apply"
	backend  string // whose result was checked
	oracle   string // that checked it
	where    string // which parameter or table this is, as the caller knows; empty until NameMismatch
	What     string // "parameters", a slot's name, "last step", "sum", "keys" or "copy"
	block    int    // of the call
	Position int    // the first value that differs, in what the backend has written
	Width    int    // values in a row of What; 1 where it has no rows
	Key      int64  // of rows: the table's row, or the key of a sum; else -1
	dType    DType
	injected bool   // Options.WrongBits had one written
	got      []byte // its bytes
	want     []byte
}

func (e *MismatchError) Error() string {
	where := e.where
	if where == "" && e.Key >= 0 {
		where = fmt.Sprintf("row %d, element %d", e.Key, e.element())
	}
	if where != "" {
		where = " (" + where + ")"
	}
	injected := ""
	if e.injected {
		injected = "; a wrong bit was injected"
	}
	return fmt.Sprintf("verification failed: %s: %s at position %d%s in block %d: %s gives %s and %s gives %s%s",
		e.Op, e.What, e.Position, where, e.block, e.backend, textOf(e.dType, e.got), e.oracle,
		textOf(e.dType, e.want), injected)
}

func (e *MismatchError) element() int { return e.Position % max(e.Width, 1) }

// Row is the row of what the backend has written.
func (e *MismatchError) Row() int { return e.Position / max(e.Width, 1) }

// InTable names the value for people, by its table and its row's key there.
func (e *MismatchError) InTable(table string, key uint64) string {
	return fmt.Sprintf("table %q, key %d, element %d", table, key, e.element())
}

// Unwrap makes errors.Is(err, ErrVerify) true.
func (e *MismatchError) Unwrap() error { return ErrVerify }

// NameMismatch completes a mismatch among err's by what the caller knows of the call: which parameter or table it was
// of. Other errors stay as they are.
func NameMismatch(err error, where func(e *MismatchError) string) error {
	if e, ok := errors.AsType[*MismatchError](err); ok && e.where == "" {
		e.where = where(e)
	}
	return err
}

// textOf is an element as a number and as its bits.
func textOf(t DType, raw []byte) string {
	bits := uint64(0)
	for i, b := range raw {
		bits |= uint64(b) << (8 * i)
	}
	switch {
	case t == Float32 && len(raw) == 4:
		return fmt.Sprintf("%v (%08x)", math.Float32frombits(binary.LittleEndian.Uint32(raw)), bits)
	case len(raw) == 0:
		return "none"
	case t == Int32 || t == Int64 || t == Uint64 || t == Uint8:
		return fmt.Sprint(bits)
	}
	return fmt.Sprintf("%0*x", 2*len(raw), bits)
}

// trial is a check under way: what the oracle has made of some blocks, and memory for it.
type trial struct {
	block  int // under way
	blocks int // noted in parts
	parts  []part

	room  []uint64 // handed out from the front; what came from a smaller one before lives on by itself
	used  int
	slots []Slot
	terms []Term
	rows  []RowsTerm

	keys    []int64 // of CoalesceApply
	sorted  []pair  // rank of a key, and a position that has it
	spare   []pair
	filter  []uint64
	order   []int64 // positions, by rank
	offsets []int64 // [rank] where its positions begin
}

func (t *trial) clear() {
	clear(t.parts)
	clear(t.slots)
	clear(t.terms)
	clear(t.rows)
	t.parts, t.used, t.blocks = t.parts[:0], 0, 0
}

func (t *trial) begin(block int) {
	t.block = block
	t.blocks++
}

// part is one output of a block: where the backend has put it and what the oracle made of it, in rows of n values. Row
// r is row from+r of what the backend has written or, by key, row keys[r] of it or the one that found names.
type part struct {
	what      string
	block     int
	got, want Vector
	from, n   int
	keys      Vector // none for a tensor
	limit     int    // rows of the table, a key beyond which was skipped; or anyKey
	inPlace   bool   // row keys[r] is meant
	found     Vector // ascending keys of the rows that were written, where these are not in the call's order
}

// anyKey is the limit of keys of which each has a row.
const anyKey = -1

// take is room for n elements. Eight bytes are the largest element.
func (t *trial) take(dtype DType, n int) Vector {
	words := (n*dtype.Bytes() + 7) / 8
	if words == 0 {
		return Vector{dtype: dtype}
	}
	if len(t.room)-t.used < words {
		t.room, t.used = make([]uint64, max(2*len(t.room), words)), 0
	}
	at := unsafe.Pointer(unsafe.SliceData(t.room[t.used:]))
	t.used += words
	return Vector{at, n, dtype}
}

// note keeps what is to be compared.
func (t *trial) note(p part) {
	p.block = t.block
	t.parts = append(t.parts, p)
}

// differs finds the first value that is not the same bit by bit; nil where there is none. Any NaN is as good as
// another.
func (p *part) differs() *MismatchError {
	rows := 0
	if p.n > 0 {
		rows = p.want.n / p.n
	}
	if !p.inPlace && p.found.n == 0 && bytes.Equal(rawBytes(p.got.Slice(p.from*p.n, (p.from+rows)*p.n)),
		rawBytes(p.want.Slice(0, rows*p.n))) {
		return nil // as a rule; value by value takes five times as long as the step
	}
	for r := range rows {
		at, key := p.from+r, int64(-1)
		if p.keys.n > 0 {
			key = indexAt(p.keys, r)
			if p.limit != anyKey && (key < 0 || key >= int64(p.limit)) {
				continue
			}
			if p.inPlace {
				at = int(key)
			} else if p.found.n > 0 {
				if at = rankOf(p.found, key); at < 0 {
					return &MismatchError{What: "keys", block: p.block, Position: p.from + r, Width: 1, Key: key, dType: Int64,
						want: binary.LittleEndian.AppendUint64(nil, uint64(key))}
				}
			}
		}
		got, want := p.got.Slice(at*p.n, (at+1)*p.n), p.want.Slice(r*p.n, (r+1)*p.n)
		if i := firstDifference(got, want); i >= 0 {
			return &MismatchError{What: p.what, block: p.block, Position: at*p.n + i, Width: p.n, Key: key, dType: got.dtype,
				got: bytes.Clone(rawBytes(got.Slice(i, i+1))), want: bytes.Clone(rawBytes(want.Slice(i, i+1)))}
		}
	}
	return nil
}

// firstDifference is the index of the first element whose bits differ, other than two NaNs; -1 where there is none.
func firstDifference(got, want Vector) int {
	if bytes.Equal(rawBytes(got), rawBytes(want)) {
		return -1
	}
	for i := range got.n {
		g, w := got.Slice(i, i+1), want.Slice(i, i+1)
		if !bytes.Equal(rawBytes(g), rawBytes(w)) && !(isNaN(g) && isNaN(w)) {
			return i
		}
	}
	return -1
}

// rankOf is the index of a key among ascending ones; -1 where it is not there.
func rankOf(keys Vector, key int64) int {
	lo, hi := 0, keys.n
	for lo < hi {
		if m := int(uint(lo+hi) / 2); indexAt(keys, m) < key {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == keys.n || indexAt(keys, lo) != key {
		return -1
	}
	return lo
}

// isNaN reports that the one value of a vector is no number.
func isNaN(v Vector) bool {
	switch v.dtype {
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

// indexAt is element i of int32 or of 64 bits; one of uint64 beyond 2^63 comes out negative.
func indexAt(v Vector, i int) int64 {
	if v.dtype == Int32 {
		return int64(view[int32](v)[i])
	}
	return view[int64](v)[i]
}

func rawBytes(v Vector) []byte {
	return unsafe.Slice((*byte)(v.data), v.n*v.dtype.Bytes())
}

// wrongBits is a backend that writes one wrong bit at each of some moments, to show what finds it and what follows: in
// the first thing that an optimizer step or a sum writes then.
type wrongBits struct {
	Backend
	log *slog.Logger

	mu   sync.Mutex
	due  []time.Time // ascending
	done int
}

// withWrongBits injects one so long after now, for each of after.
func withWrongBits(b Backend, after []time.Duration, log *slog.Logger) Backend {
	if len(after) == 0 {
		return b
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	w := &wrongBits{Backend: b, log: log}
	for _, d := range slices.Sorted(slices.Values(after)) {
		w.due = append(w.due, time.Now().Add(d))
	}
	return w
}

func (w *wrongBits) reason() string { return reasonOf(w.Backend) + "; wrong bits are injected" }

// openQueue is the backend's: streams write no wrong bits.
func (w *wrongBits) openQueue() (queue, error) {
	if on, ok := w.Backend.(interface{ openQueue() (queue, error) }); ok {
		return on.openQueue()
	}
	return nil, ErrUnsupported
}

// injected reports whether a wrong bit was written.
func (w *wrongBits) injected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done > 0
}

// harm flips a bit of what a call has written, where one is due: of the mantissa where it is float32. Rows of it are
// those that ids name, if the call wrote in place, else all.
func (w *wrongBits) harm(op string, err error, out, ids Vector, dim int) error {
	if err != nil || out.n == 0 {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == len(w.due) || time.Now().Before(w.due[w.done]) {
		return nil
	}
	at := int(mix(uint64(w.due[w.done].UnixNano())) % uint64(out.n))
	if ids.n > 0 {
		row := indexAt(ids, at%ids.n)
		if row < 0 || int(row) >= out.n/dim {
			return nil // the next call will do
		}
		at = int(row)*dim + at%dim
	}
	w.done++
	bit := at % 7
	rawBytes(out.Slice(at, at+1))[0] ^= 1 << bit
	w.log.Warn("a wrong bit was injected", "op", op, "position", at, "bit", bit)
	return nil
}

// ApplyDense implements Backend. The methods after it are alike.
func (w *wrongBits) ApplyDense(a ApplyDense) error {
	return w.harm("apply dense", w.Backend.ApplyDense(a), a.Out, Vector{}, 1)
}

func (w *wrongBits) AverageApply(a AverageApply) error {
	return w.harm("average apply", w.Backend.AverageApply(a), a.Out, Vector{}, 1)
}

func (w *wrongBits) ApplyRows(a ApplyRows) error {
	err := w.Backend.ApplyRows(a)
	if a.Out.is(a.Table) {
		return w.harm("apply rows", err, a.Out, a.Index, a.Dim)
	}
	return w.harm("apply rows", err, a.Out, Vector{}, 1)
}

func (w *wrongBits) CoalesceApply(a CoalesceApply) (int, error) {
	n, err := w.Backend.CoalesceApply(a)
	if a.Out.is(a.Table) {
		return n, w.harm("coalesce apply", err, a.Out, a.Keys, a.Dim)
	}
	return n, w.harm("coalesce apply", err, a.Out.Slice(0, n*a.Dim), Vector{}, 1)
}

func (w *wrongBits) Average(a Average) error {
	return w.harm("average", w.Backend.Average(a), a.Out, Vector{}, 1)
}

func (w *wrongBits) Merge(a Merge) (int, error) {
	n, err := w.Backend.Merge(a)
	return n, w.harm("merge", err, a.OutRows.Slice(0, n*a.Dim), Vector{}, 1)
}
