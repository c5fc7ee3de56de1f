package schema

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"unsafe"

	"gradbus/lane"
	"gradbus/schema/wire"
)

// Offsets at which this package writes the parts of a frame. Readers must not rely on them: they follow the vtable.
//
//	0    root offset, identifier
//	8    vtable, 16 bytes
//	24   table: offset of the vtable, offset of values, head (at 32), offsets of keys, sections and body, ack (at 128)
//	124  first vector's length, if the frame has no ack; sections, keys, body, values follow in that order
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

	// headroomBytes and tailroomBytes are unused memory before and after a frame, which a transport can fill with its
	// own framing.
	headroomBytes = 8 * valuesAlign
	tailroomBytes = 2
)

// Layout is the kind and the sizes of a frame.
type Layout struct {
	Kind     Kind
	DType    DType // of the values; zero is float32 in kinds that have some
	Values   int   // bytes
	Keys     int
	Sections int
	Bags     int  // of all sections together; zero: all sections are rows
	Pooled   bool // sections have the number of bags, but no keys and offsets
	Body     int  // bytes
}

// Frame is a frame being written: it is built once for a layout, refilled in place and sealed any number of times. Its
// bytes belong to the frame: a caller that got them from Seal may use them until the next refill, so a frame in flight
// is refilled only after it was acknowledged. Not safe for concurrent use.
type Frame struct {
	memory   []byte // data, with the room before and after it
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

// NewFrame builds a zeroed frame with a layout. It fails for a layout that no frame of the kind can have.
//
//	f, err := NewFrame(Layout{Kind: KindSparse, Sections: 1, Keys: 2, Values: 2 * 4 * dim})
func NewFrame(l Layout) (*Frame, error) {
	f := new(Frame)
	return f, f.layOut(l, false)
}

// Reset lays the frame out again, in the same memory if that is large enough. Values, keys, offsets and body are
// undefined: the caller writes all of them. Sections and bags are zero. After an error the frame is unchanged.
//
// Under the race detector undefined memory is filled with garbage, so that tests detect what is not written.
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
	// Parts that callers do not write: the fixed part, the gaps between vectors, sections and bags.
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

// room finds room for a vector of n elements after at: its length, then its elements, aligned. An empty vector is
// omitted and takes none.
func room(at, n, size, align int) (elements span, end int) {
	if n == 0 {
		return span{}, at
	}
	lo := (at + 4 + align - 1) / align * align
	hi := lo + n*size
	return span{lo, hi}, hi
}

// writeFixed writes what only Reset changes: offsets, vtable, vector lengths, magic, version, kind and dtype.
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

// Kind returns the layout's kind.
func (f *Frame) Kind() Kind { return f.kind }

// Bytes returns the size of the whole frame.
func (f *Frame) Bytes() int { return len(f.data) }

// SetHead writes the head. The frame keeps its own Kind and DType and ignores those of h, so that a refusal can be
// given the head of the refused frame.
func (f *Frame) SetHead(h Head) {
	h.Kind, h.DType = f.kind, f.dtype
	writeHead(f.data, frameHeadAt, h)
}

// View returns the frame as a receiver would see it, without a checksum or any check, for an owner that processes its
// own frames. It is valid until the next Reset, and shows later writes to the frame.
func (f *Frame) View() View {
	return View{data: f.data, head: readHead(f.data, frameHeadAt), values: f.values, keys: f.keys, sections: f.sections,
		bags: f.bags, offsets: f.offsets, body: f.body}
}

// SetSequence numbers the frame. It may be called after Seal; the checksum stays valid.
func (f *Frame) SetSequence(s Sequence) { number(f.data, frameHeadAt, s) }

// Values returns the frame's values as bytes, for writing.
func (f *Frame) Values() []byte { return f.data[f.values.lo:f.values.hi:f.values.hi] }

// DType returns the type of the values.
func (f *Frame) DType() DType { return f.dtype }

// Float32s returns the frame's values for writing in place; nil if they have another type.
func (f *Frame) Float32s() []float32 {
	if f.dtype != DTypeFloat32 {
		return nil
	}
	return float32sOf(f.Values())
}

// Halves returns the bits of the frame's 16-bit values for writing in place; nil if they have another type.
func (f *Frame) Halves() []uint16 {
	if f.dtype.Bytes() != 2 {
		return nil
	}
	return halvesOf(f.Values())
}

// Keys returns the frame's keys for writing in place.
func (f *Frame) Keys() []uint64 { return keysOf(f.data[f.keys.lo:f.keys.hi]) }

// Sections returns the frame's sections for writing in place.
func (f *Frame) Sections() []Section { return sectionsOf(f.data[f.sections.lo:f.sections.hi]) }

// SetSection writes the i-th section; i is below the layout's Sections.
func (f *Frame) SetSection(i int, s Section) { f.Sections()[i] = s }

// Bags returns the contents of each section for writing in place; nil if all sections are rows.
func (f *Frame) Bags() []Bags { return bagsOf(f.data[f.bags.lo:f.bags.hi]) }

// Offsets returns, for writing in place, where each bag's keys begin within those of its section.
func (f *Frame) Offsets() []uint32 { return offsetsOf(f.data[f.offsets.lo:f.offsets.hi]) }

// Body returns the frame's body for writing in place.
func (f *Frame) Body() []byte { return f.data[f.body.lo:f.body.hi:f.body.hi] }

// SetAck writes the ack of a frame of KindAck; for other kinds it does nothing.
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
// every byte once and checks nothing; Verify checks at the receiver.
func (f *Frame) Seal() []byte {
	binary.LittleEndian.PutUint32(f.data[frameHeadAt+checksumAt:], checksum(f.data, frameHeadAt))
	return f.data
}

// Room returns the memory that contains the frame's bytes, memory[lo:hi], with unused room before and after them for a
// transport. It is valid as long as the result of Seal.
func (f *Frame) Room() (memory []byte, lo, hi int) {
	return f.memory, headroomBytes, headroomBytes + len(f.data)
}

// alignedBytes allocates n bytes at an address that is a multiple of 64, so that values are aligned in memory as they
// are within the frame.
func alignedBytes(n int) []byte {
	b := make([]byte, n+valuesAlign)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (valuesAlign - 1)
	return b[skip : skip+n : len(b)]
}

// WireVersion is the version of frames that this package writes and reads.
const WireVersion = 1

const (
	magic       = 0x53554247 // the bytes "GBUS"
	headBytes   = 80
	headAlign   = 8
	sequenceAt  = 8  // of the sequence within the head; the checksum follows
	checksumAt  = 16 // of the checksum within the head
	afterSealed = 20 // of what follows the checksum
)

// Head is the fixed part of every frame. docs/protocol.md lists the fields that each kind uses; the others are zero.
// Frame and Verify handle magic, version and checksum.
type Head struct {
	Kind       Kind
	Job        RunID
	Generation Generation
	Batch      Batch
	Bucket     Bucket
	Chunk      Chunk
	Chunks     Chunk     // number of chunks of the round or request
	Node       lane.Node // node of the sum
	Lanes      uint16    // of the job
	DType      DType
	Flags      uint32
	Offset     uint64 // first element of the chunk within its bucket
	Weight     float64
	Sequence   Sequence
}

// readHead reads the head at pos, which the caller has checked to be within data.
func readHead(data []byte, pos int) Head {
	var w wire.Head
	w.Init(data, flatOffset(pos))
	return Head{
		Kind: Kind(w.Kind()), Job: RunID(w.Job()), Generation: Generation(w.Generation()), Batch: Batch(w.Batch()),
		Bucket: Bucket(w.Bucket()), Chunk: Chunk(w.Chunk()), Chunks: Chunk(w.Chunks()),
		Node:  lane.Node{First: lane.Lane(w.NodeFirst()), Count: w.NodeCount()},
		Lanes: w.Lanes(), DType: DType(w.Dtype()), Flags: w.Flags(), Offset: w.Offset(), Weight: w.Weight(),
		Sequence: Sequence(w.Sequence()),
	}
}

// writeHead writes h at pos, except magic, version and checksum.
func writeHead(data []byte, pos int, h Head) {
	var w wire.Head
	w.Init(data, flatOffset(pos))
	w.MutateKind(uint16(h.Kind))
	w.MutateSequence(uint64(h.Sequence))
	w.MutateGeneration(uint32(h.Generation))
	w.MutateJob(uint64(h.Job))
	w.MutateBatch(uint64(h.Batch))
	w.MutateOffset(h.Offset)
	w.MutateWeight(h.Weight)
	w.MutateBucket(uint32(h.Bucket))
	w.MutateChunk(uint32(h.Chunk))
	w.MutateChunks(uint32(h.Chunks))
	w.MutateFlags(h.Flags)
	w.MutateNodeFirst(uint16(h.Node.First))
	w.MutateNodeCount(h.Node.Count)
	w.MutateLanes(h.Lanes)
	w.MutateDtype(uint16(h.DType))
}

// checkHead checks the fields of a head by themselves, by the rules of its kind.
func checkHead(h *Head) *FrameError {
	if h.Kind == 0 || h.Kind > kindMax {
		return Refuse(ReasonUnknownKind, "%v: want 1 to %d", h.Kind, kindMax)
	}
	r := &rules[h.Kind]
	if r.repeats {
		return nil
	}
	if err := checkPlace(h, r.place); err != nil {
		return err
	}
	if err := checkSum(h, r); err != nil {
		return err
	}
	switch {
	case (h.Kind == KindControl || h.Kind == KindHeartbeat) && h.Batch >= batchEnd:
		return Refuse(ReasonMalformed, "batch %d of a %v frame: want less than %d", h.Batch, h.Kind, uint64(batchEnd))
	case h.Flags&^r.flags != 0:
		return Refuse(ReasonMalformed, "flags %#x: a %v frame may have %#x", h.Flags, h.Kind, r.flags)
	case h.Offset != 0 && !r.offset:
		return Refuse(ReasonMalformed, "offset %d: a %v frame has none", h.Offset, h.Kind)
	case r.half && (h.DType == DTypeBFloat16 || h.DType == DTypeFloat16):
	case r.values && h.DType != DTypeFloat32:
		return Refuse(ReasonWrongDType, "%v of a %v frame: want %d (float32)%s", h.DType, h.Kind, DTypeFloat32, orHalf(r))
	case !r.values && h.DType != DTypeNone:
		return Refuse(ReasonWrongDType, "dtype %d: a %v frame has no values", h.DType, h.Kind)
	}
	return nil
}

func orHalf(r *rule) string {
	if !r.half {
		return ""
	}
	return fmt.Sprintf(", %d (bfloat16) or %d (float16)", DTypeBFloat16, DTypeFloat16)
}

// checkSum checks lanes, node and weight. Any kind may state the job's number of lanes.
func checkSum(h *Head, r *rule) *FrameError {
	has := h.Node != lane.Node{}
	switch {
	case int(h.Lanes) > lane.LanesMax:
		return Refuse(ReasonOversized, "%d lanes: want at most %d", h.Lanes, lane.LanesMax)
	case has && r.node == never:
		return Refuse(ReasonMalformed, "node %v: a %v frame has none", h.Node, h.Kind)
	case (has || r.node == always) && !lane.IsNode(h.Node, int(h.Lanes)):
		return Refuse(ReasonWrongNode, "lanes %v: not a node of the tree over %d lanes", h.Node, h.Lanes)
	case h.Weight != 0 && !r.weight:
		return Refuse(ReasonMalformed, "weight %v: a %v frame has none", h.Weight, h.Kind)
	case math.IsNaN(h.Weight) || math.IsInf(h.Weight, 0):
		return Refuse(ReasonNonFinite, "weight %v: want a number of samples", h.Weight)
	case h.Weight < 0:
		return Refuse(ReasonWrongWeight, "weight %v: want at least 0", h.Weight)
	}
	return nil
}

func checkPlace(h *Head, p place) *FrameError {
	switch {
	case p == placeNone && (h.Bucket != 0 || h.Chunk != 0 || h.Chunks != 0):
		return Refuse(ReasonMalformed, "bucket %d, chunk %d of %d: a %v frame has none", h.Bucket, h.Chunk, h.Chunks, h.Kind)
	case p == placeNone, p == placeSeries && h.Chunks == 0:
		return nil
	case h.Chunk >= h.Chunks:
		return Refuse(ReasonWrongChunk, "chunk %d of %d of a %v frame", h.Chunk, h.Chunks, h.Kind)
	case h.Chunks > ChunksMax:
		return Refuse(ReasonOversized, "%d chunks: want at most %d", h.Chunks, ChunksMax)
	}
	return nil
}

// Kind is the purpose of a frame. The numbers are part of the protocol.
type Kind uint16

const (
	KindDense     Kind = 1  // a chunk of a dense gradient, summed over a node's lanes: trainer to shard
	KindSparse    Kind = 2  // gradients of table rows, summed over a node's lanes: trainer to shard
	KindMean      Kind = 3  // the result of a dense chunk, or of a sparse round: owner to trainers
	KindLookup    Kind = 4  // a request for rows by key: trainer to shard
	KindRows      Kind = 5  // rows: the answer to a lookup or to a pull of a table
	KindPull      Kind = 6  // a request for a kept result, for parameters or for a part of a table: trainer to shard
	KindAck       Kind = 7  // receipt of frames, and how much more may be in flight
	KindControl   Kind = 8  // membership: a Control as JSON
	KindHeartbeat Kind = 9  // heartbeat; with a telemetry report as JSON when one is due
	KindRefusal   Kind = 10 // a frame was refused: a Refusal as JSON

	KindForward  Kind = 11 // the input of a hosted module: trainer to shard
	KindBackward Kind = 12 // the gradient of the loss by a module's output, for a context: trainer to shard
	KindStep     Kind = 13 // a request to step a module's parameters by the gradients of contexts: trainer to shard
	KindWeights  Kind = 14 // a request for a module's parameters, or for a context's gradients: trainer to shard
	KindOutput   Kind = 15 // the answer of a module: shard to trainer

	// KindState is a piece of the state of a shard or trainer at one version: to a replica, or to the member that
	// requests it.
	KindState Kind = 16
)

// kindMax is the greatest kind of this version.
const kindMax = KindState

var kindNames = [kindMax + 1]string{
	KindDense: "dense", KindSparse: "sparse", KindMean: "mean", KindLookup: "lookup", KindRows: "rows", KindPull: "pull",
	KindAck: "ack", KindControl: "control", KindHeartbeat: "beat", KindRefusal: "refusal",
	KindForward: "forward", KindBackward: "backward", KindStep: "step", KindWeights: "weights", KindOutput: "output",
	KindState: "state",
}

// String returns the kind's name, or its number if it has none.
func (k Kind) String() string {
	if k > 0 && k <= kindMax {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// DType is the type of a frame's values.
type DType uint16

const (
	DTypeNone     DType = 0 // the kind has no values
	DTypeFloat32  DType = 1 // IEEE 754 binary32, little-endian
	DTypeBFloat16 DType = 2 // the upper half of a binary32; gradients only
	DTypeFloat16  DType = 3 // IEEE 754 binary16; gradients only
)

// dtypeMax is the greatest type of this version.
const dtypeMax = DTypeFloat16

// dtypes has the names of types, as manifests spell those of gradients, and the sizes of their values.
var dtypes = [dtypeMax + 1]struct {
	name  string
	bytes int
}{{"none", 0}, {GradientsFloat32, 4}, {GradientsBFloat16, 2}, {GradientsFloat16, 2}}

// Bytes returns the size of one value; 0 for DTypeNone and unknown types.
func (d DType) Bytes() int {
	if d > dtypeMax {
		return 0
	}
	return dtypes[d].bytes
}

// String returns the type's name, or its number if it has none.
func (d DType) String() string {
	if d > dtypeMax {
		return "dtype " + strconv.Itoa(int(d))
	}
	return dtypes[d].name
}

// Flags of a head. Bits that are not listed are zero.
const (
	// FlagMore, in rows that answer a pull: keys above the last one remain. In state: the piece contains changes since
	// the version before in the series, and the rest is unchanged.
	FlagMore uint32 = 1 << 0
	// FlagParameters, in a mean: the values are new parameters, not an average. In a pull: it requests parameters, and,
	// if trainers own them, their optimizer state. In state: the piece is of a parameter.
	FlagParameters uint32 = 1 << 1
	// FlagEvaluate, in a forward: dropout is off, and no context is opened.
	FlagEvaluate uint32 = 1 << 2
	// FlagInput, in a backward: it requests the gradient by the module's input, too.
	FlagInput uint32 = 1 << 3
	// FlagStep, in a backward: a step by its context follows at once.
	FlagStep uint32 = 1 << 4
	// FlagGradients, in a weights frame: it requests the gradients of its context instead of the parameters.
	FlagGradients uint32 = 1 << 5
	// FlagComplete, in a trainer's heartbeat or leave: it is between two runs, and every batch that it took part in is
	// complete.
	FlagComplete uint32 = 1 << 6
	// FlagNarrow, in a contribution: its sender's window is narrower than was granted, so each frame has to be
	// acknowledged at once. A receiver that waited for a quarter of the granted window might wait forever.
	FlagNarrow uint32 = 1 << 7
	// FlagCopy, in a mean, or in rows that answer a lookup: the version that it makes or that the rows have is being
	// written, and the trainer of lane 0 will be asked for the part that trainers own.
	FlagCopy uint32 = 1 << 8
)

// rule is the contents of a kind's frames; the table in docs/protocol.md is made from it. Parts that a kind does not
// have are zero, absent or empty.
type rule struct {
	place   place // bucket, chunk and chunks
	node    need  // node, a node of the tree over lanes
	weight  bool
	offset  bool
	flags   uint32
	values  bool // values, of type dtype
	half    bool // values may have 16 bits
	keys    bool // sections and keys
	rows    bool // values are exactly the rows of the sections' keys
	someRow bool // as rows if there are sections; else values are a chunk's
	// Sections may contain bags; their values, if the kind has them, are then one row for each bag.
	bags     bool
	pooled   bool     // bags have no keys, only their number
	contexts contexts // number of contexts in keys, without sections
	module   bool     // a message of a hosted module, whose index is the bucket
	ack      bool     // an ack, required
	body     need
	repeats  bool // the head repeats that of a refused frame and is not checked
}

// place is the meaning of a kind's bucket, chunk and chunks.
type place uint8

const (
	placeNone   place = iota // zero
	placeChunk               // chunk < chunks
	placeSeries              // chunk < chunks, or any chunk if chunks is 0: the number is not known yet
)

// need tells whether a kind requires a part.
type need uint8

const (
	never need = iota
	maybe
	always
)

var rules = [kindMax + 1]rule{
	KindDense: {place: placeChunk, node: always, weight: true, offset: true, flags: FlagNarrow, values: true, half: true},
	KindSparse: {place: placeChunk, node: always, weight: true, flags: FlagNarrow, values: true, half: true, keys: true,
		rows: true, bags: true},
	KindMean: {place: placeChunk, node: maybe, weight: true, offset: true, flags: FlagParameters | FlagCopy, values: true,
		keys: true, someRow: true},
	KindLookup: {place: placeChunk, keys: true, bags: true},
	KindRows: {place: placeSeries, weight: true, offset: true, flags: FlagMore | FlagCopy, values: true, keys: true,
		rows: true, bags: true, pooled: true},
	KindPull:      {place: placeSeries, flags: FlagParameters, keys: true},
	KindAck:       {ack: true},
	KindControl:   {flags: FlagComplete, body: always},
	KindHeartbeat: {flags: FlagComplete, body: maybe},
	KindRefusal:   {body: always, repeats: true},

	KindForward: {module: true, place: placeChunk, node: always, weight: true, offset: true, flags: FlagEvaluate,
		values: true},
	KindBackward: {module: true, place: placeChunk, weight: true, offset: true, flags: FlagInput | FlagStep, values: true,
		contexts: contexts{1, 1}},
	KindStep:    {module: true, place: placeChunk, weight: true, contexts: contexts{1, moduleContextsMax}},
	KindWeights: {module: true, place: placeSeries, flags: FlagGradients, contexts: contexts{0, 1}},
	KindOutput:  {module: true, place: placeChunk, offset: true, values: true, contexts: contexts{0, 1}},

	KindState: {place: placeSeries, weight: true, offset: true, flags: FlagMore | FlagParameters, values: true,
		keys: true},
}

// ChunkRef names a dense chunk of a job.
type ChunkRef struct {
	Bucket Bucket
	Chunk  Chunk
}

// placedChunk is the owner of a dense chunk, and its place there.
type placedChunk struct {
	owner int
	index int // among the chunks of its owner, in their order
}

// placeChunks cuts the buckets into chunks and assigns an owner to each.
func (p *Placement) placeChunks() {
	owners, base := p.Plan.DenseShards(p.Shards), 0
	if p.Plan.Reducer == ByTrainers {
		owners, base = p.Trainers, p.Shards
	}
	p.owned = make([]int, p.Owners())
	for _, k := range spread(p.chunkSizes(), owners) {
		p.chunks = append(p.chunks, placedChunk{owner: base + k, index: p.owned[base+k]})
		p.owned[base+k]++
	}
}

// chunkSizes cuts the buckets into chunks and returns their numbers of elements.
func (p *Placement) chunkSizes() (sizes []int) {
	for _, b := range p.Buckets {
		p.firstChunks = append(p.firstChunks, len(sizes))
		for c := range p.Chunks(b.ID) {
			_, elements := p.ChunkRange(b.ID, Chunk(c))
			sizes = append(sizes, elements)
		}
	}
	return sizes
}

// OwnerOfChunk returns the owner that aggregates a chunk of a known bucket.
func (p *Placement) OwnerOfChunk(b Bucket, c Chunk) int {
	if !p.IsDense(b) {
		return int(b) - len(p.Buckets)
	}
	return p.chunks[p.firstChunks[b]+int(c)].owner
}

// IndexOfChunk returns the index of a dense chunk in OwnedChunks of its owner.
func (p *Placement) IndexOfChunk(b Bucket, c Chunk) int {
	return p.chunks[p.firstChunks[b]+int(c)].index
}

// OwnedChunks lists the dense chunks that an owner aggregates, bucket by bucket, in the order in which their rounds are
// sent.
func (p *Placement) OwnedChunks(owner int) []ChunkRef {
	var owned []ChunkRef
	for _, b := range p.Buckets {
		for c := range p.Chunks(b.ID) {
			if p.OwnerOfChunk(b.ID, Chunk(c)) == owner {
				owned = append(owned, ChunkRef{b.ID, Chunk(c)})
			}
		}
	}
	return owned
}

// spread distributes chunks of these sizes over owners, evenly by size, and returns the owner of each chunk. It adds
// owners one by one: the first has all chunks, and each new one takes chunks from the fullest owner (the first of
// equals) until no owner exceeds the new one by more than the largest chunk.
//
//	spread([]int{4, 4, 4, 4, 1}, 2) == []int{0, 1, 0, 1, 0}
//
// Let M be the largest size, T the sum of all and S the number of owners. Then
//
//   - the fullest owner has at most M more than the emptiest: a chunk leaves only a fullest owner with more than M
//     above the new one, and so leaves it at most M below all others, and the new one at most M above any of them;
//   - chunks move to the new owner only, and at most T/S + M of them, since it ends at most M above any other.
//
// The chunk that moves is the last one in bitOrder, so that the chunks of each owner are spread over all of them:
// rounds are sent in the order of chunks, and all owners should have work at any time.
func spread(sizes []int, owners int) []int {
	placed := make([]int, len(sizes))
	if len(sizes) == 0 {
		return placed
	}
	largest := slices.Max(sizes)
	first := load{chunks: bitOrder(len(sizes))}
	for _, n := range sizes {
		first.size += n
	}
	loads := loads{first}
	for k := 1; k < owners; k++ {
		newcomer := load{owner: k}
		for loads[0].size-newcomer.size > largest {
			from := &loads[0]
			last := len(from.chunks) - 1
			c := from.chunks[last]
			from.chunks, from.size = from.chunks[:last], from.size-sizes[c]
			newcomer.chunks, newcomer.size = append(newcomer.chunks, c), newcomer.size+sizes[c]
			placed[c] = k
			heap.Fix(&loads, 0)
		}
		heap.Push(&loads, newcomer)
	}
	return placed
}

// bitOrder returns the numbers below n ordered by their binary digits in reverse, so that any part of the result is
// spread over all of them.
//
//	bitOrder(6) == []int{0, 4, 2, 1, 5, 3}
func bitOrder(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(bits.Reverse64(uint64(a)), bits.Reverse64(uint64(b))) })
	return order
}

// load is the load of an owner while chunks are placed.
type load struct {
	owner, size int
	chunks      []int
}

// loads is a heap whose first element is the fullest owner; of equals, the one added first.
type loads []load

func (l loads) Len() int { return len(l) }

func (l loads) Less(i, j int) bool {
	return l[i].size > l[j].size || l[i].size == l[j].size && l[i].owner < l[j].owner
}

func (l loads) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

func (l *loads) Push(x any) { *l = append(*l, x.(load)) }

func (l *loads) Pop() any { panic("schema: an owner left while chunks were placed") }
