package schema

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"gradbus/lane"
)

// reseal gives any bytes a right checksum, where they have a head to put it into: the checks behind it are reached.
func reseal(data []byte) bool {
	pos, ok := headAt(data)
	if ok {
		binary.LittleEndian.PutUint32(data[pos+checksumAt:], checksum(data, pos))
	}
	return ok
}

// sweep reads everything that a view offers. It panics or races where Verify let something through.
func sweep(v *View) (sum float64) {
	for _, x := range v.Float32s() {
		sum += float64(x)
	}
	for _, x := range v.Halves() {
		sum += float64(x)
	}
	for _, k := range v.Keys() {
		sum += float64(k)
	}
	for i := range v.Sections() {
		sum += float64(v.Section(i).Count)
	}
	for _, p := range v.Parts() {
		for _, k := range p.Keys {
			sum += float64(k)
		}
		for _, x := range p.Rows {
			sum += float64(x)
		}
		for _, x := range p.Halves {
			sum += float64(x)
		}
		for i, x := range p.Offsets { // Bags of them, each the begin of a bag with a key
			sum += float64(p.Keys[x]) + float64(len(p.Rows)/p.Bags*i) + float64(p.Lane)
		}
	}
	for _, b := range v.Body() {
		sum += float64(b)
	}
	for _, b := range v.Values() {
		sum += float64(b)
	}
	a, _ := v.Ack()
	c, _ := DecodeControl(v)
	r, _ := DecodeRefusal(v)
	for _, gradients := range []string{GradientsFloat32, GradientsBFloat16, GradientsFloat16} {
		job := testJob()
		job.Wire.Gradients = gradients
		if NewPlacement(job, 2).CheckFrame(v, 1) == nil && v.CheckJob(1, 1) == nil {
			sum++
		}
	}
	s, _ := sequenceOf(v.Bytes())
	return sum + float64(a.Window) + float64(len(c.Name())+len(r.Text)) + float64(s) + float64(len(describe(v)))
}

// change is a sample with something written over it before the checksum is.
type change func(data []byte)

func put16(at int, x uint16) change {
	return func(d []byte) { binary.LittleEndian.PutUint16(d[at:], x) }
}
func put32(at int, x uint32) change {
	return func(d []byte) { binary.LittleEndian.PutUint32(d[at:], x) }
}
func put64(at int, x uint64) change {
	return func(d []byte) { binary.LittleEndian.PutUint64(d[at:], x) }
}

// Positions within the samples' heads; see gradbus.fbs.
const (
	inMagic = frameHeadAt + 4*iota
	inVersionKind
	inSequence
	_
	inChecksum
	inGeneration
	inJob
	_
	inBatch
	_
	inOffset
	_
	inWeight
	_
	inBucket
	inChunk
	inChunks
	inFlags
	inNode
	inLanesDType
)

// wrong is a sample with a change that has to be refused.
type wrong struct {
	sample string
	change change
	reason Reason
	detail string
}

func refuseAll(t *testing.T, cases []wrong) {
	t.Helper()
	for _, c := range cases {
		var data []byte
		for _, s := range samples(t) {
			if s.name == c.sample {
				data = s.frame
			}
		}
		c.change(data)
		reseal(data)
		_, err := Verify(data, Limits{})
		var e *FrameError
		if !errors.As(err, &e) || e.Reason != c.reason || !strings.Contains(e.Detail, c.detail) {
			t.Errorf("%s: %v, want %v saying %q", c.sample, err, c.reason, c.detail)
		}
	}
}

func TestVerifyNamesWhatIsWrongWithTheLayout(t *testing.T) {
	refuseAll(t, []wrong{
		{"dense", put32(identifierAt, 0), ReasonMalformed, "identifier"},
		{"dense", put32(0, 4), ReasonMalformed, "root offset"},
		{"dense", put32(0, 26), ReasonMalformed, "root offset"},
		{"dense", put32(0, 1<<31), ReasonMalformed, "root offset"},
		{"dense", put32(tableAt, 1<<30), ReasonMalformed, "vtable offset"},
		{"dense", put32(tableAt, 0xffff0000), ReasonMalformed, "vtable offset"},
		{"dense", put16(vtableAt, 3), ReasonMalformed, "vtable size"},
		{"dense", put16(vtableAt, 22), ReasonMalformed, "version 1 does not have"},
		{"dense", put16(vtableAt, 60000), ReasonMalformed, "vtable size"},
		{"dense", put16(vtableAt+2, 2), ReasonMalformed, "table size"},
		{"dense", put16(vtableAt+2, 60000), ReasonMalformed, "table size"},
		{"dense", put16(vtableAt+4, 0), ReasonMalformed, "head: absent"},
		{"dense", put16(vtableAt+4, 12), ReasonMalformed, "head: field not aligned"},
		{"dense", put16(vtableAt+4, 24), ReasonMalformed, "head: field outside"},
		{"dense", put16(vtableAt+4, 2), ReasonMalformed, "head: field outside"},
		{"dense", put32(inMagic, 1), ReasonMalformed, "magic"},
		{"dense", put16(inVersionKind, 2), ReasonUnknownVersion, "version 2"},
		{"dense", put16(inVersionKind, 0), ReasonUnknownVersion, "version 0"},
		{"dense", put16(inVersionKind+2, 0), ReasonUnknownKind, "kind 0"},
		{"dense", put16(inVersionKind+2, 17), ReasonUnknownKind, "kind 17"},
		{"dense", put32(valuesFieldAt, 0), ReasonMalformed, "values: vector offset"},
		{"dense", put32(valuesFieldAt, 1<<31), ReasonMalformed, "values: vector offset"},
		{"dense", put32(valuesFieldAt, 92), ReasonMalformed, "values: vector not aligned"},
		{"dense", put32(124, 13), ReasonMalformed, "values: vector longer"},
		{"dense", put32(124, math.MaxUint32), ReasonMalformed, "values: vector longer"},
		{"dense", put32(124, 11), ReasonWrongShape, "multiple of 4"},
		{"dense", put32(124, 0), ReasonWrongShape, "weight of 32"},
	})
}

