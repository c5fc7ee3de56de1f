package schema

import (
	"encoding/binary"
	"iter"
	"unsafe"

	"gradbus/lane"
	"gradbus/schema/crc32c"
	"gradbus/schema/wire"
)

// readAlign is the alignment of received bytes that viewing keys in place requires.
const readAlign = 8

// Verify checks that data is a whole frame of this version before anything is read through it: size, identifier, every
// offset, bound and alignment, magic, version, kind, checksum, and that the parts are those of the kind and fit each
// other. After it, no method of the View can read outside data or panic, whatever the bytes are.
//
// The caller checks what depends on the job: the sender, run id and generation, and, by CheckFrame of Placement,
// buckets, tables and lengths. Values are not checked; NaN and infinities pass.
//
// The View refers to data, which must not change while it is used. If the address of data is not a multiple of 8 the
// bytes are copied, once; otherwise nothing is allocated. An error is always a *FrameError.
//
//	v, err := Verify(message.Data, Limits{})
func Verify(data []byte, lim Limits) (View, error) {
	v, err := verify(data, lim.orDefault())
	if err != nil {
		return View{}, err
	}
	return v, nil
}

func verify(data []byte, lim Limits) (View, *FrameError) {
	var v View
	if len(data) > lim.FrameBytesMax {
		return v, Refuse(ReasonOversized, "%d bytes: want at most %d", len(data), lim.FrameBytesMax)
	}
	t, problem := rootTable(data)
	if problem != "" {
		return v, Refuse(ReasonMalformed, "%s (%d bytes)", problem, len(data))
	}
	headPos, problem := t.field(fieldHead, headBytes, headAlign)
	if problem == "" && headPos == 0 {
		problem = "absent"
	}
	if problem != "" {
		return v, Refuse(ReasonMalformed, "head: %s", problem)
	}
	if err := checkSeal(data, headPos); err != nil {
		return v, err
	}
	v = View{data: data, head: readHead(data, headPos)}
	if err := checkHead(&v.head); err != nil {
		return v, err
	}
	if err := v.locate(&t); err != nil {
		return v, err
	}
	if uintptr(unsafe.Pointer(&data[0]))%readAlign != 0 {
		v.data, v.copied = alignedBytes(len(data)), true
		copy(v.data, data)
	}
	return v, v.checkParts(&lim)
}

// checkSeal checks magic, version and checksum, before the rest of the frame is read.
func checkSeal(data []byte, headPos int) *FrameError {
	var w wire.Head
	w.Init(data, flatOffset(headPos))
	if m := w.Magic(); m != magic {
		return Refuse(ReasonMalformed, "magic %#08x: want %#08x", m, uint32(magic))
	}
	if n := w.Version(); n != WireVersion {
		return Refuse(ReasonUnknownVersion, "wire version %d: %s speaks %d, and only equal versions "+
			"speak to each other: update the older one", n, ThisProgram(), WireVersion)
	}
	if have, want := w.Crc(), checksum(data, headPos); have != want {
		return Refuse(ReasonDamaged, "checksum %08x, but the bytes give %08x", have, want)
	}
	return nil
}

// locate finds the frame's parts.
func (v *View) locate(t *flatTable) (err *FrameError) {
	if v.values, err = locateVector(t, "values", fieldValues, 1, valuesAlign); err != nil {
		return err
	}
	if v.keys, err = locateVector(t, "keys", fieldKeys, 8, 8); err != nil {
		return err
	}
	if v.sections, err = locateVector(t, "sections", fieldSections, sectionBytes, 8); err != nil {
		return err
	}
	if v.bags, err = locateVector(t, "bags", fieldBags, bagsBytes, 4); err != nil {
		return err
	}
	if v.offsets, err = locateVector(t, "offsets", fieldOffsets, 4, 4); err != nil {
		return err
	}
	if v.body, err = locateVector(t, "body", fieldBody, 1, 1); err != nil {
		return err
	}
	pos, problem := t.field(fieldAck, ackBytes, 8)
	if problem != "" {
		return Refuse(ReasonMalformed, "ack: %s", problem)
	}
	v.ack = pos
	return nil
}

func locateVector(t *flatTable, name string, slot, size, align int) (span, *FrameError) {
	lo, hi, problem := t.vector(slot, size, align)
	if problem != "" {
		return span{}, Refuse(ReasonMalformed, "%s: %s", name, problem)
	}
	return span{lo, hi}, nil
}

// checkParts checks that the parts are those of the kind and fit each other.
func (v *View) checkParts(lim *Limits) *FrameError {
	r := &rules[v.head.Kind]
	keys, sections := v.keys.bytes()/8, v.sections.bytes()/sectionBytes
	switch {
	case v.values.bytes() != 0 && !r.values:
		return Refuse(ReasonMalformed, "values: a %v frame has none", v.head.Kind)
	case sections != 0 && !r.keys, keys != 0 && !r.keys && r.contexts.most == 0:
		return Refuse(ReasonMalformed, "keys or sections: a %v frame has none", v.head.Kind)
	case (v.bags.bytes() != 0 || v.offsets.bytes() != 0) && !r.bags:
		return Refuse(ReasonMalformed, "bags or offsets: a %v frame has none", v.head.Kind)
	case v.bags.bytes() != 0 && v.bags.bytes()/bagsBytes != sections:
		return Refuse(ReasonWrongShape, "%d bags entries of %d sections: want one of each, or none",
			v.bags.bytes()/bagsBytes, sections)
	case (v.ack != 0) != r.ack:
		return Refuse(ReasonMalformed, "ack: an ack frame has one, and no other has; this is a %v frame", v.head.Kind)
	case v.body.bytes() != 0 && r.body == never:
		return Refuse(ReasonMalformed, "body: a %v frame has none", v.head.Kind)
	case v.body.bytes() == 0 && r.body == always:
		return Refuse(ReasonMalformed, "body: a %v frame has one", v.head.Kind)
	case v.body.bytes() > lim.bodyBytesMax:
		return Refuse(ReasonOversized, "body of %d bytes: want at most %d", v.body.bytes(), lim.bodyBytesMax)
	case keys > lim.keysMax:
		return Refuse(ReasonOversized, "%d keys: want at most %d", keys, lim.keysMax)
	case sections > SectionsMax:
		return Refuse(ReasonOversized, "%d sections: want at most %d", sections, SectionsMax)
	case v.values.bytes() != 0 && v.values.bytes()%v.head.DType.Bytes() != 0:
		return Refuse(ReasonWrongShape, "%d bytes of values: want a multiple of %d", v.values.bytes(), v.head.DType.Bytes())
	case v.head.Kind == KindDense && v.values.bytes() == 0 && v.head.Weight != 0:
		return Refuse(ReasonWrongShape, "no values, but a weight of %v", v.head.Weight)
	}
	switch {
	case r.module:
		return v.checkContexts(r)
	case v.head.Kind == KindPull:
		return v.checkPull(keys, sections)
	}
	return v.checkSections(keys, r.rows || r.someRow && sections > 0)
}

// checkPull checks that a pull of a table has one section and one key, from which the answer continues, and that other
// pulls have neither.
func (v *View) checkPull(keys, sections int) *FrameError {
	if keys != sections || keys > 1 {
		return Refuse(ReasonWrongShape, "pull with %d sections and %d keys: want one of each, or none", sections, keys)
	}
	for _, s := range v.Sections() {
		if s.Dim < 1 || s.Dim > DimMax || s.Count < 1 || s.Count > keysMax {
			return Refuse(ReasonWrongShape, "pull of %d rows of dim %d: want 1 to %d rows, dim 1 to %d", s.Count, s.Dim,
				keysMax, DimMax)
		}
	}
	return nil
}

