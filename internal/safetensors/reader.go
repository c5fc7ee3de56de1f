package safetensors

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Reader reads a file piece by piece, without holding it in memory: it needs memory for the header and 64 KiB. Not safe
// for concurrent use.
//
//	f, err := regular.Open(path)
//	r, err := safetensors.NewReader(f)
//	defer r.Close()
//	err = r.ReadAt("users", 4*7, row) // row 7 of a table of 4 columns
type Reader struct {
	*header
	path   string
	file   *os.File
	buffer []byte
}

// NewReader reads the header of a regular file, which it owns and closes: at once where it fails. It fails with
// ErrFormat.
func NewReader(f *os.File) (*Reader, error) {
	h, err := headerOf(f, float32Alone)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return &Reader{header: h, path: f.Name(), file: f, buffer: make([]byte, copyBufferBytes)}, nil
}

// headerOf reads the header of a file, and compares it with the file's length.
func headerOf(f *os.File, known map[string]int64) (*header, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return readHeader(f, info.Size(), known)
}

// Metadata is the map of strings. It is not to be changed.
func (r *Reader) Metadata() map[string]string { return r.metadata }

// Tensors are names and shapes, in the order in which the file has the values.
func (r *Reader) Tensors() []Tensor { return slices.Clone(r.tensors) }

// ReadAt reads values of a tensor from its element number first on, as many as there is room for in values. It is
// ErrFormat where the file has become shorter.
func (r *Reader) ReadAt(name string, first int64, values []float32) error {
	e, ok := r.at[name]
	if n := int64(len(values)); !ok || first < 0 || n > e.values || first > e.values-n {
		return fmt.Errorf("read %s: %d values from element %d on of tensor %q, which has %d", r.path, n, first, name,
			e.values)
	}
	in := io.NewSectionReader(r.file, e.first+4*first, 4*int64(len(values)))
	err := readValues(in, values, r.buffer)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read %s: %w: cut short within tensor %q", r.path, ErrFormat, name)
	}
	if err != nil {
		return fmt.Errorf("read %s: tensor %q: %w", r.path, name, err)
	}
	return nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }
