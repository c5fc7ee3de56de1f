// Package safetensors writes and reads the files of trained models: named tensors and a map of strings.
//
// A safetensors file is a 64-bit little-endian length, a JSON header of that length, and the tensors' values. The
// header maps each tensor's name to its dtype, shape and place, and "__metadata__" to the map of strings. The package
// knows files and tensors, nothing of models; what it reads may be anything, and is refused unless every byte is
// accounted for.
//
// Source: huggingface/safetensors, README. Weights are float32. Tensors of other types, such as the counters of a
// module, pass through as bytes where a caller asks for them (ReadAny).
package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"gradbus/internal/atomicfile"
	"gradbus/internal/process"
	"gradbus/internal/regular"
)

var (
	// ErrFormat reports that a file is not a safetensors file of float32 tensors; the text says what is wrong.
	ErrFormat = errors.New("not a file of float32 tensors")
	// ErrMemory reports that the tensors of a file do not fit into the memory of this machine or control group.
	ErrMemory = errors.New("tensors do not fit into memory")
)

const (
	// headerBytesMax is 64 times a job's manifest: what a file has of a parameter, with names, slots and steps, is at most
	// some 40 times what the manifest has of it.
	headerBytesMax = 64 << 20
	// entriesMax bounds the tensors of a file, and its metadata, so that a header takes little more memory decoded than it
	// has bytes at most. The largest manifest makes some 200,000 tensors.
	entriesMax      = 1 << 18
	listBytesMax    = 4096    // of a shape, or of offsets, in the header
	dimensionsMax   = 64      // PyTorch's
	tensorBytesMax  = 1 << 46 // the largest table; what a reader allocates is bounded by the length of its file
	copyBufferBytes = 1 << 16
	namesSaidMax    = 8 // in an error
	metadataName    = "__metadata__"
)

// tensorHeader is a tensor's entry in the header.
type tensorHeader struct {
	DType   string           `json:"dtype"`
	Shape   shortList[int]   `json:"shape"`
	Offsets shortList[int64] `json:"data_offsets"` // first byte and end
}

// shortList is a list of numbers whose text has a limit.
type shortList[T int | int64] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *shortList[T]) UnmarshalJSON(text []byte) error {
	if len(text) > listBytesMax {
		return fmt.Errorf("a list of %d bytes, want at most %d", len(text), listBytesMax)
	}
	return json.Unmarshal(text, (*[]T)(l))
}

// metadataMap is the map of strings, whose number has a limit.
type metadataMap map[string]string

// UnmarshalJSON implements json.Unmarshaler.
func (m *metadataMap) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	for tokens := 0; ; tokens++ {
		if tokens > 2*entriesMax+2 { // a key, a value; and the braces
			return tooManyEntries()
		}
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return json.Unmarshal(text, (*map[string]string)(m))
		} else if err != nil {
			return err
		}
	}
}

func tooManyEntries() error { return fmt.Errorf("more than %d entries", entriesMax) }

// Save writes the file: it is there whole or not at all (see atomicfile). It fails, and writes nothing, where Load
// would refuse the file: tensors need names, no name twice, none "__metadata__", and as many values as their shapes
// say.
func Save(path string, metadata map[string]string, tensors []Tensor) error {
	w, err := Create(path, metadata, tensors)
	if err != nil {
		return err
	}
	defer w.Discard()
	for _, t := range tensors {
		if t.Data != nil {
			err = w.PutBytes(t.Name, t.Data)
		} else if want := w.at[t.Name].values; int64(len(t.Values)) != want {
			err = fmt.Errorf("write %s: tensor %q has %d values, want the %d of its shape %v", path, t.Name, len(t.Values),
				want, t.Shape)
		} else {
			err = w.Put(t.Name, 0, t.Values)
		}
		if err != nil {
			return err
		}
	}
	return w.Commit(metadata)
}

