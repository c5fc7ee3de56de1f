package state

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"gradbus/cuda"
	"gradbus/philox"
	"gradbus/schema"
)

// Table is the rows of an embedding table that one owner has, with their optimizer. A round changes rows in place, in
// one or several calls of Apply, and ends with Commit or Rollback. Readers see the version that was committed last. The
// caller has checked that the rows are here. Where rows and slots are stored is up to the implementation. A Table is
// not safe for concurrent use.
//
//	t.Gather(keys, rows)            // version v
//	t.Apply(RowGradient{...})       // opens a round
//	t.Gather(keys, rows)            // version v, still
//	t.Commit()                      // version v+1
type Table interface {
	// Version counts commits.
	Version() schema.Version
	// Gather copies the rows of keys to rows [len(keys), dim].
	Gather(keys []uint64, rows []float32) error
	// Pool makes each bag one row of out: the sum over its keys in the order of their positions, or their mean.
	Pool(b Bags, out []float32) error
	// Apply steps rows by their gradients. Its keys are in no other call of the round. After an error, of what is not
	// finite or of the backend, the round can only be rolled back.
	Apply(g RowGradient) error
	// Step says that the next Commit is of a step, also where it has touched no row here; Apply says so, too. Versions
	// without one are those of batches without samples.
	Step()
	// Commit ends the round: its rows, if any, are those of the next version.
	Commit()
	// Rollback undoes the open round, bit for bit, where the table records what it changes (ArrayConfig.Undo).
	Rollback()
	// ReadPrevious calls read while the rows are those of the version before the last Commit: Gather, Pool and Scan give
	// them then. No round may be open. The table must retain them (ArrayConfig.Undo), and make up for no steps when
	// it is read.
	ReadPrevious(read func() error) error
	// Left is how many rows a partition has here from a key on.
	Left(p schema.Partition, cursor uint64) int
	// Scan reads the rows of a partition from a key on, keys ascending: len(keys) of them, not more than are left.
	Scan(p schema.Partition, cursor uint64, keys []uint64, rows []float32) error
	// Copy begins to copy the rows of the version, without an open round, while later versions are made: all of them, or
	// those that may have changed since an earlier version that was copied. The copy before it is closed.
	Copy(since schema.Version, all bool) RowsCopy
	// Restore begins to put a snapshot in the place of what is here. Until Done has returned nil the table must not be
	// used.
	Restore() RowsRestore
	// Update begins to put rows of another version in the place of what is here; the others are the same in both.
	Update() RowsRestore
	// Close frees memory. The table must not be used afterwards.
	Close()
}

// RowsCopy copies the rows of the version that its table was at when it began. Steps that change rows during the copy
// keep the old values until they are copied. Its user must be allowed to use the table.
type RowsCopy interface {
	// Touched is how many rows may have changed since the earlier version, and what they take; all where that is not
	// known.
	Touched() (rows, bytes int64)
	// Next gives the next rows, in memory of their own: partitions and keys ascending, about so many values with those of
	// slots. There may be none among those that it has looked at. It is false where none are left.
	Next(valuesMax int) (r Rows, more bool)
	// Stretch is rows of a partition from a key on, in any order of questions, as often as wanted: about so many values
	// with those of slots, in memory of their own. There is one at least, unless none are left. Who uses it does not use
	// Next, so that no old row is given up before Close.
	Stretch(p schema.Partition, cursor uint64, valuesMax int) Rows
	// Bytes is what old rows take.
	Bytes() int64
	// Close ends the copy, whether or not it is whole.
	Close()
}

// RowsRestore takes the rows of a snapshot, in any order, and leaves out those of elsewhere. Done is ErrSnapshot where
// any were missing, or came twice.
type RowsRestore interface {
	Rows(r Rows) error
	Done() error
}

// RowGradient is what moves rows.
type RowGradient struct {
	Keys   []uint64    // distinct
	Sums   cuda.Vector // [len(Keys), dim]
	Weight float32     // by which the optimizer divides once
	Scale  float32     // by what the quotient is multiplied: 1, or what Norm says
}

// Bags are bags of keys: bag i has those from Offsets[i] on, up to the next bag's.
type Bags struct {
	Mode    cuda.Mode // cuda.Sum or cuda.Mean
	Keys    []uint64
	Offsets []uint32
}

// Extent is what a copy of what was touched since an earlier version will have. What one has that was not touched does
// no harm, so who does not know takes everything.
type Extent struct {
	Tensors []Stretch        // of parameters; none touches another of its name
	Rows    map[string]int64 // by table; nothing where there are none
	Bytes   int64            // of values, slots, marks and keys
}

