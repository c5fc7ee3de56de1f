package schema

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"gradbus/schema/wire"
)

// Where this package lays out what it writes. Readers must not rely on it: they follow the vtable.
//
//	0    root offset, identifier
//	8    vtable, 16 bytes
//	24   table: offset of the vtable, offset of values, head (at 32), offsets of keys, sections and body, ack (at 128)
//	124  first vector's length, where the frame has no ack; sections, keys, body, values follow in that order
//
// So the values of a dense chunk start at byte 128. A frame with bags continues with its own vtable instead:
//
//	124  offsets of bags and offsets
//	132  vtable, 20 bytes
//	152  first vector's length; bags and offsets follow the sections
const (
	vtableAt      = 8
	vtableShort   = 4 + 2*fieldBags // without the fields of bags
	tableAt       = vtableAt + vtableShort
	valuesFieldAt = tableAt + 4
	frameHeadAt   = tableAt + 8
	keysFieldAt   = frameHeadAt + headBytes
	sectionsField = keysFieldAt + 4
	bodyFieldAt   = sectionsField + 4
	fixedEnd      = bodyFieldAt + 4
	ackAt         = fixedEnd + 4
	ackBytes      = 48
	bagsFieldAt   = fixedEnd
	offsetsField  = bagsFieldAt + 4
	bagsVtableAt  = offsetsField + 4
	bagsFixedEnd  = bagsVtableAt + vtableMax

	sectionBytes = 16
	bagsBytes    = 8
	valuesAlign  = 64

	// headroomBytes and tailroomBytes lie before and behind a frame in memory, for what a transport puts around it.
	headroomBytes = 8 * valuesAlign
	tailroomBytes = 2
)

// Layout is what a frame has room for.
type Layout struct {
	Kind     Kind
	DType    DType // of the values; zero is float32 in kinds that have some
	Values   int   // bytes
	Keys     int
	Sections int
	Bags     int  // of all sections together; zero says that all of them are rows
	Pooled   bool // sections say how many bags they have, and their keys and offsets are left out
	Body     int  // bytes
}

// Frame is a frame being written: built once for a layout, refilled in place and sealed any number of times. Its bytes
// belong to the frame: a caller that got them from Seal may use them until the next refill, so a frame that is in
// flight is refilled only after it was acknowledged. Not safe for concurrent use.
type Frame struct {
	memory   []byte // data, and the room before and behind it
	data     []byte
	kind     Kind
	dtype    DType
	values   span
	keys     span
	sections span
	bags     span
	offsets  span
	body     span
}

// span is bytes [lo, hi) of a frame.
type span struct{ lo, hi int }

func (s span) bytes() int { return s.hi - s.lo }

// NewFrame builds a zeroed frame of the layout. It fails on a layout that no frame of the kind can have.
//
//	f, err := NewFrame(Layout{Kind: KindSparse, Sections: 1, Keys: 2, Values: 2 * 4 * dim})
func NewFrame(l Layout) (*Frame, error) {
	f := new(Frame)
	return f, f.layOut(l, false)
}

// Reset lays the frame out again, in the same memory if that is large enough. Values, keys, offsets and body are
// undefined: the caller writes all of them. Sections and bags are zero. On an error the frame is as it was.
//
// Under the race detector what is to be written holds garbage, so that tests see what is not.
func (f *Frame) Reset(l Layout) error { return f.layOut(l, raced) }

func (f *Frame) layOut(l Layout, garbage bool) error {
	if l.DType == DTypeNone && l.Kind <= kindMax && rules[l.Kind].values {
		l.DType = DTypeFloat32
	}
	if err := checkLayout(l); err != nil {
		return fmt.Errorf("lay out a %v frame: %w", l.Kind, err)
	}
	at, bagged := fixedEnd, 0
	switch {
	case l.Kind == KindAck:
		at = ackAt + ackBytes
	case l.Bags > 0 || l.Pooled:
		at, bagged = bagsFixedEnd, l.Sections
	}
	sections, at := room(at, l.Sections, sectionBytes, 8)
	bags, at := room(at, bagged, bagsBytes, 4)
	offsets, at := room(at, l.Bags, 4, 4)
	keys, at := room(at, l.Keys, 8, 8)
	body, at := room(at, l.Body, 1, 1)
	values, at := room(at, l.Values, 1, valuesAlign)
	if at > FrameBytesMax {
		return fmt.Errorf("lay out a %v frame: %d bytes: want at most %d", l.Kind, at, FrameBytesMax)
	}
	if need := headroomBytes + at + tailroomBytes; len(f.memory) < need {
		f.memory = alignedBytes(need)
	}
	f.data = f.memory[headroomBytes : headroomBytes+at : headroomBytes+at]
	if garbage {
		for i := range f.data {
			f.data[i] = 0xdb
		}
	}
	// What callers do not write: the fixed part, the gaps between vectors, sections and bags.
	written := 0
	for _, to := range [...]span{offsets, keys, body, values, {at, at}} {
		if to.hi > 0 {
			clear(f.data[written:to.lo])
			written = to.hi
		}
	}
	f.kind, f.dtype, f.sections, f.keys, f.body, f.values = l.Kind, l.DType, sections, keys, body, values
	f.bags, f.offsets = bags, offsets
	f.writeFixed()
	return nil
}

