package safetensors

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Tensors of every type pass through a file as bytes, each at a multiple of its element's size, for who asks for them.
func TestOtherTypes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	tensors := []Tensor{floats("w", []int{1}, []float32{2})}
	for dtype, size := range dtypes {
		tensors = append(tensors, Tensor{Name: dtype, DType: dtype, Shape: []int{3},
			Data: bytes.Repeat([]byte{byte(size)}, 3*int(size))})
	}
	if err := Save(path, map[string]string{"k": "v"}, tensors); err != nil {
		t.Fatal(err)
	}
	all := func(_ map[string]string, tensors map[string]Tensor) (map[string]Tensor, error) { return tensors, nil }
	got, err := Read(path, all)
	if err != nil || len(got) != len(tensors) {
		t.Fatalf("%d tensors, %v", len(got), err)
	}
	for _, want := range tensors {
		one := got[want.Name]
		if !bytes.Equal(one.Bytes(), want.Bytes()) || !slices.Equal(one.Shape, want.Shape) || one.dtype() != want.dtype() {
			t.Errorf("%+v, want %+v", one, want)
		}
	}
	w, err := newWriter(path, nil, tensors)
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range w.at {
		if e.first%e.size != 0 {
			t.Errorf("%s begins at byte %d", name, e.first)
		}
	}
	_, err = Values(got, "F16", []int{3})
	for says, err := range map[string]error{
		`23 bytes of tensor "I64", which has 24`: w.PutBytes("I64", make([]byte, 23)),
		`F16 has dtype "F16", want F32`:          err,
		`dtype "C64", want BF16, BOOL, F16`:      Save(path+"2", nil, []Tensor{{Name: "x", DType: "C64"}}),
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if _, err := openReader(path); !errors.Is(err, ErrFormat) {
		t.Errorf("in pieces: %v", err)
	}
}