// Stretch is consecutive elements of a dense parameter.
type Stretch struct {
	Name           string
	From, Elements int
}

// intervals are the times between copies, numbered from 1. Whatever changes a chunk or row notes the number of the one
// under way, in a byte: so what has changed since any of the versions that were copied is known, and a copy that comes
// to nothing costs nothing.
type intervals struct {
	now   uint8
	began []schema.Version // interval i+1 begins with version began[i]
}

const (
	intervalsMax = 255
	// forgotten is how many intervals are forgotten at once: a copy for files follows some hundred for a ps that stands
	// by.
	forgotten = 128
)

// room makes room for one more interval, where numbers have run out: the oldest are forgotten, and count as before all
// others from then on. The caller takes what room gives from its notes, none of which gets below 0.
func (s *intervals) room() (less uint8) {
	if s.now < intervalsMax {
		return 0
	}
	s.began = slices.Delete(s.began, 0, forgotten)
	s.now -= forgotten
	return forgotten
}

// mark begins the next interval, with version v. There is room for it.
func (s *intervals) mark(v schema.Version) {
	s.now++
	s.began = append(s.began, v)
}

// since is the first interval after a version; 0, which is before all others, where it is not known.
func (s *intervals) since(v schema.Version) uint8 {
	for i := len(s.began) - 1; i >= 0 && v > 0; i-- {
		if s.began[i] == v {
			return uint8(i + 1)
		}
	}
	return 0
}

// TouchedBytes is what it takes to note when a row has changed.
const TouchedBytes = 1

// touched is when each row of a table was changed last: a byte a row. The zero value notes nothing.
type touched struct {
	intervals
	at    []uint8                 // [places]; nil if not counted
	count [intervalsMax + 1]int64 // rows by interval
}

// note notes rows that change. Of rows at random it takes some 10 ns each, a fifth of what their commit takes.
func (s *touched) note(places []int64) {
	if s.at == nil {
		return
	}
	for _, at := range places {
		if was := s.at[at]; was != s.now {
			s.count[was]--
			s.count[s.now]++
			s.at[at] = s.now
		}
	}
}

// rowsSince is how many rows have changed from an interval on.
func (s *touched) rowsSince(interval uint8) (n int64) {
	for _, rows := range s.count[interval:] {
		n += rows
	}
	return n
}

// room makes room for one more interval. That takes some 10 ms for 100 million rows, once in 128 copies.
func (s *touched) room() {
	less := s.intervals.room()
	if less == 0 {
		return
	}
	for i, at := range s.at {
		s.at[i] = at - min(at, less)
	}
	before := int64(0)
	for _, rows := range s.count[:less+1] {
		before += rows
	}
	copy(s.count[1:], s.count[less+1:])
	clear(s.count[intervalsMax+1-int(less):])
	s.count[0] = before
}

// reset forgets everything: rows were put there.
func (s *touched) reset() {
	clear(s.at)
	s.intervals = intervals{}
	s.forget()
}

func (s *touched) forget() {
	s.count = [intervalsMax + 1]int64{0: int64(len(s.at))}
}

// Marks of rows (Rows.Last) travel as two float32 each, of so many bits, which a float32 holds exactly: the upper ones
// first.
const (
	MarkBits = 24
	markLow  = 1<<MarkBits - 1
)

// SplitMarks appends marks as pairs.
func SplitMarks(pairs []float32, marks []int64) ([]float32, error) {
	for _, n := range marks {
		if n < 0 || n >= 1<<(2*MarkBits) {
			return nil, fmt.Errorf("mark %d: want 0 to %d", n, int64(1)<<(2*MarkBits)-1)
		}
		pairs = append(pairs, float32(n>>MarkBits), float32(n&markLow))
	}
	return pairs, nil
}

// JoinMarks appends the marks that SplitMarks made pairs of, or says which pair is none.
func JoinMarks(marks []int64, pairs []float32) ([]int64, error) {
	for i := 0; i < len(pairs); i += 2 {
		high, low := int64(pairs[i]), int64(pairs[i+1])
		if high < 0 || high > markLow || low < 0 || low > markLow || float32(high) != pairs[i] || float32(low) != pairs[i+1] {
			return nil, fmt.Errorf("the mark of row %d is %v and %v", i/2, pairs[i], pairs[i+1])
		}
		marks = append(marks, high<<MarkBits|low)
	}
	return marks, nil
}