func TestVerifyNamesWhatIsWrongForTheKind(t *testing.T) {
	weight := func(w float64) change { return put64(inWeight, math.Float64bits(w)) }
	const sectionsAt, keysAt, bodyAt = 128, 168, 128 // in samples with two sections, or a body alone
	refuseAll(t, []wrong{
		{"dense", put32(inChunk, 2), ReasonWrongChunk, "chunk 2 of 2"},
		{"dense", put32(inChunks, 0), ReasonWrongChunk, "chunk 1 of 0"},
		{"dense", put32(inChunks, ChunksMax+1), ReasonOversized, "chunks"},
		{"dense", put32(inFlags, 4), ReasonMalformed, "flags"},
		{"dense", put16(inNode, 1), ReasonWrongNode, "[1,3)"},
		{"dense", put16(inNode+2, 0), ReasonWrongNode, "[0,0)"},
		{"dense", put16(inNode+2, 8), ReasonWrongNode, "[0,8)"},
		{"dense", put16(inLanesDType, 0), ReasonWrongNode, "0 lanes"},
		{"dense", put16(inLanesDType, lane.LanesMax+1), ReasonOversized, "4097 lanes"},
		{"dense", put16(inLanesDType+2, 0), ReasonWrongDType, "none of a dense frame"},
		{"dense", put16(inLanesDType+2, 4), ReasonWrongDType,
			"dtype 4 of a dense frame: want 1 (float32), 2 (bfloat16) or 3 (float16)"},
		{"mean", put16(inLanesDType+2, 2), ReasonWrongDType, "bfloat16 of a mean frame: want 1 (float32)"},
		{"rows", put16(inLanesDType+2, 3), ReasonWrongDType, "float16 of a rows frame: want 1 (float32)"},
		{"dense-bfloat16", put32(124, 5), ReasonWrongShape, "multiple of 2"},
		{"dense-bfloat16", put16(inLanesDType+2, 1), ReasonWrongShape, "multiple of 4"},
		{"sparse-bfloat16", put32(sectionsAt+4, 3), ReasonWrongShape, "10 bytes of values: want 14"},
		{"sparse", put16(inLanesDType+2, 2), ReasonWrongShape, "20 bytes of values: want 10"},
		{"dense", weight(math.NaN()), ReasonNonFinite, "NaN"},
		{"dense", weight(math.Inf(1)), ReasonNonFinite, "Inf"},
		{"dense", weight(-1), ReasonWrongWeight, "-1"},
		{"dense", put16(inVersionKind+2, uint16(KindLookup)), ReasonMalformed, "node [0,2)"}, // a lookup has no sum
		{"lookup", put16(inLanesDType+2, 1), ReasonWrongDType, "no values"},
		{"lookup", weight(1), ReasonMalformed, "weight"},
		{"lookup", put32(sectionsAt, 1), ReasonUnsortedKeys, "tables ascending"},
		{"lookup", put32(sectionsAt+4, 0), ReasonWrongShape, "dim 0"},
		{"lookup", put32(sectionsAt+4, DimMax+1), ReasonWrongShape, "dim 65537"},
		{"lookup", put64(sectionsAt+24, 2), ReasonWrongShape, "2 keys where the frame has 1 left"},
		{"lookup", put64(sectionsAt+8, math.MaxUint64), ReasonWrongShape, "has 3 left"},
		{"lookup", put64(sectionsAt+24, 0), ReasonWrongShape, "1 are in no section"},
		{"lookup", put64(keysAt, 1<<40), ReasonUnsortedKeys, "strictly ascending"},
		{"lookup", put64(keysAt, 1<<40+1), ReasonUnsortedKeys, "strictly ascending"},
		{"sparse", put32(sectionsAt+4, 3), ReasonWrongShape, "want 28"},
		{"rows", put32(sectionsAt+4, 1), ReasonWrongShape, "want 12"},
		{"rows-more", put32(inChunks, 2), ReasonWrongChunk, "chunk 2 of 2"},
		{"pull-table", put64(sectionsAt+8, 0), ReasonWrongShape, "0 rows"},
		{"pull-table", put32(sectionsAt+4, 0), ReasonWrongShape, "dim 0"},
		{"pull-table", put16(vtableAt+4+2*fieldKeys, 0), ReasonWrongShape, "1 sections and 0 keys"},
		{"ack", put16(vtableAt+4+2*fieldAck, 0), ReasonMalformed, "ack"},
		{"ack", put16(vtableAt+4+2*fieldAck, 100), ReasonMalformed, "ack: field not aligned"},
		{"ack", put16(vtableAt+4+2*fieldAck, 112), ReasonMalformed, "ack: field outside"},
		{"ack", put16(inVersionKind+2, uint16(KindHeartbeat)), ReasonMalformed, "ack"},
		{"control", put16(vtableAt+4+2*fieldBody, 0), ReasonMalformed, "body"},
		{"control", put16(inVersionKind+2, uint16(KindAck)), ReasonMalformed, "ack"},
		{"control", put16(inVersionKind+2, uint16(KindPull)), ReasonMalformed, "body: a pull frame has none"},
		{"control", put32(bodyAt-4, 1<<20), ReasonMalformed, "body: vector longer"},
		{"lookup-empty", put16(inVersionKind+2, uint16(KindHeartbeat)), ReasonMalformed,
			"chunk 0 of 1: a beat frame has none"},
		{"beat", put32(inBucket, 1), ReasonMalformed, "bucket 1"},
		{"ack", put16(inLanesDType+2, 1), ReasonWrongDType, "no values"},
		{"lookup", put64(inOffset, 1), ReasonMalformed, "offset 1"},
		{"lookup", put32(inFlags, FlagMore), ReasonMalformed, "flags 0x1: a lookup frame may have 0x0"},
		{"mean", put32(inFlags, FlagMore), ReasonMalformed, "flags"},
		{"mean", weight(-1), ReasonWrongWeight, "-1"},
	})
}

