package rdata

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

// Whatever compresses the index, the columns of a data frame come out as they went in.
func TestLoad(t *testing.T) {
	for _, pack := range []func([]byte) []byte{gzipped, deflated} {
		f, err := Load(write(t, pack), "films")
		if err != nil {
			t.Fatal(err)
		}
		if f.Rows() != 3 {
			t.Errorf("%d rows", f.Rows())
		}
		for column, want := range map[string]string{"id": "[7 NaN 9]", "stars": "[2.5 3 -Inf]", "rank": "[4 5 6]"} {
			if got, err := f.Reals(column); err != nil || fmt.Sprint(got) != want {
				t.Errorf("%s: %v, want %s (%v)", column, got, want, err)
			}
		}
		if got, err := f.Texts("title"); err != nil || !slices.Equal(got, []string{"Alien", "", "Grüße"}) {
			t.Errorf("title: %q (%v)", got, err)
		}
		for _, wrong := range []string{"title", "genre", "year"} {
			if got, err := f.Reals(wrong); !errors.Is(err, ErrFormat) {
				t.Errorf("numbers of column %s: %v (%v)", wrong, got, err)
			}
		}
		if _, err := f.Texts("id"); !errors.Is(err, ErrFormat) {
			t.Errorf("texts of column id: %v", err)
		}
	}
}

// What is not there, cut, or something else is an error that says so.
func TestLoadRefuses(t *testing.T) {
	if _, err := Load("nowhere/Rdata", "films"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	base := write(t, gzipped)
	if _, err := Load(base, "books"); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), `["films"]`) {
		t.Errorf("another name: %v", err)
	}
	for _, file := range []string{".rdb", ".rdx"} {
		base := write(t, gzipped)
		whole, err := os.ReadFile(base + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{nil, whole[:len(whole)/2], whole[:len(whole)-1],
			[]byte("userId,movieId,rating,timestamp\n")} {
			if err := os.WriteFile(base+file, part, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(base, "films"); !errors.Is(err, ErrFormat) {
				t.Errorf("%d of %d bytes of %s: %v", len(part), len(whole), file, err)
			}
		}
	}
}

// An object that was cut anywhere is refused, and so are bytes after it.
func TestDecodeRefuses(t *testing.T) {
	w := newWriter()
	w.frame()
	whole := w.Bytes()
	if _, err := decode(whole); err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if _, err := decode(whole[:n]); !errors.Is(err, ErrFormat) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
	if _, err := decode(append(slices.Clone(whole), 0)); !errors.Is(err, ErrFormat) {
		t.Errorf("a byte too many: %v", err)
	}
	for says, write := range map[string]func(w *writer){
		"an object of type 3":            func(w *writer) { w.int(3) }, // a function
		"4096 values of 8 bytes or more": func(w *writer) { w.int(typeReals, 4096) },
		"-2 values":                      func(w *writer) { w.int(typeInts, -2) },
		"reference 1: there are 0":       func(w *writer) { w.int(typeReference | 1<<8) },
		"more than 64 objects":           func(w *writer) { nested(w, 100) },
		`compact form "mmap_real"`:       func(w *writer) { compact(w, "mmap_real") },
		"a sequence that is none":        func(w *writer) { compact(w, "compact_intseq") },
		"type 13 within a list of pairs": func(w *writer) { w.int(typePairs, typeNull, typeInts) },
		"type 13 where a text is":        func(w *writer) { w.int(typeTexts, 1, typeInts, 0) },
		"no header of R's XDR format":    nil,
	} {
		w := newWriter()
		if write == nil {
			w.Reset()
			w.WriteString("A\nascii, which R writes too")
			says = "no header"
		} else {
			write(w)
		}
		if _, err := decode(w.Bytes()); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// What an object takes in memory follows from the number of its values, and not from its bytes: each that stands for
// nothing has four, which compress to next to none.
func TestDecodeCountsValues(t *testing.T) {
	empty := func(n int) []byte {
		w := newWriter()
		w.int(typeList, n)
		for range n {
			w.end()
		}
		return w.Bytes()
	}
	if v, err := decode(empty(valuesMax - 1)); err != nil || len(v.List) != valuesMax-1 {
		t.Errorf("%d values and their list: %v", valuesMax-1, err)
	}
	if _, err := decode(empty(valuesMax)); !errors.Is(err, ErrFormat) ||
		!strings.Contains(err.Error(), "more than 65536 objects") {
		t.Errorf("%d values and their list: %v", valuesMax, err)
	}
}

func nested(w *writer, depth int) {
	for range depth {
		w.int(typeList, 1)
	}
	w.end()
}

func compact(w *writer, class string) {
	w.int(typeAltRep)
	w.int(typePairs)
	w.symbol(class)
	w.end()
	w.vector(0, []float64{1, 2})
	w.end()
}

// The ratings of Debian's package, where they are on this machine.
func TestLoadReal(t *testing.T) {
	const base = "../../../data/movielens/Rdata"
	if _, err := os.Stat(base + ".rdb"); err != nil {
		t.Skipf("no ratings here, make data fetches them: %v", err)
	}
	f, err := Load(base, "movielens")
	if err != nil {
		t.Fatal(err)
	}
	users, err := f.Reals("userId")
	stars, err2 := f.Reals("rating")
	titles, err3 := f.Texts("title")
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	if f.Rows() != 100_004 || users[100_003] != 671 || stars[0] != 2.5 || titles[0] != "Dangerous Minds" {
		t.Errorf("%d rows, last user %v, first %v stars for %q", f.Rows(), users[100_003], stars[0], titles[0])
	}
}

// Bytes from anywhere are decoded or refused, without a panic, and with no more values than there are bytes.
func FuzzDecode(f *testing.F) {
	w := newWriter()
	w.frame()
	f.Add(w.Bytes())
	for _, class := range []string{"compact_intseq", "wrap_real"} {
		w := newWriter()
		compact(w, class)
		f.Add(w.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := decode(data)
		if (err == nil) == (v == nil) || err != nil && !errors.Is(err, ErrFormat) {
			t.Fatalf("%v, %v", v, err)
		}
		if err == nil && v.len() > len(data) {
			t.Fatalf("%d values of %d bytes", v.len(), len(data))
		}
		if err == nil {
			_, _ = frameOf(v)
		}
	})
}