// CheckSave reports whether a model could be saved at path, before the time for training it is spent. It leaves
// nothing behind.
func CheckSave(path string) error {
	if err := atomicfile.Check(path); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// encodeHeader gives the header of a file, with its length before it, or says why Load would not read it.
func encodeHeader(metadata map[string]string, tensors []Tensor) ([]byte, error) {
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, fmt.Errorf("metadata %q: %.40q: want UTF-8", key, value)
		}
	}
	if max(len(metadata), len(tensors)) > entriesMax {
		return nil, tooManyEntries()
	}
	header := map[string]any{}
	if metadata != nil {
		header[metadataName] = metadata
	}
	at := int64(0)
	for _, t := range tensors {
		if err := checkName(t.Name); err != nil {
			return nil, err
		}
		if _, twice := header[t.Name]; twice {
			return nil, fmt.Errorf("tensor %q is there twice: want each name once", t.Name)
		}
		bytes, err := bytesOf(t.Name, t.dtype(), dtypes, t.Shape)
		if err != nil {
			return nil, err
		}
		header[t.Name] = tensorHeader{t.dtype(), append([]int{}, t.Shape...), []int64{at, at + bytes}}
		at += bytes
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	text = append(text, bytes.Repeat([]byte{' '}, -len(text)&7)...) // values begin at a multiple of eight
	if len(text) > headerBytesMax {
		return nil, fmt.Errorf("a header of %d bytes, want at most %d: shorten the metadata", len(text), headerBytesMax)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), nil
}

// checkName refuses names that a tensor cannot have.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("a tensor without a name")
	case name == metadataName:
		return fmt.Errorf("a tensor called %q, which is the name of the metadata", name)
	case !utf8.ValidString(name):
		return fmt.Errorf("tensor %q: want a name in UTF-8", name)
	}
	return nil
}