func checkLayout(l Layout) error {
	if l.Kind == 0 || l.Kind > kindMax {
		return fmt.Errorf("no such kind: want 1 to %d", kindMax)
	}
	r := &rules[l.Kind]
	for _, part := range []struct {
		name      string
		n, max    int
		mayHaveIt bool
	}{
		{"bytes of values", l.Values, FrameBytesMax, r.values},
		{"keys", l.Keys, keysMax, r.keys || r.contexts.most > 0},
		{"sections", l.Sections, SectionsMax, r.keys},
		{"bags", l.Bags, l.Keys, r.bags && !r.pooled},
		{"bytes of body", l.Body, bodyBytesMax, r.body != never},
	} {
		switch {
		case part.n < 0 || part.n > part.max:
			return fmt.Errorf("%d %s: want 0 to %d", part.n, part.name, part.max)
		case part.n > 0 && !part.mayHaveIt:
			return fmt.Errorf("%d %s: this kind has none", part.n, part.name)
		}
	}
	if l.Pooled && !r.pooled {
		return fmt.Errorf("pooled rows: this kind has none")
	}
	if (l.DType != DTypeNone) != r.values || l.DType > dtypeMax || l.DType > DTypeFloat32 && !r.half {
		return fmt.Errorf("values of %v: this kind has none", l.DType)
	}
	if size := l.DType.Bytes(); l.Values > 0 && l.Values%size != 0 {
		return fmt.Errorf("%d bytes of values: want a multiple of %d", l.Values, size)
	}
	return nil
}

// room finds room for a vector of n elements after at: its length, then its elements, aligned. An empty vector is left
// out and takes none.
func room(at, n, size, align int) (elements span, end int) {
	if n == 0 {
		return span{}, at
	}
	lo := (at + 4 + align - 1) / align * align
	hi := lo + n*size
	return span{lo, hi}, hi
}

// writeFixed writes what only a new layout changes: offsets, vtable, vector lengths, magic, version, kind and dtype.
func (f *Frame) writeFixed() {
	le, d := binary.LittleEndian, f.data
	le.PutUint32(d, tableAt)
	copy(d[identifierAt:], identifier)
	vtable, vtableBytes, end := vtableAt, vtableShort, fixedEnd
	switch {
	case f.kind == KindAck:
		end = ackAt + ackBytes
		le.PutUint16(d[vtableAt+4+2*fieldAck:], ackAt-tableAt)
	case f.bags.bytes() > 0:
		vtable, vtableBytes, end = bagsVtableAt, vtableMax, bagsVtableAt
	}
	le.PutUint16(d[vtable:], uint16(vtableBytes))
	le.PutUint16(d[vtable+2:], uint16(end-tableAt))
	le.PutUint32(d[tableAt:], uint32(int32(tableAt-vtable)))
	le.PutUint16(d[vtable+4+2*fieldHead:], frameHeadAt-tableAt)
	for _, part := range [...]struct {
		slot, fieldAt, size int
		at                  span
	}{
		{fieldValues, valuesFieldAt, 1, f.values}, {fieldKeys, keysFieldAt, 8, f.keys},
		{fieldSections, sectionsField, sectionBytes, f.sections},
		{fieldBody, bodyFieldAt, 1, f.body}, {fieldBags, bagsFieldAt, bagsBytes, f.bags},
		{fieldOffsets, offsetsField, 4, f.offsets},
	} {
		if part.at.bytes() > 0 {
			le.PutUint16(d[vtable+4+2*part.slot:], uint16(part.fieldAt-tableAt))
			le.PutUint32(d[part.fieldAt:], uint32(part.at.lo-4-part.fieldAt))
			le.PutUint32(d[part.at.lo-4:], uint32(part.at.bytes()/part.size))
		}
	}

	var w wire.Head
	w.Init(d, frameHeadAt)
	w.MutateMagic(magic)
	w.MutateVersion(WireVersion)
	f.SetHead(Head{})
}

