package schema

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

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
