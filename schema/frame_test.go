package schema

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"gradbus/fabric"
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

// What was in a frame's memory before is in no byte of what it is laid out for next, but where it is to be written.
func TestResetLeavesNoGarbage(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	upTo := func(n int) int { return random.IntN(2) * random.IntN(n+1) }
	layout := func() Layout {
		for {
			l := Layout{Kind: Kind(1 + random.IntN(int(kindMax))), Sections: upTo(3), Keys: upTo(40), Bags: upTo(9),
				Body: upTo(50), Values: 4 * upTo(60), DType: DType(upTo(int(dtypeMax))), Pooled: random.IntN(4) == 0}
			if _, err := NewFrame(l); err == nil {
				return l
			}
		}
	}
	fill := func(f *Frame) []byte {
		keys, offsets := f.data[f.keys.lo:f.keys.hi], f.data[f.offsets.lo:f.offsets.hi]
		for _, part := range [][]byte{f.Values(), f.Body(), keys, offsets} {
			for i := range part {
				part[i] = byte(i)
			}
		}
		if s := f.Sections(); len(s) > 0 {
			s[0] = Section{Table: 1, Dim: 2, Count: 3}
		}
		return f.Seal()
	}
	again, kinds := new(Frame), map[Kind]int{}
	for range 3000 {
		l := layout()
		kinds[l.Kind]++
		fresh, err := NewFrame(l)
		if err == nil {
			err = again.Reset(l)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range again.memory {
			again.memory[i] = byte(1 + random.IntN(255))
		}
		if err := again.Reset(l); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(fill(again), fill(fresh)) {
			t.Fatalf("%+v: a frame that was used before differs from a new one", l)
		}
		if again.Kind() != l.Kind || again.Bytes() != fresh.Bytes() {
			t.Fatalf("%+v: %d bytes of kind %v", l, again.Bytes(), again.Kind())
		}
		if len(again.Values()) != l.Values || len(again.Keys()) != l.Keys || len(again.Sections()) != l.Sections ||
			len(again.Body()) != l.Body {
			t.Fatalf("%+v: parts of other sizes", l)
		}
	}
	if len(kinds) != int(kindMax) {
		t.Errorf("layouts of these kinds were drawn: %v; want all %d", kinds, kindMax)
	}
}

// A frame has room on both sides in memory, as much as a transport counts on, and its values stay aligned; a larger
// layout moves both.
func TestFrameHasRoomAround(t *testing.T) {
	f := new(Frame)
	for _, values := range []int{4, 0, 4096, 64, 100_000, 99_996} {
		if err := f.Reset(Layout{Kind: KindDense, Values: values}); err != nil {
			t.Fatal(err)
		}
		memory, lo, hi := f.Room()
		sealed := f.Seal()
		if len(sealed) != hi-lo || &memory[lo] != &sealed[0] || cap(sealed) != len(sealed) {
			t.Errorf("%d bytes of values: room around %d bytes, and the frame has %d of %d", values, hi-lo, len(sealed),
				cap(sealed))
		}
		if lo < fabric.HeadroomBytes || len(memory)-hi < fabric.TailroomBytes {
			t.Errorf("%d bytes of values: room of %d and %d bytes, want %d and %d", values, lo, len(memory)-hi,
				fabric.HeadroomBytes, fabric.TailroomBytes)
		}
		if values > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(f.Values())))%valuesAlign != 0 {
			t.Errorf("%d bytes of values are not aligned", values)
		}
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
	if s, ok := sequenceOf(data); !ok || s != 77 {
		t.Fatalf("sequence %d %v", s, ok)
	}
	data[130]++
	var e *FrameError
	if _, err := Verify(data, Limits{}); !errors.As(err, &e) || e.Reason != ReasonDamaged {
		t.Fatalf("a changed value passes: %v", err)
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
		{Layout{Kind: KindLookup, Keys: keysMax + 1}, "want 0 to 1048576"},
		{Layout{Kind: KindHeartbeat, Sections: 1}, "1 sections: this kind has none"},
		{Layout{Kind: KindDense, Body: 1}, "1 bytes of body: this kind has none"},
		{Layout{Kind: KindControl, Body: bodyBytesMax + 1}, "want 0 to 1048576"},
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