// Kind is the layout's kind.
func (f *Frame) Kind() Kind { return f.kind }

// Bytes is the size of the whole frame.
func (f *Frame) Bytes() int { return len(f.data) }

// SetHead writes the head. Kind and DType are the frame's own: what h says of them is ignored, so that a refusal may be
// given the head of what it refuses.
func (f *Frame) SetHead(h Head) {
	h.Kind, h.DType = f.kind, f.dtype
	writeHead(f.data, frameHeadAt, h)
}

// View is the frame as who receives it sees it, without a checksum or any check: for an owner that takes its own
// frames. It is valid until the next Reset, and shows what is written to the frame later.
func (f *Frame) View() View {
	return View{data: f.data, head: readHead(f.data, frameHeadAt), values: f.values, keys: f.keys, sections: f.sections,
		bags: f.bags, offsets: f.offsets, body: f.body}
}

// SetSequence numbers the frame; it may be called after Seal, whose checksum stays valid.
func (f *Frame) SetSequence(s Sequence) { number(f.data, frameHeadAt, s) }

// Values is the frame's values as bytes, to be written to.
func (f *Frame) Values() []byte { return f.data[f.values.lo:f.values.hi:f.values.hi] }

// DType is the type of the values.
func (f *Frame) DType() DType { return f.dtype }

// Float32s is the frame's values, to be written to in place: no copy. It is nil where they are of another type.
func (f *Frame) Float32s() []float32 {
	if f.dtype != DTypeFloat32 {
		return nil
	}
	return float32sOf(f.Values())
}

// Halves is the bits of the frame's values, to be written to in place; nil where they are not of 16 bits.
func (f *Frame) Halves() []uint16 {
	if f.dtype.Bytes() != 2 {
		return nil
	}
	return halvesOf(f.Values())
}

// Keys is the frame's keys, to be written to in place.
func (f *Frame) Keys() []uint64 { return keysOf(f.data[f.keys.lo:f.keys.hi]) }

// Sections is the frame's sections, to be written to in place.
func (f *Frame) Sections() []Section { return sectionsOf(f.data[f.sections.lo:f.sections.hi]) }

// SetSection writes the i-th section; i is below the layout's Sections.
func (f *Frame) SetSection(i int, s Section) { f.Sections()[i] = s }

// Bags is what each section holds, to be written to in place; nil where all are rows.
func (f *Frame) Bags() []Bags { return bagsOf(f.data[f.bags.lo:f.bags.hi]) }

// Offsets is where each bag's keys begin within its section's, to be written to in place.
func (f *Frame) Offsets() []uint32 { return offsetsOf(f.data[f.offsets.lo:f.offsets.hi]) }

// Body is the frame's body, to be written to in place.
func (f *Frame) Body() []byte { return f.data[f.body.lo:f.body.hi:f.body.hi] }

// SetAck writes the ack of a frame of KindAck; in another kind it does nothing.
func (f *Frame) SetAck(a Ack) {
	if f.kind != KindAck {
		return
	}
	var w wire.Ack
	w.Init(f.data, ackAt)
	w.MutateCumulative(a.Cumulative)
	w.MutateB0(a.Bitmap[0])
	w.MutateB1(a.Bitmap[1])
	w.MutateB2(a.Bitmap[2])
	w.MutateB3(a.Bitmap[3])
	w.MutateWindow(a.Window)
}

// Seal writes the checksum and returns the frame's bytes, which are valid until the frame is next refilled. It reads
// every byte once and checks nothing: what it returns is as right as what was put in, and Verify at the other end
// tells.
func (f *Frame) Seal() []byte {
	binary.LittleEndian.PutUint32(f.data[frameHeadAt+checksumAt:], checksum(f.data, frameHeadAt))
	return f.data
}

// Room is the memory that the frame's bytes lie in, memory[lo:hi], with room before and behind them for what a
// transport puts around them. It is valid as long as what Seal gave.
func (f *Frame) Room() (memory []byte, lo, hi int) {
	return f.memory, headroomBytes, headroomBytes + len(f.data)
}

// alignedBytes allocates n bytes whose address is a multiple of 64, so that values are as aligned in memory as they are
// within the frame.
func alignedBytes(n int) []byte {
	b := make([]byte, n+valuesAlign)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (valuesAlign - 1)
	return b[skip : skip+n : len(b)]
}
