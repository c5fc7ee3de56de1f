package schema

import (
	"fmt"
	"math"

	"gradbus/lane"
	"gradbus/schema/wire"
)

// WireVersion is the version of frames that this package writes, and the only one so far that it reads.
const WireVersion = 1

const (
	magic       = 0x53554247 // the bytes "GBUS"
	headBytes   = 80
	headAlign   = 8
	sequenceAt  = 8  // of the sequence within the head; the checksum follows
	checksumAt  = 16 // of the checksum within the head
	afterSealed = 20 // of what follows the checksum
)

// Head is the fixed part of every frame. docs/protocol.md says which fields a kind uses; the others are zero.
// Magic, version and checksum are the frame's own business and not here.
type Head struct {
	Kind       Kind
	Job        RunID
	Generation Generation
	Batch      Batch
	Bucket     Bucket
	Chunk      Chunk
	Chunks     Chunk     // number of chunks of the round or request
	Node       lane.Node // whose sum this is
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

// writeHead writes h at pos, all but magic, version and checksum.
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

// checkHead checks what a head of its kind must hold by itself.
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

// checkSum checks lanes, node and weight. Any kind may say how many lanes the job has.
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
