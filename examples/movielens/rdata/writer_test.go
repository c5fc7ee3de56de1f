package rdata

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// writer writes objects as R's serialize does, in XDR, version 3.
type writer struct {
	bytes.Buffer
	symbols []string
}

func newWriter() *writer {
	w := &writer{}
	w.WriteString("X\n")
	w.int(3, 0x30401, 0x30500)
	w.int(5)
	w.WriteString("UTF-8")
	return w
}

func (w *writer) int(all ...int) {
	for _, n := range all {
		_ = binary.Write(w, binary.BigEndian, int32(n))
	}
}

func (w *writer) text(s string) {
	w.int(typeChars|4<<12, len(s))
	w.WriteString(s)
}

func (w *writer) symbol(name string) {
	for i, s := range w.symbols {
		if s == name {
			w.int(typeReference | (i+1)<<8)
			return
		}
	}
	w.symbols = append(w.symbols, name)
	w.int(typeSymbol)
	w.text(name)
}

// vector writes a vector of ints, reals, texts, or of what a function writes.
func (w *writer) vector(flags int, v any) {
	switch v := v.(type) {
	case []int:
		w.int(typeInts|flags, len(v))
		w.int(v...)
	case []float64:
		w.int(typeReals|flags, len(v))
		_ = binary.Write(w, binary.BigEndian, v)
	case []string:
		w.int(typeTexts|flags, len(v))
		for _, s := range v {
			w.text(s)
		}
	case []func():
		w.int(typeList|flags, len(v))
		for _, f := range v {
			f()
		}
	}
}

func (w *writer) attribute(name string, v any) {
	w.int(typePairs | flagTag)
	w.symbol(name)
	w.vector(0, v)
}

func (w *writer) end() { w.int(typeNull) }

// frame writes a data frame of a column of each kind.
func (w *writer) frame() {
	w.vector(flagAttributes|1<<8, []func(){
		func() { w.vector(0, []int{7, math.MinInt32, 9}) },
		func() { w.vector(0, []float64{2.5, 3, math.Inf(-1)}) },
		func() { w.vector(0, []string{"Alien", "", "Grüße"}) },
		func() { // a factor
			w.vector(flagAttributes|1<<8, []int{1, 2, 1})
			w.attribute("levels", []string{"a", "b"})
			w.attribute("class", []string{"factor"})
			w.end()
		},
		func() { // a vector that R knows to be sorted
			w.int(typeAltRep | 1<<8)
			w.int(typePairs)
			w.symbol("wrap_integer")
			w.int(typePairs)
			w.symbol("base")
			w.int(typePairs)
			w.vector(0, []int{typeInts})
			w.end()
			w.vector(0, []func(){func() { w.vector(0, []int{4, 5, 6}) }, func() { w.vector(0, []int{1, 0}) }})
			w.end()
		},
	})
	w.attribute("names", []string{"id", "stars", "title", "genre", "rank"})
	w.attribute("row.names", []int{math.MinInt32, -3})
	w.attribute("class", []string{"data.frame"})
	w.end()
}

// write makes a database of one frame in a folder, and gives its base.
func write(t testing.TB, pack func([]byte) []byte) (base string) {
	t.Helper()
	w := newWriter()
	w.frame()
	object := append(binary.BigEndian.AppendUint32(nil, uint32(w.Len())), deflated(w.Bytes())...)
	index := newWriter()
	index.vector(flagAttributes, []func(){
		func() {
			index.vector(flagAttributes, []func(){func() { index.vector(0, []int{3, len(object)}) }})
			index.attribute("names", []string{"films"})
			index.end()
		},
		func() { index.vector(0, []int{1}) },
	})
	index.attribute("names", []string{"variables", "compressed"})
	index.end()
	base = filepath.Join(t.TempDir(), "Rdata")
	for name, content := range map[string][]byte{".rdb": append([]byte("abc"), object...), ".rdx": pack(index.Bytes())} {
		if err := os.WriteFile(base+name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return base
}

func deflated(b []byte) []byte {
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	_, _ = z.Write(b)
	_ = z.Close()
	return out.Bytes()
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b)
	_ = z.Close()
	return out.Bytes()
}