// bytesOf returns the size of a tensor in a file. Its type is one of known.
func bytesOf(name, dtype string, known map[string]int64, shape []int) (int64, error) {
	bytes, ok := known[dtype]
	if !ok {
		return 0, fmt.Errorf("%s has dtype %q, want %s", name, dtype, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	if len(shape) > dimensionsMax {
		return 0, fmt.Errorf("%s has %d dimensions, want at most %d", name, len(shape), dimensionsMax)
	}
	for _, n := range shape {
		if n < 0 || n > tensorBytesMax || bytes > tensorBytesMax/int64(max(n, 1)) {
			return 0, fmt.Errorf("%s has shape %v, beyond %d bytes", name, shape, int64(tensorBytesMax))
		}
		bytes *= int64(n)
	}
	return bytes, nil
}

// Check looks at the header of a file: metadata and tensors without values. What it changes is not seen by others.
type Check func(metadata map[string]string, shapes map[string]Tensor) error

// Load reads a whole file. It fails where it cannot be opened (fs.ErrNotExist), and with ErrFormat where the file is
// not a safetensors file of tensors whose places tile the rest of the file exactly. It is ErrMemory where they
// are more than the memory of the machine or of a control group. Nothing is allocated for values, of which a file
// without content may claim any number, before check has found that the tensors are the ones that the caller wants.
func Load(path string, check Check) (metadata map[string]string, tensors map[string]Tensor, err error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	h, err := headerOf(f, dtypes)
	if err == nil {
		err = check(maps.Clone(h.metadata), h.shapes())
	}
	if err == nil {
		err = h.checkMemory(process.RoomBytes())
	}
	if err == nil {
		metadata = h.metadata
		tensors, err = h.read(f)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return metadata, tensors, nil
}

// ContentError is why a file of tensors is not the one that its reader wants.
type ContentError struct{ Err error }

func (e *ContentError) Error() string { return e.Err.Error() }

// Unwrap gives what the reader said.
func (e *ContentError) Unwrap() error { return e.Err }

// Read gives what a caller makes of a file, whose tensors may have any type that PyTorch has: those that are not float32
// have Data. It calls of with the header, whose tensors have no values, before anything is allocated for these, and again
// with all of the file. An error of of's is a ContentError. Others: the file cannot be opened (fs.ErrNotExist), ErrFormat,
// ErrMemory.
func Read[M any](path string, of func(metadata map[string]string, tensors map[string]Tensor) (M, error)) (m M,
	err error) {
	metadata, tensors, err := Load(path, func(metadata map[string]string, shapes map[string]Tensor) error {
		if _, err := of(metadata, shapes); err != nil {
			return &ContentError{err}
		}
		return nil
	})
	if err != nil {
		return m, err
	}
	if m, err = of(metadata, tensors); err != nil {
		err = &ContentError{err}
	}
	return m, err
}

// find gives the tensor of a name. Where there is none, the error names those that are there.
func find(tensors map[string]Tensor, name string) (Tensor, error) {
	if t, ok := tensors[name]; ok {
		return t, nil
	}
	names := slices.Sorted(maps.Keys(tensors))
	if len(names) == 0 {
		return Tensor{}, fmt.Errorf("no such tensor: %q; the file has none", name)
	}
	more := ""
	if len(names) > namesSaidMax {
		names, more = names[:namesSaidMax], fmt.Sprintf(" and %d more", len(names)-namesSaidMax)
	}
	return Tensor{}, fmt.Errorf("no such tensor: %q; the file has %q%s", name, names, more)
}

// Values gives the values of the tensor of a name, which must be there, of this shape and with finite values.
func Values(tensors map[string]Tensor, name string, shape []int) ([]float32, error) {
	t, err := find(tensors, name)
	if err != nil {
		return nil, err
	}
	if t.DType != "" {
		return nil, fmt.Errorf("%s has dtype %q, want %s", name, t.DType, float32Name)
	}
	if !slices.Equal(t.Shape, shape) {
		return nil, fmt.Errorf("%s has shape %v, want %v", name, t.Shape, shape)
	}
	for i, v := range t.Values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, fmt.Errorf("%s has %v at element %d, want finite values", name, v, i)
		}
	}
	return t.Values, nil
}

// shapes are the tensors without their values.
func (h *header) shapes() map[string]Tensor {
	shapes := map[string]Tensor{}
	for _, t := range h.tensors {
		shapes[t.Name] = t
	}
	return shapes
}

// checkMemory refuses values that take more than there is. 0 is no limit.
func (h *header) checkMemory(bytesMax int64) error {
	need := int64(0)
	for _, e := range h.at {
		need += e.size * e.values
	}
	if bytesMax > 0 && need > bytesMax {
		return fmt.Errorf("%w: they take %d bytes, and there are %d", ErrMemory, need, bytesMax)
	}
	return nil
}

// read reads the values of all tensors, from the end of the header on.
func (h *header) read(r io.Reader) (map[string]Tensor, error) {
	tensors := map[string]Tensor{}
	in, buffer := bufio.NewReaderSize(r, copyBufferBytes), make([]byte, copyBufferBytes)
	for _, t := range h.tensors {
		var err error
		if e := h.at[t.Name]; t.DType == "" {
			t.Values = make([]float32, e.values)
			err = readValues(in, t.Values, buffer)
		} else {
			t.Data = make([]byte, e.size*e.values)
			_, err = io.ReadFull(in, t.Data)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrFormat, t.Name, err)
		}
		tensors[t.Name] = t
	}
	return tensors, nil
}

// header is the part of a file before the values.
type header struct {
	metadata map[string]string
	tensors  []Tensor // without values, in the order of the file
	at       map[string]extent
}