func TestVerifyNamesWhatIsWrongWithBags(t *testing.T) {
	// The sample's vectors lie one after the other, each behind its length.
	const sectionsAt = 160
	const bagsAt, offsetsAt = sectionsAt + 3*sectionBytes + 4, sectionsAt + 3*sectionBytes + 4 + 3*bagsBytes + 4
	refuseAll(t, []wrong{
		{"sparse-bags", put32(bagsAt-4, 2), ReasonWrongShape, "2 bags entries of 3 sections"},
		{"sparse-bags", put32(bagsAt-4, 1<<30), ReasonMalformed, "bags: vector longer"},
		{"sparse-bags", put32(offsetsAt-4, 1<<31), ReasonMalformed, "offsets: vector longer"},
		{"sparse-bags", put32(offsetsAt-4, 2), ReasonWrongShape, "1 bags of 1 keys where the frame has 0 offsets left"},
		{"sparse-bags", put16(bagsVtableAt+4+2*fieldOffsets, 0), ReasonWrongShape,
			"2 bags of 4 keys where the frame has 0 offsets left"},
		{"sparse-bags", put16(bagsVtableAt+4+2*fieldBags, 0), ReasonUnsortedKeys, "key 3 after key 9"},
		{"sparse-bags", put32(bagsAt+12, 0), ReasonUnsortedKeys, "lanes with bags of one table"}, // rows after bags
		{"sparse-bags", put16(bagsVtableAt, 22), ReasonMalformed, "version 1 does not have"},
		{"sparse-bags", put32(bagsAt, 4), ReasonWrongNode, "bags of lane 4 in a frame of lanes [0,4)"},
		{"sparse-bags", put32(bagsAt, math.MaxUint32), ReasonWrongNode, "lane 4294967295"},
		{"sparse-bags", put32(bagsAt, 3), ReasonUnsortedKeys, "lanes with bags of one table"},
		{"sparse-bags", put32(bagsAt+4, math.MaxUint32), ReasonWrongShape, "4294967295 bags of 4 keys"},
		{"sparse-bags", put32(bagsAt+4, 3), ReasonWrongShape, "begins at key 0, the one before it at 3"},
		{"sparse-bags", put32(bagsAt+4, 1), ReasonWrongShape, "first bag begins at key 3"},
		{"sparse-bags", put32(bagsAt+4, 0), ReasonMalformed, "lane 1 without bags"},
		{"sparse-bags", put32(bagsAt+16, 1), ReasonMalformed, "lane 1 without bags"},
		{"sparse-bags", put32(bagsAt+20, 1), ReasonWrongShape, "0 offsets left"},
		{"sparse-bags", put32(offsetsAt, 1), ReasonWrongShape, "first bag begins at key 1: want 0"},
		{"sparse-bags", put32(offsetsAt+4, 0), ReasonWrongShape, "want a key in each bag"},
		{"sparse-bags", put32(offsetsAt+4, 4), ReasonWrongShape, "last bag begins at key 4 of 4"},
		{"sparse-bags", put32(offsetsAt+4, math.MaxUint32), ReasonWrongShape, "begins at key 4294967295 of 4"},
		{"sparse-bags", put32(sectionsAt+4, 3), ReasonWrongShape, "28 bytes of values: want 36"},
		{"sparse-bags", put16(inVersionKind+2, uint16(KindRows)), ReasonMalformed, "rows frame"},
		// rows after bags of one table
		{"sparse-bags", put32(sectionsAt+2*sectionBytes, 0), ReasonUnsortedKeys, "table 0 after table 0"},
	})
}

func TestVerifyHoldsLimits(t *testing.T) {
	large := make([]byte, FrameBytesMax+1)
	if _, err := Verify(large, Limits{}); ReasonOf(err) != ReasonOversized {
		t.Errorf("a frame above the protocol's limit: %v", err)
	}
	for _, s := range samples(t) {
		if _, err := Verify(s.frame, Limits{FrameBytesMax: len(s.frame)}); err != nil {
			t.Errorf("%s at its size: %v", s.name, err)
		}
		if _, err := Verify(s.frame, Limits{FrameBytesMax: len(s.frame) - 1}); ReasonOf(err) != ReasonOversized {
			t.Errorf("%s above the limit: %v", s.name, err)
		}
		v, err := Verify(s.frame, Limits{})
		check(t, err)
		_, err = Verify(s.frame, Limits{bodyBytesMax: 4, keysMax: 2})
		if above := len(v.Body()) > 4 || len(v.Keys()) > 2; above != (ReasonOf(err) == ReasonOversized) {
			t.Errorf("%s with %d keys and %d bytes of body: %v", s.name, len(v.Keys()), len(v.Body()), err)
		}
	}
}

