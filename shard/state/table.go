package state

import (
	"gradbus/cuda"
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