// readHeader reads the header of a file of size bytes, and checks that its tensors, of these types, tile what follows.
func readHeader(r io.Reader, size int64, known map[string]int64) (*header, error) {
	var prefix [8]byte
	if size < int64(len(prefix)) {
		return nil, fmt.Errorf("%w: %d bytes, too short for a safetensors file", ErrFormat, size)
	}
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	switch {
	case length < 2 || length > headerBytesMax:
		return nil, fmt.Errorf("%w: no safetensors file: its header would have %d bytes", ErrFormat, length)
	case int64(length) > size-8:
		return nil, fmt.Errorf("%w: cut short: %d bytes, of which the header alone takes %d", ErrFormat, size, length+8)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	metadata, headers, err := parseHeader(text)
	if err != nil {
		return nil, fmt.Errorf("%w: no safetensors file: header: %w", ErrFormat, err)
	}
	first := 8 + int64(length)
	names, err := layout(headers, size-first, known)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	h := &header{metadata: metadata, at: map[string]extent{}}
	for _, name := range names {
		t, of := headers[name], Tensor{Name: name}
		if of.Shape = t.Shape; t.DType != float32Name {
			of.DType = t.DType
		}
		h.tensors = append(h.tensors, of)
		h.at[name] = extent{first + t.Offsets[0], (t.Offsets[1] - t.Offsets[0]) / known[t.DType], known[t.DType]}
	}
	return h, nil
}

// parseHeader reads the JSON strictly: no name twice, no unknown field, nothing after it but blanks.
func parseHeader(text []byte) (metadata map[string]string, headers map[string]tensorHeader, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, nil, fmt.Errorf("%.20q is no JSON object", text)
	}
	described, headers := metadataMap(nil), map[string]tensorHeader{}
	for seen := false; d.More(); {
		t, err := d.Token()
		if err != nil {
			return nil, nil, err
		}
		name, _ := t.(string)
		if _, twice := headers[name]; twice || seen && name == metadataName {
			return nil, nil, fmt.Errorf("%q is there twice", name)
		}
		if len(headers) == entriesMax {
			return nil, nil, tooManyEntries()
		}
		var h tensorHeader
		if name == metadataName {
			seen = true
			err = d.Decode(&described)
		} else if err = checkName(name); err != nil {
			return nil, nil, err
		} else if err = d.Decode(&h); err == nil && len(h.Offsets) != 2 {
			err = fmt.Errorf("data_offsets %v, want two", h.Offsets)
		} else {
			headers[name] = h
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%q: %w", name, err)
		}
	}
	if metadata = described; metadata == nil {
		metadata = map[string]string{}
	}
	if _, err := d.Token(); err != nil {
		return nil, nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("something follows the object")
	}
	return metadata, headers, nil
}

// layout checks that the tensors are of these types and lie side by side in size bytes, and gives their names in that
// order.
func layout(headers map[string]tensorHeader, size int64, known map[string]int64) ([]string, error) {
	names := slices.SortedFunc(maps.Keys(headers), func(a, b string) int {
		if d := headers[a].Offsets[0] - headers[b].Offsets[0]; d != 0 {
			return int(max(-1, min(1, d)))
		}
		return int(max(-1, min(1, headers[a].Offsets[1]-headers[b].Offsets[1])))
	})
	at := int64(0)
	for _, name := range names {
		h := headers[name]
		bytes, err := bytesOf(name, h.DType, known, h.Shape)
		if err != nil {
			return nil, err
		}
		if h.Offsets[0] != at || h.Offsets[1] != at+bytes {
			return nil, fmt.Errorf("%s of shape %v lies at %v, want [%d %d]", name, h.Shape, h.Offsets, at, at+bytes)
		}
		at += bytes
	}
	switch {
	case size < at:
		return nil, fmt.Errorf("cut short: %d bytes of values, want %d", size, at)
	case size > at:
		return nil, fmt.Errorf("%d bytes of values, %d more than its tensors have", size, size-at)
	}
	return names, nil
}

// readValues fills values, by way of a buffer of copyBufferBytes.
func readValues(r io.Reader, values []float32, buffer []byte) error {
	for chunk := range slices.Chunk(values, copyBufferBytes/4) {
		b := buffer[:4*len(chunk)]
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		for i := range chunk {
			chunk[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	}
	return nil
}
