package schema

import (
	"encoding/binary"

	flatbuffers "github.com/google/flatbuffers/go"
)

// The slots of table Frame, and what surrounds it. A frame of version 1 has no others.
const (
	fieldHead = iota
	fieldValues
	fieldKeys
	fieldSections
	fieldAck
	fieldBody
	fieldBags
	fieldOffsets
	fieldCount

	identifier   = "GB01"
	identifierAt = 4
	vtableMax    = 4 + 2*fieldCount
)

func flatOffset(pos int) flatbuffers.UOffsetT { return flatbuffers.UOffsetT(pos) }

// flatTable is a FlatBuffers table whose bounds have been checked, but not those of what its fields point to. Problems
// are returned as constant texts, so that looking costs no allocation.
type flatTable struct {
	data    []byte
	at      int // of the table
	bytes   int // of the table's inline part
	vtable  int
	vfields int // fields the vtable has room for
}

func rootTable(data []byte) (t flatTable, problem string) {
	if len(data) < 8+4+4 {
		return t, "shorter than any frame"
	}
	if string(data[identifierAt:identifierAt+len(identifier)]) != identifier {
		return t, "no file identifier " + identifier + " at byte 4"
	}
	at := uint64(binary.LittleEndian.Uint32(data))
	if at < 8 || at%4 != 0 || at+4 > uint64(len(data)) {
		return t, "root offset outside the frame or not a multiple of 4"
	}
	// The vtable may lie before or after its table.
	vtable := int64(at) - int64(int32(binary.LittleEndian.Uint32(data[at:])))
	if vtable < 8 || vtable%2 != 0 || vtable+4 > int64(len(data)) {
		return t, "vtable offset outside the frame or odd"
	}
	vbytes := int64(binary.LittleEndian.Uint16(data[vtable:]))
	tbytes := uint64(binary.LittleEndian.Uint16(data[vtable+2:]))
	switch {
	case vbytes < 4 || vbytes%2 != 0 || vtable+vbytes > int64(len(data)):
		return t, "vtable size odd, below 4 or beyond the frame"
	case vbytes > vtableMax:
		return t, "vtable with fields that version 1 does not have"
	case tbytes < 4 || at+tbytes > uint64(len(data)):
		return t, "table size below 4 or beyond the frame"
	}
	return flatTable{data, int(at), int(tbytes), int(vtable), int(vbytes-4) / 2}, ""
}

// field is the position of a field of the given inline size, 0 where the field is absent.
func (t *flatTable) field(slot, size, align int) (pos int, problem string) {
	if slot >= t.vfields {
		return 0, ""
	}
	off := int(binary.LittleEndian.Uint16(t.data[t.vtable+4+2*slot:]))
	switch {
	case off == 0:
		return 0, ""
	case off < 4 || off+size > t.bytes:
		return 0, "field outside its table"
	case (t.at+off)%align != 0:
		return 0, "field not aligned"
	}
	return t.at + off, ""
}

// vector gives the bytes [lo, hi) of a vector's elements. An absent vector is an empty one.
func (t *flatTable) vector(slot, size, align int) (lo, hi int, problem string) {
	pos, problem := t.field(slot, 4, 4)
	if pos == 0 {
		return 0, 0, problem
	}
	rel := binary.LittleEndian.Uint32(t.data[pos:])
	start := uint64(pos) + uint64(rel)
	if rel == 0 || start%4 != 0 || start+4 > uint64(len(t.data)) {
		return 0, 0, "vector offset zero, outside the frame or not a multiple of 4"
	}
	end := start + 4 + uint64(binary.LittleEndian.Uint32(t.data[start:]))*uint64(size)
	switch {
	case end > uint64(len(t.data)):
		return 0, 0, "vector longer than the frame"
	case (start+4)%uint64(align) != 0:
		return 0, 0, "vector not aligned"
	}
	return int(start + 4), int(end), ""
}

// headAt finds the head of any bytes, or says that there is none. It is Verify's first step and all that the sequence
// number needs.
func headAt(data []byte) (pos int, ok bool) {
	t, problem := rootTable(data)
	if problem != "" {
		return 0, false
	}
	pos, _ = t.field(fieldHead, headBytes, headAlign)
	return pos, pos != 0
}
