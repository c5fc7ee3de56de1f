package schema

import (
	"bytes"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"

	"gradbus/schema/wire"
)

// foreign builds what v holds with the stock FlatBuffers builder, as a program in another language would: vectors and
// table lie elsewhere than in frames of this package, and empty vectors may be there.
func foreign(v *View, emptyVectors bool) []byte {
	b := flatbuffers.NewBuilder(16)
	vector := func(n, size, align int, prepend func(i int)) flatbuffers.UOffsetT {
		if n == 0 && !emptyVectors {
			return 0
		}
		b.StartVector(size, n, align)
		for i := n - 1; i >= 0; i-- {
			prepend(i)
		}
		return b.EndVector(n)
	}
	sections := vector(len(v.Sections()), sectionBytes, 8, func(i int) {
		s := v.Section(i)
		wire.CreateSection(b, uint32(s.Table), s.Dim, s.Count)
	})
	bags := vector(len(v.Bags()), bagsBytes, 4, func(i int) { wire.CreateBags(b, v.Bags()[i].Lane, v.Bags()[i].Count) })
	offsets := vector(len(v.Offsets()), 4, 4, func(i int) { b.PrependUint32(v.Offsets()[i]) })
	body := vector(len(v.Body()), 1, 1, func(i int) { b.PrependByte(v.Body()[i]) })
	values := vector(len(v.Values()), 1, valuesAlign, func(i int) { b.PrependByte(v.Values()[i]) })
	keys := vector(len(v.Keys()), 8, 8, func(i int) { b.PrependUint64(v.Keys()[i]) })

	wire.FrameStart(b)
	h := v.Head()
	wire.FrameAddHead(b, wire.CreateHead(b, magic, WireVersion, uint16(h.Kind), uint64(h.Sequence), 0,
		uint32(h.Generation),
		uint64(h.Job), uint64(h.Batch), h.Offset, h.Weight, uint32(h.Bucket), uint32(h.Chunk), uint32(h.Chunks), h.Flags,
		uint16(h.Node.First), h.Node.Count, h.Lanes, uint16(h.DType)))
	wire.FrameAddValues(b, values)
	wire.FrameAddKeys(b, keys)
	wire.FrameAddSections(b, sections)
	wire.FrameAddBody(b, body)
	wire.FrameAddBags(b, bags)
	wire.FrameAddOffsets(b, offsets)
	if a, ok := v.Ack(); ok {
		wire.FrameAddAck(b, wire.CreateAck(b, a.Cumulative, a.Bitmap[0], a.Bitmap[1], a.Bitmap[2], a.Bitmap[3], a.Window))
	}
	b.FinishWithFileIdentifier(wire.FrameEnd(b), []byte(identifier))
	data := b.FinishedBytes()
	reseal(data)
	return data
}

// Frames from a stock builder are read like this package's own.
func TestStockBuilderIsRead(t *testing.T) {
	for _, s := range samples(t) {
		want, err := Verify(s.frame, Limits{})
		check(t, err)
		for _, emptyVectors := range []bool{false, true} {
			data := foreign(&want, emptyVectors)
			if bytes.Equal(data, s.frame) {
				t.Errorf("%s: the stock builder lays it out alike: the test compares nothing", s.name)
			}
			v, err := Verify(data, Limits{})
			if err != nil {
				t.Errorf("%s: %v", s.name, err)
				continue
			}
			if got := describe(&v); got != describe(&want) {
				t.Errorf("%s is read as\n%s\nwant\n%s", s.name, got, describe(&want))
			}
		}
	}
}