// Scanner reads all rows of a table that is whole here, piece by piece: partitions ascending, and keys ascending within
// each. Its memory is reused from scan to scan.
type Scanner struct {
	keys []uint64
	rows []float32
}

// Scan gives yield pieces of at most valuesMax values, or one row; both slices are valid until it returns. An error of
// yield ends the scan and is returned.
func (s *Scanner) Scan(t Table, spec *schema.TableSpec, valuesMax int, yield func(p schema.Partition, keys []uint64,
	rows []float32) error) error {
	most := max(1, valuesMax/spec.Dim)
	for p := range spec.Partitions {
		cursor := uint64(0)
		for {
			left := t.Left(schema.Partition(p), cursor)
			if left == 0 {
				break
			}
			n := min(left, most)
			s.keys, s.rows = grown(s.keys, n), grown(s.rows, n*spec.Dim)
			if err := t.Scan(schema.Partition(p), cursor, s.keys, s.rows); err != nil {
				return err
			}
			if err := yield(schema.Partition(p), s.keys, s.rows); err != nil {
				return err
			}
			cursor = s.keys[n-1] + 1
		}
	}
	return nil
}

// initial is version 0 of the rows of an Array, and of what the optimizer keeps of them. It is drawn block by block:
// all of them, in parallel, when the table is made; or, where that would take long, each when the first of its rows is
// wanted. Memory of rows that are never wanted is not touched then.
type initial struct {
	filler philox.Filler
	drawn  []uint64 // a bit for each block; nil where all are drawn
}

const (
	drawnAtOnceMax = 1 << 28 // values: 1 GiB, 4 s of one processor
	blockValues    = 64      // of a block at most, unless it is one row: 1 us of a lookup, and a bit for 256 bytes
)

// blockShift is the power of two that is the number of rows in a block.
func blockShift(dim int) int { return bits.Len(uint(max(1, blockValues/dim))) - 1 }

// drawnBytes is what tells which blocks of a table are drawn.
func drawnBytes(rows, dim int64) int64 {
	if rows*dim <= drawnAtOnceMax {
		return 0
	}
	return rows>>blockShift(int(dim))/8 + 8
}

// draw draws all rows, unless ctx ends before, or sees to it that they are when they are wanted.
func (t *Array) draw(ctx context.Context) (err error) {
	init, n := t.config.Spec.Init, t.places.count()
	if t.initial.filler, err = philox.NewFiller(init.Kind, init.Scale, t.config.Seed, t.config.Spec.Name); err != nil {
		return err
	}
	if init.Kind == schema.InitZeros && t.rule.initial == 0 {
		return nil // as the memory is
	}
	blocks := (n-1)>>blockShift(t.dim) + 1
	if n*t.dim > drawnAtOnceMax || t.config.Late {
		t.initial.drawn, err = alloc[uint64](t, (blocks+63)/64)
		return err
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), blocks) {
		workers.Go(func() {
			for ctx.Err() == nil {
				block := int(next.Add(1) - 1)
				if block >= blocks {
					return
				}
				t.drawBlock(block)
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// want draws the rows at places that are not drawn yet.
func (t *Array) want(places []int64) {
	if t.initial.drawn == nil {
		return
	}
	shift := blockShift(t.dim)
	for _, at := range places {
		t.wantBlock(int(at) >> shift)
	}
}

// wantAll draws those of the places [first, end).
func (t *Array) wantAll(first, end int) {
	if t.initial.drawn == nil || first == end {
		return
	}
	shift := blockShift(t.dim)
	for block := first >> shift; block <= (end-1)>>shift; block++ {
		t.wantBlock(block)
	}
}

func (t *Array) wantBlock(block int) {
	word, bit := &t.initial.drawn[block/64], uint64(1)<<(block%64)
	if *word&bit == 0 {
		t.drawBlock(block)
		*word |= bit
	}
}

// drawBlock draws the rows of a block. Each is a pure function of (seed, table, key).
func (t *Array) drawBlock(block int) {
	shift := blockShift(t.dim)
	first, end := block<<shift, min((block+1)<<shift, t.places.count())
	p := t.places.partition(first)
	for at := first; at < end; at++ {
		for at == t.places.first[p+1] {
			p++
		}
		if key := t.places.keys.Key(p, uint64(at-t.places.first[p])); t.config.Spec.Pads(key) {
			clear(t.row(at))
		} else {
			t.initial.filler.Part(t.row(at), key, uint64(t.config.Column))
		}
	}
	for i, s := range t.rule.slots {
		width := s.width(t.dim)
		fill(t.slots[i][first*width:end*width], t.rule.initial)
	}
}