// checkSections checks that counts add up to the keys and, with rows, dims to the values; that tables ascend, and that
// keys do within each, or, with bags, lanes and offsets.
func (v *View) checkSections(keys int, rows bool) *FrameError {
	all, bags, offsets := v.Keys(), v.Bags(), v.Offsets()
	var values uint64
	var before Bags
	for i, s := range v.Sections() {
		var b Bags
		if bags != nil {
			b = bags[i]
		}
		switch {
		case i > 0 && s.Table <= v.Section(i-1).Table && !follows(s, b, v.Section(i-1), before):
			return Refuse(ReasonUnsortedKeys,
				"section %d is of table %d after table %d: want tables ascending, or lanes with bags of one table",
				i, s.Table, v.Section(i-1).Table)
		case s.Dim < 1 || s.Dim > DimMax:
			return Refuse(ReasonWrongShape, "section %d: dim %d: want 1 to %d", i, s.Dim, DimMax)
		case s.Count > uint64(len(all)):
			return Refuse(ReasonWrongShape, "section %d: %d keys where the frame has %d left", i, s.Count, len(all))
		case uint64(b.Count) > min(s.Count, uint64(len(offsets))) && !rules[v.head.Kind].pooled:
			return Refuse(ReasonWrongShape, "section %d: %d bags of %d keys where the frame has %d offsets left", i, b.Count,
				s.Count, len(offsets))
		}
		own := all[:s.Count]
		all = all[s.Count:]
		if b.Count > 0 && rules[v.head.Kind].pooled {
			if err := checkPooled(i, s, len(offsets)); err != nil {
				return err
			}
			before = b
			values += uint64(b.Count) * uint64(s.Dim) // below 2^49, of at most 2^12 sections
			continue
		}
		if b.Count > 0 {
			if err := checkBags(i, b, offsets[:b.Count], len(own), &v.head); err != nil {
				return err
			}
			offsets, before = offsets[b.Count:], b
			values += uint64(b.Count) * uint64(s.Dim) // at most keysMax * DimMax in all
			continue
		}
		if b.Lane != 0 {
			return Refuse(ReasonMalformed, "section %d: lane %d without bags", i, b.Lane)
		}
		before = b
		values += s.Count * uint64(s.Dim)
		for k := 1; k < len(own); k++ {
			if own[k] <= own[k-1] {
				return Refuse(ReasonUnsortedKeys, "table %d: key %d after key %d: want keys strictly ascending", s.Table,
					own[k], own[k-1])
			}
		}
	}
	switch {
	case len(all) != 0:
		return Refuse(ReasonWrongShape, "%d keys, of which %d are in no section", keys, len(all))
	case len(offsets) != 0:
		return Refuse(ReasonWrongShape, "%d offsets, of which %d are of no bag", len(v.Offsets()), len(offsets))
	}
	want := values * uint64(v.head.DType.Bytes())
	if bytes := uint64(v.values.bytes()); rows && bytes != want {
		return Refuse(ReasonWrongShape, "%d bytes of values: want %d for the sections' rows", bytes, want)
	}
	return nil
}

// follows reports whether a section with bags may follow one of the same table: with bags of a later lane.
func follows(s Section, b Bags, last Section, before Bags) bool {
	return s.Table == last.Table && b.Count > 0 && before.Count > 0 && b.Lane > before.Lane
}

// checkBags checks one section's bags: their lane is one of the node's, and each has at least one key.
func checkBags(i int, b Bags, offsets []uint32, keys int, h *Head) *FrameError {
	if rules[h.Kind].node == never && b.Lane >= lane.LanesMax {
		return Refuse(ReasonWrongNode, "section %d: bags of lane %d: want one below %d", i, b.Lane, lane.LanesMax)
	}
	if rules[h.Kind].node != never && (b.Lane < uint32(h.Node.First) || uint64(b.Lane) >= uint64(h.Node.End())) {
		return Refuse(ReasonWrongNode, "section %d: bags of lane %d in a frame of lanes %v", i, b.Lane, h.Node)
	}
	if offsets[0] != 0 {
		return Refuse(ReasonWrongShape, "section %d: the first bag begins at key %d: want 0", i, offsets[0])
	}
	for k := 1; k < len(offsets); k++ {
		if offsets[k] <= offsets[k-1] {
			return Refuse(ReasonWrongShape,
				"section %d: bag %d begins at key %d, the one before it at %d: want a key in each bag",
				i, k, offsets[k], offsets[k-1])
		}
	}
	if last := offsets[len(offsets)-1]; uint64(last) >= uint64(keys) {
		return Refuse(ReasonWrongShape, "section %d: the last bag begins at key %d of %d", i, last, keys)
	}
	return nil
}

