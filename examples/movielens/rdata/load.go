package rdata

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"gradbus/internal/regular"
)

const (
	indexBytesMax  = 1 << 22 // of an index, unpacked; that of a package with 30 data sets has 1.3 KB
	objectBytesMax = 1 << 26 // of one object, packed and unpacked; 100,000 ratings have 4 MB
)

// Frame is a data frame: columns of one length.
type Frame struct {
	names   []string
	columns []*value
	rows    int
}

// Load reads a data frame of a database of R: base.rdx lists what base.rdb holds. It fails with fs.ErrNotExist where
// there is no database, and with ErrFormat where it, or the object of that name, is something else.
func Load(base, name string) (*Frame, error) {
	v, err := load(base, name)
	if err != nil {
		return nil, fmt.Errorf("read %s of %s.rdb: %w", name, base, err)
	}
	f, err := frameOf(v)
	if err != nil {
		return nil, fmt.Errorf("read %s of %s.rdb: %w", name, base, err)
	}
	return f, nil
}

func load(base, name string) (*value, error) {
	packed, err := regular.Read(base+".rdx", indexBytesMax)
	if err != nil {
		return nil, err
	}
	offset, length, err := find(packed, name)
	if err != nil {
		return nil, err
	}
	file, err := regular.Open(base + ".rdb")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if length > objectBytesMax {
		return nil, fmt.Errorf("%w: it has %d bytes: want at most %d", ErrFormat, length, objectBytesMax)
	}
	if info, err := file.Stat(); err != nil || int64(offset)+int64(length) > info.Size() {
		return nil, errors.Join(err, fmt.Errorf("%w: the file ends before byte %d", ErrFormat, int64(offset)+int64(length)))
	}
	object := make([]byte, length)
	if _, err := file.ReadAt(object, int64(offset)); err != nil {
		return nil, err
	}
	return unpackObject(object)
}

// find gives where the index says that an object lies.
func find(packed []byte, name string) (offset, length int32, err error) {
	var in io.Reader
	if in, err = gzip.NewReader(bytes.NewReader(packed)); err != nil {
		if in, err = zlib.NewReader(bytes.NewReader(packed)); err != nil {
			return 0, 0, fmt.Errorf("%w: the index is compressed neither with gzip nor with zlib", ErrFormat)
		}
	}
	plain, err := readAll(in, indexBytesMax)
	if err != nil {
		return 0, 0, err
	}
	index, err := decode(plain)
	if err != nil {
		return 0, 0, fmt.Errorf("index: %w", err)
	}
	variables, ok := index.element("variables")
	if !ok {
		return 0, 0, fmt.Errorf("%w: the index has no variables", ErrFormat)
	}
	at, ok := variables.element(name)
	if !ok || len(at.Ints) != 2 || at.Ints[0] < 0 || at.Ints[1] < 4 {
		return 0, 0, fmt.Errorf("%w: no object of that name; there are %q", ErrFormat, variables.names())
	}
	return at.Ints[0], at.Ints[1], nil
}

// unpackObject reads an object of the database: its length, and zlib's stream of it.
func unpackObject(packed []byte) (*value, error) {
	want := binary.BigEndian.Uint32(packed)
	in, err := zlib.NewReader(bytes.NewReader(packed[4:]))
	if err != nil {
		return nil, fmt.Errorf("%w: it is not compressed with zlib: %w", ErrFormat, err)
	}
	plain, err := readAll(in, objectBytesMax)
	if err != nil {
		return nil, err
	}
	if uint32(len(plain)) != want {
		return nil, fmt.Errorf("%w: %d bytes unpacked, want %d", ErrFormat, len(plain), want)
	}
	return decode(plain)
}

func readAll(in io.Reader, most int64) ([]byte, error) {
	plain, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if int64(len(plain)) > most {
		return nil, fmt.Errorf("%w: more than %d bytes unpacked", ErrFormat, most)
	}
	return plain, nil
}

// element gives an element of a list by its name.
func (v *value) element(name string) (*value, bool) {
	for i, n := range v.names() {
		if n == name && i < len(v.List) {
			return v.List[i], true
		}
	}
	return nil, false
}

func (v *value) names() []string {
	if names := v.Attribs["names"]; names != nil {
		return names.Texts
	}
	return nil
}

// len is the number of a vector's values.
func (v *value) len() int { return max(len(v.Ints), len(v.Reals), len(v.Texts), len(v.List)) }

func frameOf(v *value) (*Frame, error) {
	f := &Frame{names: v.names(), columns: v.List}
	if len(f.columns) == 0 || len(f.names) != len(f.columns) {
		return nil, fmt.Errorf("%w: it is no data frame", ErrFormat)
	}
	f.rows = f.columns[0].len()
	for i, c := range f.columns {
		if c.len() != f.rows {
			return nil, fmt.Errorf("%w: it is no data frame: column %s has %d values, %s has %d", ErrFormat, f.names[i], c.len(),
				f.names[0], f.rows)
		}
	}
	return f, nil
}

// Rows is the length of the columns.
func (f *Frame) Rows() int { return f.rows }

// Reals gives a column of numbers, integers too; a missing one is NaN. It fails with ErrFormat where there is no such
// column.
func (f *Frame) Reals(name string) ([]float64, error) {
	v, err := f.column(name)
	switch {
	case err != nil:
		return nil, err
	case len(v.Reals) == f.rows:
		return v.Reals, nil
	case len(v.Ints) != f.rows || v.Attribs["levels"] != nil:
		return nil, fmt.Errorf("%w: column %s does not hold numbers", ErrFormat, name)
	}
	out := make([]float64, f.rows)
	for i, x := range v.Ints {
		if out[i] = float64(x); x == na {
			out[i] = math.NaN()
		}
	}
	return out, nil
}

// Texts gives a column of texts. It fails with ErrFormat where there is none of that name.
func (f *Frame) Texts(name string) ([]string, error) {
	v, err := f.column(name)
	if err == nil && len(v.Texts) != f.rows {
		err = fmt.Errorf("%w: column %s does not hold texts", ErrFormat, name)
	}
	if err != nil {
		return nil, err
	}
	return v.Texts, nil
}

func (f *Frame) column(name string) (*value, error) {
	for i, n := range f.names {
		if n == name {
			return f.columns[i], nil
		}
	}
	return nil, fmt.Errorf("%w: no column %s; there are %q", ErrFormat, name, f.names)
}
