package safetensors

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Values that come in pieces and out of order, and a digest that is known last, make the file of Save.
func TestWriterMakesTheFileOfSave(t *testing.T) {
	folder := t.TempDir()
	tensors := []Tensor{floats("w", []int{3, 2}, []float32{0, 1, 2, 3, 4, 5}), floats("b", []int{1}, []float32{7}),
		floats("e", []int{0, 2}, nil)}
	whole, pieces := filepath.Join(folder, "whole"), filepath.Join(folder, "pieces")
	if err := Save(whole, map[string]string{"digest": "1234"}, tensors); err != nil {
		t.Fatal(err)
	}
	w, err := Create(pieces, map[string]string{"digest": "0000"}, tensors)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Discard()
	put := func(name string, first int64, values ...float32) {
		if err := w.Put(name, first, values); err != nil {
			t.Error(err)
		}
	}
	put("b", 0, 7)
	put("w", 4, 4, 5)
	put("w", 0, 0, 1)
	for want, err := range map[string]error{
		"2 values more than came":       w.Commit(map[string]string{"digest": "1234"}),
		"has 6":                         w.Put("w", 5, []float32{1, 2}),
		`of tensor "v", which has 0`:    w.Put("v", 0, []float32{1}),
		"where there is room for":       w.Commit(map[string]string{"digest": strings.Repeat("1", 20)}),
		"from element -1 on of tensor ": w.Put("w", -1, []float32{1}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	put("w", 2, 2, 3)
	if err := w.Commit(map[string]string{"digest": "1234"}); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(whole)
	got, err2 := os.ReadFile(pieces)
	if err != nil || err2 != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, %v: %q, want %q", err, err2, got, want)
	}
}