// CheckJob checks that the frame belongs to this run of the job and to its current membership.
func (v *View) CheckJob(run RunID, generation Generation) error {
	switch {
	case v.head.Job != run:
		return Refuse(ReasonForeignJob, "run id %016x: want %016x", uint64(v.head.Job), uint64(run))
	case v.head.Generation < generation:
		return Refuse(ReasonOldGeneration, "generation %d: the job is at %d", v.head.Generation, generation)
	case v.head.Generation > generation:
		return Refuse(ReasonEarlyGeneration, "generation %d: the job is at %d here", v.head.Generation, generation)
	}
	return nil
}

// Section assigns the next Count keys of a frame, and rows of Dim values if the kind has them, to a table. Its
// memory layout is that of the wire.
type Section struct {
	Table Table
	Dim   uint32
	Count uint64
}

// Bags is the contents of a section of a sparse frame, a lookup or its answer: rows, if Count is 0, or Count bags of
// one lane. Its memory layout is that of the wire.
type Bags struct {
	Lane  uint32
	Count uint32
}

// Ack is the receipt of frames of one (trainer, shard) pair: every sequence up to Cumulative, and Cumulative+1+i if bit
// i of Bitmap is set (bit i%64 of word i/64). Window is the credit: how many bytes of frames the sender may have sent
// in all since its first frame, each frame counted once. It equals fabric.Ack field by field.
type Ack struct {
	Cumulative uint64
	Bitmap     [4]uint64
	Window     uint64
}

// View is a frame that has passed Verify. Its slices refer to the frame's bytes without a copy and are valid as long as
// these; they must not be written to. The zero View is an empty frame of no kind.
type View struct {
	data     []byte
	head     Head
	values   span
	keys     span
	sections span
	bags     span
	offsets  span
	body     span
	ack      int // position; 0 if there is none
	copied   bool
}

// Head returns the frame's decoded head.
func (v *View) Head() Head { return v.head }

// Bytes returns the whole frame.
func (v *View) Bytes() []byte { return v.data }

// Copied reports whether the received bytes were not aligned to 8 in memory, so that Verify copied them.
func (v *View) Copied() bool { return v.copied }

// Values returns the values as bytes.
func (v *View) Values() []byte { return v.data[v.values.lo:v.values.hi:v.values.hi] }

// Float32s returns the values; nil if they have another type.
func (v *View) Float32s() []float32 {
	if v.head.DType != DTypeFloat32 {
		return nil
	}
	return float32sOf(v.Values())
}

// Halves returns the bits of 16-bit values; nil if they have another type.
func (v *View) Halves() []uint16 {
	if v.head.DType.Bytes() != 2 {
		return nil
	}
	return halvesOf(v.Values())
}

// Keys returns the keys of all sections.
func (v *View) Keys() []uint64 { return keysOf(v.data[v.keys.lo:v.keys.hi]) }

// Sections returns the sections, tables strictly ascending.
func (v *View) Sections() []Section { return sectionsOf(v.data[v.sections.lo:v.sections.hi]) }

// Section returns the i-th section; i is below len(Sections()).
func (v *View) Section(i int) Section { return v.Sections()[i] }

// Bags returns the contents of each section; nil if all sections are rows.
func (v *View) Bags() []Bags { return bagsOf(v.data[v.bags.lo:v.bags.hi]) }

// Offsets returns where each bag's keys begin within those of its section, for the bags of all sections in order.
func (v *View) Offsets() []uint32 { return offsetsOf(v.data[v.offsets.lo:v.offsets.hi]) }

// Body returns the JSON body.
func (v *View) Body() []byte { return v.data[v.body.lo:v.body.hi:v.body.hi] }

