package schema

import (
	"testing"

	"gradbus/lane"
)

func benchFrame(b *testing.B) *Frame {
	f, err := NewFrame(Layout{Kind: KindDense, Values: ChunkBytes})
	if err != nil {
		b.Fatal(err)
	}
	f.SetHead(Head{Chunks: 1, Node: lane.Node{Count: 1}, Lanes: 1, Weight: 1})
	values := f.Float32s()
	for i := range values {
		values[i] = float32(i)
	}
	return f
}

func BenchmarkSeal(b *testing.B) {
	f := benchFrame(b)
	b.SetBytes(int64(f.Bytes()))
	for b.Loop() {
		f.Seal()
	}
}

func BenchmarkVerify(b *testing.B) {
	data := benchFrame(b).Seal()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		v, err := Verify(data, Limits{})
		if err != nil || len(v.Float32s()) != ChunkBytes/4 {
			b.Fatal(err)
		}
	}
}

// Rows of 64 values: what a lookup's answer of one chunk costs.
func BenchmarkVerifyRows(b *testing.B) {
	const rows, dim = 1024, 64
	f, err := NewFrame(Layout{Kind: KindRows, Values: rows * dim * 4, Keys: rows, Sections: 1})
	if err != nil {
		b.Fatal(err)
	}
	f.SetSection(0, Section{Dim: dim, Count: rows})
	for i := range f.Keys() {
		f.Keys()[i] = uint64(3 * i)
	}
	data := f.Seal()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Verify(data, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReset is what an answer with rows costs before they are put into it.
func BenchmarkReset(b *testing.B) {
	const rows, dim = 1024, 64
	l := Layout{Kind: KindRows, Values: rows * dim * 4, Keys: rows, Sections: 1}
	f, err := NewFrame(l)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := f.Reset(l); err != nil {
			b.Fatal(err)
		}
	}
}

// Verify of a small frame: what control traffic and acks cost.
func BenchmarkVerifyAck(b *testing.B) {
	f, err := NewFrame(Layout{Kind: KindAck})
	if err != nil {
		b.Fatal(err)
	}
	f.SetHead(Head{Job: 1})
	f.SetAck(Ack{Cumulative: 7})
	data := f.Seal()
	for b.Loop() {
		if _, err := Verify(data, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
