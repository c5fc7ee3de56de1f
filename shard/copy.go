package shard

import (
	"errors"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// A copy is what the shard has at one version, with what its optimizers keep, taken piece by piece while later batches
// are under way. It begins with the first frame of the batch that is computed on the version, which proves that the
// version is complete everywhere and comes before any round of the batch is over: rows are of the version then, and
// every chunk has it. So a version that all shards copy is one version. A step waits for the copy of what it is about
// to change at most. Clocks without a common version have no copies.

// A copy is for files, or for a ps that stands by (MirrorAt). There is one at a time, and the first goes before the
// second, which is asked for again soon.

// ErrCopyBehind says that a copy was ended, because batches change more than is copied meanwhile.
var ErrCopyBehind = errors.New("copy fell behind")

// CopyWish says of which version a copy is wanted.
type CopyWish struct {
	At       schema.Version // of this one; 0: none
	Since    schema.Version // an earlier one, from whose copy on it is told what was touched; 0: none
	All      bool           // everything is copied; else what may have changed since that version
	BytesMax int64          // of old values, beyond which a copy ends
}

// copying is a copy that is being taken.
type copying struct {
	version schema.Version
	mirror  bool // it is for a ps that stands by
	wish    CopyWish
	touched state.Extent
	dense   *state.DenseCopy // nil where the shard has no parameters
	tables  []state.RowsCopy
	next    int // of tables
	err     error
}

// CopyAt asks for a copy of a version, in place of what was asked for before and has not begun. A version that was
// reached before is not copied any more, nor one that is reached while another is copied.
func (s *Shard) CopyAt(w CopyWish) { s.copies = w }

// MirrorAt asks for a copy of a version for a ps that stands by. It reports whether one will begin, unless one for
// files is under way then: it does not where the batch that is computed on the version has begun.
func (s *Shard) MirrorAt(w CopyWish) bool {
	if s.copy != nil && s.copy.mirror { // of one that was given up
		s.EndCopy()
	}
	if s.Began(w.At) {
		return false
	}
	s.mirror = w
	return true
}

// Began reports whether the batch that is computed on a version, or a later one, has begun here, of all trainers.
func (s *Shard) Began(v schema.Version) bool {
	l := s.clock.Line(0)
	at := schema.Version(l.Batch())
	return at > v || at == v && l.Open() < l.Rounds()
}

// enter opens the round of a contribution, and begins the copy of the version that its batch is computed on.
func (s *Shard) enter(e round.Entry) {
	s.clock.Enter(e)
	s.beginCopy(e.Line)
}

// beginCopy begins the copy of the version that the batch under way is computed on, where it is wanted and no other is
// being taken.
func (s *Shard) beginCopy(l *round.Line) {
	v, w, mirror := schema.Version(l.Batch()), &s.copies, false
	if v != w.At {
		w, mirror = &s.mirror, true
	}
	wanted := v == w.At && v > s.copied && v > s.config.Job.StartVersion()
	if !wanted || s.copy != nil && (mirror || !s.copy.mirror) || l.Whose != schema.All || l.Ahead > 0 ||
		l.Open() < l.Rounds() {
		return
	}
	s.EndCopy()
	s.copied = v
	c := &copying{version: v, mirror: mirror, wish: *w, touched: state.Extent{Rows: map[string]int64{}}}
	if s.dense != nil {
		if c.dense, c.err = s.dense.Copy(v, w.Since, w.All); c.err == nil {
			c.touched.Tensors, c.touched.Bytes = c.dense.Touched()
		}
	} else {
		c.touched.Tensors, c.touched.Bytes = s.ofTrainers()
	}
	for i, t := range s.tables {
		if t != nil {
			rows := t.Copy(w.Since, w.All)
			n, bytes := rows.Touched()
			c.touched.Rows[s.config.Job.Tables[i].Name] = n
			c.touched.Bytes += bytes
			c.tables = append(c.tables, rows)
		}
	}
	s.copy = c
}

// Copying is the version that is being copied for files.
func (s *Shard) Copying() (v schema.Version, ok bool) {
	if s.copy == nil || s.copy.mirror {
		return 0, false
	}
	return s.copy.version, true
}

// Mirroring is the version that is being copied for a ps that stands by.
func (s *Shard) Mirroring() (v schema.Version, ok bool) {
	if s.copy == nil || !s.copy.mirror {
		return 0, false
	}
	return s.copy.version, true
}

// Touched is what the copy that is being taken was to be, and what may have changed since the earlier version of that.
func (s *Shard) Touched() (CopyWish, state.Extent) { return s.copy.wish, s.copy.touched }

// Piece is a piece of a copy, in memory of its own: stretches of parameters, or rows.
type Piece struct {
	Tensors []state.Tensor
	Rows    *state.Rows
}

// NextPiece gives the next piece of the copy that is being taken, of about so many values; more is false where none is
// left. After that, and after an error, EndCopy is to be called. It is ErrCopyBehind where old values took more room
// than there is.
func (s *Shard) NextPiece(valuesMax int) (p Piece, more bool, err error) {
	c := s.copy
	if c.err != nil {
		return Piece{}, false, c.err
	}
	if c.dense != nil {
		if p.Tensors, more = c.dense.Next(); more {
			return p, true, nil
		}
	}
	for ; c.next < len(c.tables); c.next++ {
		if rows, more := c.tables[c.next].Next(valuesMax); more {
			return Piece{Rows: &rows}, true, nil
		}
	}
	return Piece{}, false, nil
}

// limitCopy ends a copy that holds more than it may, so that no step adds to that.
func (s *Shard) limitCopy() {
	c := s.copy
	if c == nil || c.err != nil || c.bytes() <= c.wish.BytesMax {
		return
	}
	c.err = fmt.Errorf("version %d of %s: %w: rows that have changed since take %d bytes, want at most %d", c.version,
		s.member, ErrCopyBehind, c.bytes(), c.wish.BytesMax)
	c.close()
}

// EndCopy ends the copy that is being taken, if any, whether or not it is whole.
func (s *Shard) EndCopy() {
	if s.copy != nil {
		s.copy.close()
		s.copy = nil
	}
}

func (c *copying) bytes() (n int64) {
	if c.dense != nil {
		n = c.dense.Bytes()
	}
	for _, t := range c.tables {
		n += t.Bytes()
	}
	return n
}

// close gives back what is held of the version.
func (c *copying) close() {
	if c.dense != nil {
		c.dense.Close()
	}
	for _, t := range c.tables {
		t.Close()
	}
	c.dense, c.tables = nil, nil
}