// Ack returns the frame's ack; false if its kind has none.
func (v *View) Ack() (Ack, bool) {
	if v.ack == 0 {
		return Ack{}, false
	}
	var w wire.Ack
	w.Init(v.data, flatOffset(v.ack))
	return Ack{w.Cumulative(), [4]uint64{w.B0(), w.B1(), w.B2(), w.B3()}, w.Window()}, true
}

// Part is a section with its keys and, if the kind has them, its rows [len(Keys), Dim]: in Rows if the frame's values
// are float32, else their bits in Halves.
//
// In form bags a part is Bags bags of one lane, at least one, and Rows or Halves are their gradients [Bags, Dim]. Bag i
// has the keys from Offsets[i] up to the next bag's first; they are in no order and may repeat. In form rows Bags is 0.
// In a lookup, bags request pooled rows; in its answer, Rows are these, without keys and offsets.
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
				n = len(keys) // Count is the number of requested rows
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

// The functions below view bytes whose address and length Verify or Reset has checked. An empty view is nil.

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

// Section and Bags must have exactly the wire's 16 and 8 bytes.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Section{})-sectionBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(Bags{})-bagsBytes]
)

const _ = onlyForLittleEndianMachines

// sealedZeros replaces sequence and checksum in the sum. Read-only.
var sealedZeros [afterSealed - sequenceAt]byte

// checksum returns the CRC-32C of a frame whose head is at pos, computed with the head's sequence and checksum as zero,
// combined with that of the sequence: a frame can be numbered again after it was sealed, without another pass.
func checksum(data []byte, pos int) uint32 {
	sum := crc32c.Update(0, data[:pos+sequenceAt])
	sum = crc32c.Update(sum, sealedZeros[:])
	return crc32c.Update(sum, data[pos+afterSealed:]) ^ numberSum(data[pos+sequenceAt:])
}

// numberSum returns the part of a checksum that a sequence number adds: the CRC-32C of its eight bytes, less that of
// eight zeros, so that number 0 adds nothing. Without it, a number damaged in transit would mark another frame as
// received, which would then never be delivered.
func numberSum(sequence []byte) uint32 {
	const zeros = 0x8c28b28a // the CRC-32C of eight zero bytes
	return crc32c.Update(0, sequence[:8]) ^ zeros
}

// number writes a sequence number into a frame whose head is at pos, and into its checksum.
func number(data []byte, pos int, sequence Sequence) {
	le, at := binary.LittleEndian, data[pos+sequenceAt:]
	sum := le.Uint32(data[pos+checksumAt:]) ^ numberSum(at)
	le.PutUint64(at, uint64(sequence))
	le.PutUint32(data[pos+checksumAt:], sum^numberSum(at))
}

// Envelope reads and writes the only field of a frame that fabric needs. Both methods may be called on frames that
// Verify or Seal returned, while no other goroutine writes to them.
type Envelope struct{}

// Sequence returns the sequence number in the form that fabric needs.
func (Envelope) Sequence(frame []byte) (uint64, bool) {
	s, ok := sequenceOf(frame)
	return uint64(s), ok
}

// SetSequence numbers one of the caller's own frames. It panics if the bytes are not a frame, which is a defect.
func (Envelope) SetSequence(frame []byte, sequence uint64) {
	if !SetSequence(frame, Sequence(sequence)) {
		panic("schema: sequence set on bytes that are not a frame")
	}
}

// sequenceOf reads the sequence number of a frame; ok is false if the bytes cannot be one. It checks no more than it
// needs, so any bytes may be passed; only Verify checks the whole frame.
func sequenceOf(frame []byte) (Sequence, bool) {
	pos, ok := headAt(frame)
	if !ok {
		return 0, false
	}
	return Sequence(binary.LittleEndian.Uint64(frame[pos+sequenceAt:])), true
}

// SetSequence writes the sequence number of a frame in place and keeps its checksum valid. It returns false, with
// nothing written, if the bytes cannot be a frame.
func SetSequence(frame []byte, sequence Sequence) bool {
	pos, ok := headAt(frame)
	if ok {
		number(frame, pos, sequence)
	}
	return ok
}
