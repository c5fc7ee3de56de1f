package schema

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"gradbus/lane"
)

// A dense chunk of three values, down to the byte: what docs/protocol.md shows.
func TestDenseFrameLiteral(t *testing.T) {
	f, err := NewFrame(Layout{Kind: KindDense, Values: 12})
	if err != nil {
		t.Fatal(err)
	}
	head := Head{
		Kind: KindDense, Job: 0x0102030405060708, Generation: 1, Batch: 17, Bucket: 2, Chunk: 1, Chunks: 3,
		Node: lane.Node{First: 2, Count: 2}, Lanes: 4, DType: DTypeFloat32, Offset: 65536, Weight: 32, Sequence: 9,
	}
	f.SetHead(head)
	copy(f.Float32s(), []float32{1, -2, 0.5})
	v, err := Verify(f.Seal(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if v.Head() != head {
		t.Errorf("head %+v, want %+v", v.Head(), head)
	}
	if got := v.Float32s(); !reflect.DeepEqual(got, []float32{1, -2, 0.5}) {
		t.Errorf("values %v", got)
	}
	if len(v.Bytes()) != 140 || !bytes.Equal(v.Bytes()[128:132], []byte{0, 0, 0x80, 0x3f}) {
		t.Errorf("%d bytes, the first value being % x", len(v.Bytes()), v.Bytes()[128:132])
	}
}

func TestSetSequenceKeepsFrameValid(t *testing.T) {
	f, err := NewFrame(Layout{Kind: KindDense, Values: 4})
	if err != nil {
		t.Fatal(err)
	}
	f.SetHead(Head{Chunks: 1, Node: lane.Node{Count: 1}, Lanes: 1, Weight: 1})
	data := f.Seal()
	if !SetSequence(data, 77) {
		t.Fatal("not a frame")
	}
	v, err := Verify(data, Limits{})
	if err != nil || v.Head().Sequence != 77 {
		t.Fatalf("sequence %d, %v", v.Head().Sequence, err)
	}
	if s, ok := SequenceOf(data); !ok || s != 77 {
		t.Fatalf("sequence %d %v", s, ok)
	}
	data[130]++
	var e *FrameError
	if _, err := Verify(data, Limits{}); !errors.As(err, &e) || e.Reason != ReasonDamaged {
		t.Fatalf("a changed value passes: %v", err)
	}
}

// A frame laid out anew is the same bytes as a new one, whatever it held before.
func TestResetLeavesNothingBehind(t *testing.T) {
	f, err := NewFrame(Layout{Kind: KindSparse, Values: 400, Keys: 50, Sections: 3})
	check(t, err)
	for _, l := range []Layout{
		{Kind: KindLookup, Keys: 2, Sections: 1}, {Kind: KindAck}, {Kind: KindDense, Values: 64}, {Kind: KindBeat, Body: 5},
		{Kind: KindRows, Values: 4000, Keys: 50, Sections: 3},
	} {
		for i := range f.data {
			f.data[i] = 0xee
		}
		check(t, f.Reset(l))
		fresh, err := NewFrame(l)
		check(t, err)
		if !bytes.Equal(f.Seal(), fresh.Seal()) || f.Kind() != l.Kind || f.Bytes() != fresh.Bytes() {
			t.Errorf("%+v differs after Reset", l)
		}
		if len(f.Values()) != l.Values || len(f.Keys()) != l.Keys || len(f.Sections()) != l.Sections || len(f.Body()) != l.Body {
			t.Errorf("%+v: parts of other sizes", l)
		}
	}
}

func TestNewFrameRefuses(t *testing.T) {
	for _, c := range []struct {
		layout Layout
		want   string
	}{
		{Layout{}, "no such kind"},
		{Layout{Kind: kindMax + 1}, "no such kind"},
		{Layout{Kind: KindDense, Values: -4}, "-4 bytes of values"},
		{Layout{Kind: KindDense, Values: 6}, "multiple of 4"},
		{Layout{Kind: KindDense, Values: FrameBytesMax + 4}, "want 0 to 8388608"},
		{Layout{Kind: KindDense, Values: FrameBytesMax}, "8388736 bytes: want at most 8388608"},
		{Layout{Kind: KindDense, Keys: 1}, "1 keys: this kind has none"},
		{Layout{Kind: KindLookup, Values: 4}, "4 bytes of values: this kind has none"},
		{Layout{Kind: KindLookup, Keys: KeysMax + 1}, "want 0 to 1048576"},
		{Layout{Kind: KindBeat, Sections: 1}, "1 sections: this kind has none"},
		{Layout{Kind: KindDense, Body: 1}, "1 bytes of body: this kind has none"},
		{Layout{Kind: KindControl, Body: BodyBytesMax + 1}, "want 0 to 1048576"},
	} {
		if _, err := NewFrame(c.layout); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.layout, err, c.want)
		}
	}
}

// Values lie at multiples of 64 in memory too, so that the fast path of whoever fills them is taken.
func TestFrameMemoryIsAligned(t *testing.T) {
	for _, values := range []int{4, 100, 4096, ChunkBytes} {
		f, err := NewFrame(Layout{Kind: KindSparse, Values: values, Keys: 7, Sections: 1})
		check(t, err)
		if at := uintptr(unsafe.Pointer(&f.Values()[0])); at%valuesAlign != 0 {
			t.Errorf("%d bytes of values at address %#x", values, at)
		}
	}
}

func TestPartsLiteral(t *testing.T) {
	for _, s := range samples(t) {
		want := map[string]string{
			"sparse":     "0: 0 2 [3 1099511627776] [1 2 3 4]; 1: 1 1 [5] [5]; ",
			"lookup":     "0: 0 2 [3 1099511627776] []; 1: 1 1 [5] []; ",
			"rows-more":  "0: 0 2 [42] [7 8]; ",
			"pull-table": "0: 0 2 [40] []; ",
		}[s.name]
		v, err := Verify(s.frame, Limits{})
		check(t, err)
		got := ""
		for i, p := range v.Parts() {
			got += fmt.Sprintf("%d: %d %d %v %v; ", i, p.Table, p.Dim, p.Keys, p.Rows)
		}
		if want != "" && got != want || want == "" && len(v.Sections()) == 0 && got != "" {
			t.Errorf("%s has parts %q, want %q", s.name, got, want)
		}
		for range v.Parts() { // leaving early is allowed
			break
		}
	}
}
