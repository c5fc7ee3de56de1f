package state

import (
	"errors"
	"fmt"

	"gradbus/schema"
)

// ErrCopyBehind: a copy was ended because batches change rows faster than they are copied.
var ErrCopyBehind = errors.New("copy fell behind")

// Bounds of a copy beside a training job.
const (
	// CopyBytesMax bounds what is kept of rows that change while a version is copied (CopyWish.BytesMax).
	CopyBytesMax = 64 << 20
	// CopyValues is how many values are copied at once, with slots: 64 KiB, which hold up a batch for some 0.1 ms.
	CopyValues = 1 << 14
)

// CopyWish says of which version a copy is wanted.
type CopyWish struct {
	At       schema.Version // of this one; 0: none
	Since    schema.Version // an earlier one, from whose copy on it is told what was touched; 0: none
	All      bool           // everything is copied; else what may have changed since that version
	BytesMax int64          // of old values, beyond which a copy ends
	Moment   bool           // all is copied as it is, under that version's number
}

// VersionCopy copies state at one version, piece by piece, while later ones are made. Its user must be allowed to step
// that state.
type VersionCopy struct {
	wish    CopyWish
	touched Extent
	dense   *DenseCopy // nil where there are no parameters
	tables  []RowsCopy
	next    int // of tables
	err     error
}

// CopyPiece is a piece of a copy, in memory of its own: stretches of parameters, or rows.
type CopyPiece struct {
	Tensors []Tensor
	Rows    *Rows
}

// NewVersionCopy begins to copy the version that the wish names, which parameters and tables are at: dense, which may
// be nil, and tables by their names. One copy of each at a time.
func NewVersionCopy(w CopyWish, dense *Dense, names []schema.TableSpec, tables []Table) *VersionCopy {
	c := &VersionCopy{wish: w, touched: Extent{Rows: map[string]int64{}}}
	if dense != nil {
		if w.Moment {
			c.dense = dense.copyNow(w.At)
		} else {
			c.dense, c.err = dense.Copy(w.At, w.Since, w.All)
		}
		if c.err == nil {
			c.touched.Tensors, c.touched.Bytes = c.dense.Touched()
		}
	}
	for i, t := range tables {
		if t != nil {
			rows := t.Copy(w.Since, w.All)
			n, bytes := rows.Touched()
			c.touched.Rows[names[i].Name] = n
			c.touched.Bytes += bytes
			c.tables = append(c.tables, rows)
		}
	}
	return c
}

// Of is what the copy was to be.
func (c *VersionCopy) Of() CopyWish { return c.wish }

// Touched is what may have changed since the earlier version that the wish names.
func (c *VersionCopy) Touched() Extent { return c.touched }

// Next gives the next piece, of about so many values; more is false where none is left. After that, and after an error,
// Close is to be called. It is ErrCopyBehind where old values took more room than there is.
func (c *VersionCopy) Next(valuesMax int) (p CopyPiece, more bool, err error) {
	if c.err != nil {
		return CopyPiece{}, false, c.err
	}
	if c.dense != nil {
		if p.Tensors, more = c.dense.Next(); more {
			return p, true, nil
		}
	}
	for ; c.next < len(c.tables); c.next++ {
		if rows, more := c.tables[c.next].Next(valuesMax); more {
			if c.wish.Moment {
				rows.Version = c.wish.At
			}
			return CopyPiece{Rows: &rows}, true, nil
		}
	}
	return CopyPiece{}, false, nil
}

// Limit ends a copy that holds more than it may, so that no step adds to that. It is called after each step.
func (c *VersionCopy) Limit() {
	if c.err != nil || c.bytes() <= c.wish.BytesMax {
		return
	}
	c.err = fmt.Errorf("%w: rows that have changed since take %d bytes, want at most %d", ErrCopyBehind, c.bytes(),
		c.wish.BytesMax)
	c.Close()
}

func (c *VersionCopy) bytes() (n int64) {
	if c.dense != nil {
		n = c.dense.Bytes()
	}
	for _, t := range c.tables {
		n += t.Bytes()
	}
	return n
}

// Close gives back what is held of the version, whether or not the copy is whole. A second call does nothing.
func (c *VersionCopy) Close() {
	if c.dense != nil {
		c.dense.Close()
	}
	for _, t := range c.tables {
		t.Close()
	}
	c.dense, c.tables = nil, nil
}
