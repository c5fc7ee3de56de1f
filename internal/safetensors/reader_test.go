package safetensors

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/internal/regular"
)

// Pieces of any tensor, from any place on, across the reader's own buffer.
func openReader(path string) (*Reader, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	return NewReader(f)
}

func TestReaderReadsPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	long := make([]float32, copyBufferBytes/4+100)
	for i := range long {
		long[i] = float32(i)
	}
	metadata := map[string]string{"k": "v"}
	if err := Save(path, metadata, []Tensor{floats("w", []int{2, 2}, []float32{1, 2, 3, 4}), floats("e", []int{0}, nil),
		floats("long", []int{len(long)}, long)}); err != nil {
		t.Fatal(err)
	}
	r, err := openReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !maps.Equal(r.Metadata(), metadata) {
		t.Errorf("metadata %v", r.Metadata())
	}
	shapes := map[string][]int{}
	for _, x := range r.Tensors() {
		shapes[x.Name] = x.Shape
	}
	if !maps.EqualFunc(shapes, map[string][]int{"w": {2, 2}, "e": {0}, "long": {len(long)}}, slices.Equal) {
		t.Errorf("tensors %v", shapes)
	}
	two := make([]float32, 2)
	if err := r.ReadAt("w", 1, two); err != nil || !slices.Equal(two, []float32{2, 3}) {
		t.Errorf("%v, %v", two, err)
	}
	all := make([]float32, len(long)-1)
	if err := r.ReadAt("long", 1, all); err != nil || !slices.Equal(all, long[1:]) {
		t.Errorf("%v: other values", err)
	}
	if err := r.ReadAt("e", 0, nil); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		`2 values from element 3 on of tensor "w", which has 4`: r.ReadAt("w", 3, two),
		`of tensor "v", which has 0`:                            r.ReadAt("v", 0, two),
		"from element -1 on":                                    r.ReadAt("w", -1, two),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestReaderRefuses(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "m")
	if _, err := openReader(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, _, err := Load(folder, anything); !errors.Is(err, regular.ErrNotRegular) {
		t.Errorf("a folder: %v", err)
	}
	whole := file(goldenHeader, goldenValues)
	for at := range len(whole) {
		if err := os.WriteFile(path, whole[:at], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openReader(path); !errors.Is(err, ErrFormat) {
			t.Errorf("cut at %d of %d: %v", at, len(whole), err)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := openReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.Truncate(path, int64(len(whole)-1)); err != nil {
		t.Fatal(err)
	}
	if err := r.ReadAt("b", 0, make([]float32, 1)); !errors.Is(err, ErrFormat) {
		t.Errorf("cut after it was opened: %v", err)
	}
}
