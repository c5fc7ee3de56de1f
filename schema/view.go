package schema

import (
	"iter"
	"unsafe"

	"gradbus/lane"
	"gradbus/schema/wire"
)

// Section says that the next Count keys of a frame, and rows of Dim values where the kind has them, belong to a table.
// It lies in memory as on the wire.
type Section struct {
	Table Table
	Dim   uint32
	Count uint64
}

// Bags says what a section of a sparse frame, a lookup or its answer holds: rows, where Count is 0, or the bags of one
// lane, Count of them. It lies in memory as on the wire.
type Bags struct {
	Lane  uint32
	Count uint32
}

// Ack is what a receiver has of the frames of one (trainer, shard) pair: every sequence up to Cumulative, and
// Cumulative+1+i where bit i of Bitmap is set (bit i%64 of word i/64). Window is the credit: how many bytes of frames
// the sender may have sent in all, each frame counted once, from its first frame on. It is fabric.Ack, field by field.
type Ack struct {
	Cumulative uint64
	Bitmap     [4]uint64
	Window     uint64
}

// View is a frame that Verify has found whole. Its slices point into the frame's bytes without a copy and live as long
// as they do; they must not be written to. The zero View is an empty frame of no kind.
type View struct {
	data     []byte
	head     Head
	values   span
	keys     span
	sections span
	bags     span
	offsets  span
	body     span
	ack      int // position, 0 where there is none
	copied   bool
}

// Head is the frame's head, already decoded.
func (v *View) Head() Head { return v.head }

// Bytes is the whole frame.
func (v *View) Bytes() []byte { return v.data }

// Copied reports that the received bytes were not aligned to 8 in memory, so that Verify had to copy them once.
func (v *View) Copied() bool { return v.copied }

// Values is the values as bytes.
func (v *View) Values() []byte { return v.data[v.values.lo:v.values.hi:v.values.hi] }

// Float32s is the values; nil where they are of another type.
func (v *View) Float32s() []float32 {
	if v.head.DType != DTypeFloat32 {
		return nil
	}
	return float32sOf(v.Values())
}

// Halves is the bits of the values; nil where they are not of 16 bits.
func (v *View) Halves() []uint16 {
	if v.head.DType.Bytes() != 2 {
		return nil
	}
	return halvesOf(v.Values())
}

// Keys is the keys of all sections.
func (v *View) Keys() []uint64 { return keysOf(v.data[v.keys.lo:v.keys.hi]) }

// Sections is the sections, tables strictly ascending.
func (v *View) Sections() []Section { return sectionsOf(v.data[v.sections.lo:v.sections.hi]) }

// Section is the i-th section; i is below len(Sections()).
func (v *View) Section(i int) Section { return v.Sections()[i] }

// Bags is what each section holds; nil where all are rows.
func (v *View) Bags() []Bags { return bagsOf(v.data[v.bags.lo:v.bags.hi]) }

// Offsets is where each bag's keys begin within its section's, bags of all sections one after the other.
func (v *View) Offsets() []uint32 { return offsetsOf(v.data[v.offsets.lo:v.offsets.hi]) }

// Body is the JSON body.
func (v *View) Body() []byte { return v.data[v.body.lo:v.body.hi:v.body.hi] }

// Ack is the frame's ack; false where its kind has none.
func (v *View) Ack() (Ack, bool) {
	if v.ack == 0 {
		return Ack{}, false
	}
	var w wire.Ack
	w.Init(v.data, flatOffset(v.ack))
	return Ack{w.Cumulative(), [4]uint64{w.B0(), w.B1(), w.B2(), w.B3()}, w.Window()}, true
}

// Part is a section with its keys, and its rows [len(Keys), Dim] where the kind has them: in Rows where the frame's
// values are float32, else their bits in Halves.
//
// In form bags a part is Bags bags of one lane, at least one, and Rows or Halves are their gradients [Bags, Dim]. Bag i
// has the keys from Offsets[i] on, up to the next bag's; they ascend in no way and may repeat. In form rows Bags is 0.
// In a lookup they ask for the bags' pooled rows; in its answer Rows are these, without keys and offsets.
type Part struct {
	Table   Table
	Dim     int
	Keys    []uint64
	Rows    []float32
	Halves  []uint16
	Bags    int
	Lane    lane.Lane
	Offsets []uint32
}

// Parts yields the sections in order, each with its own keys and rows. A pull's section has the frame's one key.
func (v *View) Parts() iter.Seq2[int, Part] {
	return func(yield func(int, Part) bool) {
		keys, rows, halves, bags, offsets := v.Keys(), v.Float32s(), v.Halves(), v.Bags(), v.Offsets()
		for i, s := range v.Sections() {
			n := int(s.Count)
			if v.head.Kind == KindPull {
				n = len(keys) // Count is how many rows are asked for
			}
			p := Part{Table: s.Table, Dim: int(s.Dim), Keys: keys[:n:n]}
			keys = keys[n:]
			if bags != nil && bags[i].Count > 0 {
				p.Bags, p.Lane = int(bags[i].Count), lane.Lane(bags[i].Lane)
				if !rules[v.head.Kind].pooled {
					p.Offsets, offsets = offsets[:p.Bags:p.Bags], offsets[p.Bags:]
				}
				n = p.Bags
			}
			if r := &rules[v.head.Kind]; r.rows || r.someRow {
				values := n * p.Dim
				if v.head.DType == DTypeFloat32 {
					p.Rows, rows = rows[:values:values], rows[values:]
				} else {
					p.Halves, halves = halves[:values:values], halves[values:]
				}
			}
			if !yield(i, p) {
				return
			}
		}
	}
}

// The views below are of bytes whose address and length Verify or Reset has made fit. An empty one is nil.

func float32sOf(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
}

func halvesOf(b []byte) []uint16 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*uint16)(unsafe.Pointer(&b[0])), len(b)/2)
}

func keysOf(b []byte) []uint64 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
}

func sectionsOf(b []byte) []Section {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*Section)(unsafe.Pointer(&b[0])), len(b)/sectionBytes)
}

func bagsOf(b []byte) []Bags {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*Bags)(unsafe.Pointer(&b[0])), len(b)/bagsBytes)
}

func offsetsOf(b []byte) []uint32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*uint32)(unsafe.Pointer(&b[0])), len(b)/4)
}

// Section and Bags have to be exactly the wire's 16 and 8 bytes.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Section{})-sectionBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(Bags{})-bagsBytes]
)

const _ = onlyForLittleEndianMachines
