package corpus

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

func unpackAll(packed []byte) (string, error) {
	r, err := unpack(bytes.NewReader(packed))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r)
	return string(text), err
}

// The files of testdata were made with the usual tools: gzip -n9, xz -9, lz4.
func TestUnpackFiles(t *testing.T) {
	for _, suffix := range []string{"", ".gz", ".xz", ".lz4"} {
		packed, err := os.ReadFile("testdata/two.Packages" + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := unpackAll(packed); err != nil || text != two {
			t.Errorf("%q: %v, %d bytes of text", suffix, err, len(text))
		}
	}
}

// pack compresses with the libraries; blocks of lz4 are small, so that text has several.
func pack(t testing.TB, kind, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch kind {
	case "gz":
		w = gzip.NewWriter(&out)
	case "xz":
		w, err = xz.NewWriter(&out)
	case "lz4":
		z := lz4.NewWriter(&out)
		err = z.Apply(lz4.BlockSizeOption(lz4.Block64Kb))
		w = z
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// noise is text that does not compress to nothing, so that there are many places to cut it.
func noise(n int) string {
	r := rand.New(rand.NewPCG(1, 1))
	var b strings.Builder
	for b.Len() < n {
		b.WriteByte("abcdefgh \n"[r.IntN(10)])
	}
	return b.String()
}

// Cut anywhere, compressed data is an error, never a shorter text.
func TestUnpackEveryCut(t *testing.T) {
	for kind, size := range map[string]int{"gz": 50_000, "xz": 2_000, "lz4": 200_000} {
		text := noise(size)
		packed := pack(t, kind, text)
		if got, err := unpackAll(packed); err != nil || got != text {
			t.Fatalf("%s: whole: %v, %d bytes", kind, err, len(got))
		}
		step := max(1, len(packed)/15)
		for at := 6; at < len(packed); at++ {
			if at > 26 && at < len(packed)-32 && at%step != 0 { // headers, index and footer byte by byte
				continue
			}
			if _, err := unpackAll(packed[:at]); !errors.Is(err, ErrCut) {
				t.Errorf("%s: cut at %d of %d: %v", kind, at, len(packed), err)
			}
		}
	}
}

// A changed byte is an error too: all three have checksums.
func TestUnpackDamaged(t *testing.T) {
	text := noise(20_000)
	for _, kind := range []string{"gz", "xz", "lz4"} {
		packed := pack(t, kind, text)
		for _, at := range []int{len(packed) / 3, len(packed) / 2} {
			changed := bytes.Clone(packed)
			changed[at] ^= 0x40
			if got, err := unpackAll(changed); err == nil {
				t.Errorf("%s: byte %d changed: no error, text equal: %v", kind, at, got == text)
			} else if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrCut) {
				t.Errorf("%s: byte %d changed: %v", kind, at, err)
			}
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	for _, c := range []struct {
		packed string
		kind   error
		want   string
	}{
		{"", ErrEmpty, "empty: no bytes"},
		{"\x28\xb5\x2f\xfd....", ErrCompression,
			"unsupported compression zst: want plain text, gz, xz or lz4; unpack it first"},
		{"BZh91AY", ErrCompression, "unsupported compression bz2: want plain text, gz, xz or lz4; unpack it first"},
		{"PK\x03\x04....", ErrCompression, "unsupported compression zip: want plain text, gz, xz or lz4; unpack it first"},
		{"\x1f\x8b", ErrCut, "gz data: cut short"},
	} {
		_, err := unpackAll([]byte(c.packed))
		if !errors.Is(err, c.kind) || err.Error() != c.want {
			t.Errorf("%q: got %v, want %s", c.packed, err, c.want)
		}
	}
	if text, err := unpackAll([]byte("abc")); err != nil || text != "abc" {
		t.Errorf("three plain bytes: %q, %v", text, err)
	}
}

// Zeros after an xz stream are allowed, and more streams after another; what a reader deals out one byte at a time
// reads alike.
func TestUnpackXZStreams(t *testing.T) {
	one := pack(t, "xz", "one\n")
	packed := slices.Concat(one, make([]byte, 16), one, make([]byte, 8))
	if text, err := unpackAll(packed); err != nil || text != "one\none\n" {
		t.Errorf("two streams: %q, %v", text, err)
	}
	r, err := newXZ(iotest.OneByteReader(bytes.NewReader(packed)))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "one\none\n" {
		t.Errorf("byte by byte: %q, %v", text, err)
	}
	if _, err := unpackAll(slices.Concat(one, make([]byte, 16), one[:len(one)-1])); !errors.Is(err, ErrCut) {
		t.Errorf("second stream cut: %v", err)
	}
}
