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

// Table is the part of an embedding table that one owner has: rows with their optimizer state. A round changes rows in
// place, in one or several calls of Apply, and ends with Commit or Rollback. Readers see the last committed version.
// The caller has checked that the rows are here. The implementation chooses where rows and slots are stored. A Table is
// not safe for concurrent use.
//
//	t.Gather(keys, rows)            // version v
//	t.Apply(RowGradient{...})       // opens a round
//	t.Gather(keys, rows)            // version v, still
//	t.Commit()                      // version v+1
type Table interface {
	// Version returns the number of commits.
	Version() schema.Version
	// Gather copies the rows of keys to rows [len(keys), dim].
	Gather(keys []uint64, rows []float32) error
	// Pool writes one row of out for each bag: the sum over its keys in order of position, or their mean.
	Pool(b Bags, out []float32) error
	// Apply steps rows by their gradients. Its keys must not be in another call of the same round. After an error (a
	// value that is not finite, or a failed backend) the round can only be rolled back.
	Apply(g RowGradient) error
	// Step makes the next Commit count as a step even if no row here was touched; Apply implies it. Versions without a
	// step are those of batches without samples.
	Step()
	// Commit ends the round and makes its rows the next version.
	Commit()
	// Rollback undoes the open round, bit for bit, if the table records old rows (ArrayConfig.Undo).
	Rollback()
	// ReadPrevious calls read while Gather, Pool and Scan return the rows of the version before the last Commit. No
	// round may be open. The table must record old rows (ArrayConfig.Undo), and its rows must not catch up on steps
	// when they are read.
	ReadPrevious(read func() error) error
	// Left returns the number of rows of a partition from a key on.
	Left(p schema.Partition, cursor uint64) int
	// Scan reads len(keys) rows of a partition from a key on, keys ascending. At least as many must be left.
	Scan(p schema.Partition, cursor uint64, keys []uint64, rows []float32) error
	// Copy begins to copy the rows of the version, without an open round, while later versions are made: all rows, or
	// those that may have changed since an earlier copied version. The copy before it must be closed.
	Copy(since schema.Version, all bool) RowsCopy
	// Restore begins to replace all rows by a snapshot. The table must not be used until Done has returned nil.
	Restore() RowsRestore
	// Update begins to replace the rows that differ in another version.
	Update() RowsRestore
	// Close frees memory. The table must not be used afterwards.
	Close()
}

// RowsCopy copies the rows of the version at which it began. Steps that change rows during the copy keep the old values
// until they are copied. Its user must hold the lock for using the table.
type RowsCopy interface {
	// Touched returns how many rows may have changed since the earlier version, and their bytes; all rows if that is
	// not known.
	Touched() (rows, bytes int64)
	// Next returns the next rows in new memory: partitions and keys ascending, about valuesMax values including slots.
	// The result may be empty if no examined row was touched. more is false if none remain.
	Next(valuesMax int) (r Rows, more bool)
	// Stretch returns rows of a partition from a key on, for any sequence of requests and repetitions: about valuesMax
	// values including slots, in new memory. It returns at least one row unless none remain. Do not combine it with
	// Next, so that no old row is freed before Close.
	Stretch(p schema.Partition, cursor uint64, valuesMax int) Rows
	// Bytes returns the size of the old rows.
	Bytes() int64
	// Close ends the copy, whether or not it is complete.
	Close()
}

// RowsRestore accepts the rows of a snapshot in any order, and skips rows of other owners. Done returns ErrSnapshot if
// a row was missing or came twice.
type RowsRestore interface {
	Rows(r Rows) error
	Done() error
}

// RowGradient is the gradient of some rows.
type RowGradient struct {
	Keys   []uint64    // distinct
	Sums   cuda.Vector // [len(Keys), dim]
	Weight float32     // the optimizer divides by it once
	Scale  float32     // factor of the quotient: 1, or that of Norm
}

// Bags are bags of keys: bag i has the keys from Offsets[i] up to the next bag's first.
type Bags struct {
	Mode    cuda.Mode // cuda.Sum or cuda.Mean
	Keys    []uint64
	Offsets []uint32
}

// Extent is the contents of a copy of changes since an earlier version. It may include unchanged values: if the changes
// are not known, it is everything.
type Extent struct {
	Tensors []Stretch        // of parameters; those of one name do not touch
	Rows    map[string]int64 // number of rows by table; tables without rows are absent
	Bytes   int64            // of values, slots, marks and keys
}