// Every cut of a frame is refused, and so is every change of one byte.
func TestVerifyCatchesEveryCutAndEveryByte(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 17 // every byte, in 15 of 255 ways
	}
	for _, s := range samples(t) {
		for n := range s.frame {
			if _, err := Verify(s.frame[:n:n], Limits{}); err == nil {
				t.Fatalf("%s cut to %d of %d bytes passes", s.name, n, len(s.frame))
			}
		}
		for at := range s.frame {
			old := s.frame[at]
			for x := 1; x < 256; x += step {
				s.frame[at] = old ^ byte(x)
				if _, err := Verify(s.frame, Limits{}); err == nil {
					t.Fatalf("%s with byte %d changed from %02x to %02x passes", s.name, at, old, old^byte(x))
				}
			}
			s.frame[at] = old
		}
	}
}

// A wrong byte under a right checksum is either found by the other checks or harmless: whatever passes can be read.
func TestWhatPassesCanBeRead(t *testing.T) {
	passed, refusedOnes := 0, 0
	for _, s := range samples(t) {
		for at := range s.frame {
			for _, x := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255, 3} {
				data := append([]byte(nil), s.frame...)
				data[at] ^= x
				reseal(data)
				v, err := Verify(data, Limits{})
				if err != nil {
					refusedOnes++
					continue
				}
				passed++
				sweep(&v)
			}
		}
	}
	if passed < 1000 || refusedOnes < 1000 {
		t.Errorf("%d changes pass and %d do not: the test does not reach what it is for", passed, refusedOnes)
	}
}

// Bytes at an odd address are copied once, and the copy is what is read.
func TestVerifyAtAnyAddress(t *testing.T) {
	for _, s := range samples(t) {
		want, err := Verify(s.frame, Limits{})
		check(t, err)
		for shift := range 9 {
			moved := append(alignedBytes(shift), s.frame...)
			moved = append(alignedBytes(len(moved) + 64)[:0], moved...)[shift:]
			v, err := Verify(moved, Limits{})
			if err != nil {
				t.Fatalf("%s at address %d: %v", s.name, shift, err)
			}
			if v.Copied() != (shift%8 != 0) {
				t.Errorf("%s at address %d: copied is %v", s.name, shift, v.Copied())
			}
			if describe(&v) != describe(&want) {
				t.Errorf("%s at address %d reads otherwise", s.name, shift)
			}
		}
	}
}

func TestHappyPathAllocatesNothing(t *testing.T) {
	for _, s := range samples(t) {
		if n := testing.AllocsPerRun(50, func() {
			v, err := Verify(s.frame, Limits{})
			if err != nil || v.Head().Kind == 0 || len(v.Float32s())+len(v.Keys())+len(v.Sections()) > 100 {
				t.Fatal("not verified")
			}
			if !SetSequence(s.frame, 5) {
				t.Fatal("not numbered")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", s.name, n)
		}
	}
	f, err := NewFrame(Layout{Kind: KindSparse, Values: 4096, Keys: 1024, Sections: 1})
	check(t, err)
	if n := testing.AllocsPerRun(50, func() {
		if f.Reset(Layout{Kind: KindSparse, Values: 400, Keys: 100, Sections: 1}) != nil {
			t.Fatal("no room")
		}
		f.SetHead(Head{Chunks: 1, Lanes: 1, Node: lane.Node{Count: 1}})
		f.SetSection(0, Section{Dim: 1, Count: 100})
		f.SetSequence(3)
		f.Seal()
	}); n != 0 {
		t.Errorf("refilling: %v allocations", n)
	}
}

func FuzzVerify(f *testing.F) {
	for _, s := range samples(f) {
		for n := range s.frame {
			f.Add(s.frame[:n])
			data := append([]byte(nil), s.frame...)
			data[n] ^= 0xff
			f.Add(data)
		}
		f.Add(s.frame)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if v, err := Verify(data, Limits{}); err == nil {
			sweep(&v)
		}
		data = append([]byte(nil), data...)
		if !reseal(data) {
			return
		}
		v, err := Verify(data, Limits{})
		if err != nil {
			return
		}
		sweep(&v)
		if !SetSequence(data, 12345) {
			t.Fatal("a whole frame has no sequence")
		}
		if _, err := Verify(data, Limits{}); err != nil {
			t.Fatalf("numbering breaks the frame: %v", err)
		}
	})
}
