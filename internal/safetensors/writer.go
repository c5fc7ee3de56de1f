package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"gradbus/internal/atomicfile"
)

// Writer writes a file whose values arrive piece by piece, in any order, without holding them in memory: it needs 64
// KiB. Not safe for concurrent use.
//
//	w, err := safetensors.Create(path, metadata, []safetensors.Tensor{{Name: "users", Shape: []int{1 << 30, 4}}})
//	defer w.Discard()
//	err = w.Put("users", 4*7, row) // row 7; and so on, every value once
//	err = w.Commit(metadata)
type Writer struct {
	path    string
	file    *atomicfile.File
	to      io.WriterAt // that file
	tensors []Tensor
	at      map[string]extent
	header  int   // bytes
	left    int64 // values that have not come
	buffer  []byte
}

// extent is where a tensor's values are in the file, and how many bytes each has.
type extent struct{ first, values, size int64 }

// Create begins a file; of tensors it takes names and shapes. It fails, and leaves nothing, where Load would refuse the
// file.
func Create(path string, metadata map[string]string, tensors []Tensor) (*Writer, error) {
	w, err := newWriter(path, metadata, tensors)
	if err != nil {
		return nil, err
	}
	if w.file, err = atomicfile.Create(path, 0o666); err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	w.to = w.file
	return w, nil
}

// newWriter is a Writer without its file.
func newWriter(path string, metadata map[string]string, tensors []Tensor) (*Writer, error) {
	tensors = aligned(tensors)
	header, err := encodeHeader(metadata, tensors)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	w := &Writer{path: path, tensors: tensors, at: map[string]extent{}, header: len(header),
		buffer: make([]byte, 0, copyBufferBytes)}
	at := int64(len(header))
	for _, t := range tensors {
		bytes, _ := bytesOf(t.Name, t.dtype(), dtypes, t.Shape) // as encodeHeader has seen
		size := dtypes[t.dtype()]
		w.at[t.Name] = extent{at, bytes / size, size}
		at, w.left = at+bytes, w.left+bytes/size
	}
	return w, nil
}

// Put writes values of a tensor from its element number first on. Who puts a value puts it once.
func (w *Writer) Put(name string, first int64, values []float32) error {
	e, ok := w.at[name]
	if n := int64(len(values)); !ok || first < 0 || n > e.values || first > e.values-n {
		return fmt.Errorf("write %s: %d values from element %d on of tensor %q, which has %d", w.path, n, first,
			name, e.values)
	}
	w.left -= int64(len(values))
	at := e.first + 4*first
	for chunk := range slices.Chunk(values, copyBufferBytes/4) {
		w.buffer = w.buffer[:0]
		for _, v := range chunk {
			w.buffer = binary.LittleEndian.AppendUint32(w.buffer, math.Float32bits(v))
		}
		n, err := w.to.WriteAt(w.buffer, at)
		if err != nil {
			return fmt.Errorf("write %s: %w", w.path, err)
		}
		at += int64(n)
	}
	return nil
}

// PutBytes writes the whole content of a tensor of any type, little-endian, once.
func (w *Writer) PutBytes(name string, data []byte) error {
	e, ok := w.at[name]
	if !ok || int64(len(data)) != e.size*e.values {
		return fmt.Errorf("write %s: %d bytes of tensor %q, which has %d", w.path, len(data), name, e.size*e.values)
	}
	w.left -= e.values
	if _, err := w.to.WriteAt(data, e.first); err != nil {
		return fmt.Errorf("write %s: %w", w.path, err)
	}
	return nil
}

// Commit writes the header, whose metadata may have other values than those of Create, of the same lengths, such as a
// digest. Then the file is there, unless values are missing.
func (w *Writer) Commit(metadata map[string]string) error {
	header, err := encodeHeader(metadata, w.tensors)
	switch {
	case err != nil:
	case len(header) != w.header:
		err = fmt.Errorf("a header of %d bytes, where there is room for %d", len(header), w.header)
	case w.left != 0:
		err = fmt.Errorf("%d values more than came are in its tensors", w.left)
	default:
		if _, err = w.to.WriteAt(header, 0); err == nil {
			err = w.file.Commit()
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", w.path, err)
	}
	return nil
}

// Discard leaves what was there before. After a Commit it does nothing.
func (w *Writer) Discard() { w.file.Discard() }