// Stretch is consecutive elements of a dense parameter.
type Stretch struct {
	Name           string
	From, Elements int
}

// intervals numbers the times between copies, from 1. A change of a chunk or row records the number of the current
// interval in one byte. So the changes since any copied version are known, and a copy that fails costs nothing.
type intervals struct {
	now   uint8
	began []schema.Version // interval i+1 begins with version began[i]
}

const (
	intervalsMax = 255
	// forgotten is the number of intervals that are forgotten at once. About a hundred copies for a replica are taken
	// between two copies for files.
	forgotten = 128
)

// room makes room for one more interval. If the numbers have run out, the oldest intervals are forgotten and count as
// before all others. The caller subtracts the result from its recorded numbers, without going below 0.
func (s *intervals) room() (less uint8) {
	if s.now < intervalsMax {
		return 0
	}
	s.began = slices.Delete(s.began, 0, forgotten)
	s.now -= forgotten
	return forgotten
}

// mark begins the next interval, with version v, after room.
func (s *intervals) mark(v schema.Version) {
	s.now++
	s.began = append(s.began, v)
}

// since returns the first interval after a version; 0, which is before all others, if it is not known.
func (s *intervals) since(v schema.Version) uint8 {
	for i := len(s.began) - 1; i >= 0 && v > 0; i-- {
		if s.began[i] == v {
			return uint8(i + 1)
		}
	}
	return 0
}

// TouchedBytes is the memory that records when a row has changed.
const TouchedBytes = 1

// touched records when each row of a table was changed last, in a byte per row. The zero value records nothing.
type touched struct {
	intervals
	at    []uint8                 // [places]; nil if not counted
	count [intervalsMax + 1]int64 // rows by interval
}

// note records rows that change. Random rows take about 10 ns each, a fifth of the time of their commit.
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

// rowsSince returns the number of rows that have changed from an interval on.
func (s *touched) rowsSince(interval uint8) (n int64) {
	for _, rows := range s.count[interval:] {
		n += rows
	}
	return n
}

// room makes room for one more interval. It takes about 10 ms for 100 million rows, once in 128 copies.
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

// reset forgets all changes, because other rows were restored.
func (s *touched) reset() {
	clear(s.at)
	s.intervals = intervals{}
	s.forget()
}

func (s *touched) forget() {
	s.count = [intervalsMax + 1]int64{0: int64(len(s.at))}
}

// In frames and files a mark of a row (Rows.Last) is two float32 values of MarkBits bits each, upper bits first. A
// float32 holds them exactly.
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

// JoinMarks appends the marks of pairs that SplitMarks made, or reports an invalid pair.
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

// Scanner reads all rows of a table that one owner has completely, piece by piece: partitions ascending, and keys
// ascending within each. Its memory is reused from scan to scan.
type Scanner struct {
	keys []uint64
	rows []float32
}

// Scan passes pieces of at most valuesMax values, or one row, to yield; both slices are valid until yield returns. An
// error of yield ends the scan and is returned.
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

// initial is version 0 of the rows of an Array and of their slots. It is drawn block by block: all blocks in parallel
// when the table is made, or, if that would take long, each when one of its rows is first used. Memory of unused rows
// is never touched then.
type initial struct {
	filler philox.Filler
	drawn  []uint64 // a bit for each block; nil if all are drawn
}

const (
	drawnAtOnceMax = 1 << 28 // values: 1 GiB, 4 s of one processor
	blockValues    = 64      // of a block at most, unless it is one row: 1 us of a lookup, and a bit for 256 bytes
)

// blockShift returns the binary logarithm of the number of rows in a block.
func blockShift(dim int) int { return bits.Len(uint(max(1, blockValues/dim))) - 1 }

// drawnBytes returns the memory that records which blocks of a table are drawn.
func drawnBytes(rows, dim int64) int64 {
	if rows*dim <= drawnAtOnceMax {
		return 0
	}
	return rows>>blockShift(int(dim))/8 + 8
}

// draw draws all rows, unless ctx ends before, or prepares to draw them when they are used.
func (t *Array) draw(ctx context.Context) (err error) {
	init, n := t.config.Spec.Init, t.places.count()
	if t.initial.filler, err = philox.NewFiller(init.Kind, init.Scale, t.config.Seed, t.config.Spec.Name); err != nil {
		return err
	}
	if init.Kind == schema.InitZeros && t.rule.initial == 0 {
		return nil // memory is zeroed already
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

// wantAll draws the rows at places [first, end) that are not drawn yet.
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
