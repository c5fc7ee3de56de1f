package shard

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// FuzzShardStep steps a shard with well-sealed frames of any content, as a broken or hostile trainer might send them.
// It must neither panic nor fail, and what it refuses must not change it.
//
// The input is a byte that says in which job, and a sequence of frames of fuzzBytes bytes each.
func FuzzShardStep(f *testing.F) {
	for seed := range byte(20) {
		frames := make([]byte, 1+12*fuzzBytes)
		for i := range frames {
			frames[i] = byte(uint64(i+1) * (uint64(seed) + 77) * 0x9e3779b97f4a7c15 >> 40)
		}
		frames[0] = seed
		f.Add(frames)
	}
	f.Add(make([]byte, 1+10*fuzzBytes))
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) == 0 {
			return
		}
		job, s := fuzzShard(t, input[0])
		defer s.Close()
		input = input[1:]
		for n := 0; len(input) >= fuzzBytes && n < 64; n++ {
			from, frame := fuzzFrame(job, s.Batch(), input[:fuzzBytes])
			input = input[fuzzBytes:]
			v, err := schema.Verify(frame, schema.Limits{})
			if err != nil {
				continue
			}
			before := fingerprint(s)
			outputs, reason, err := s.Step(from, &v, nil)
			must(t, err)
			if reason != schema.ReasonOK && fingerprint(s) != before {
				t.Fatalf("a frame that was %v changed the shard", reason)
			}
			checkFrames(t, outputs)
			for s.Due() {
				outputs, err := s.Answer()
				must(t, err)
				checkFrames(t, outputs)
			}
		}
	})
}

func checkFrames(t *testing.T, outputs []Output) {
	t.Helper()
	for _, o := range outputs {
		if _, err := schema.Verify(o.Frame, schema.Limits{}); err != nil {
			t.Fatalf("the shard put out what is no frame: %v", err)
		}
	}
}

// The fuzzer's frames are such that a shard takes many of them and gets through batches.
func TestFuzzFramesAreTaken(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	counts, batches := map[schema.Reason]int{}, schema.Batch(0)
	b := make([]byte, fuzzBytes)
	for i := range 200 {
		job, s := fuzzShard(t, byte(i))
		for range 64 {
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			from, frame := fuzzFrame(job, s.Batch(), b)
			v, err := schema.Verify(frame, schema.Limits{})
			if err != nil {
				counts[schema.ReasonOf(err)]++
				continue
			}
			_, reason, err := s.Step(from, &v, nil)
			must(t, err)
			counts[reason]++
		}
		batches += s.Batch()
		s.Close()
	}
	if batches < 50 || counts[schema.ReasonOK] < 3000 || len(counts) < 12 {
		t.Errorf("%d batches after %v", batches, counts)
	}
}

// fuzzShard is a shard of a small job, and all of it. mode says of which consistency.
func fuzzShard(t testing.TB, mode byte) (*schema.Job, *Shard) {
	job := shardtest.SmallJob("fuzz", 2, 3)
	job.Parameters, job.Wire.Sparse = job.Parameters[1:], schema.SparseAuto
	switch mode % 4 {
	case 1:
		job.Consistency, job.Ahead = schema.ConsistencyBounded, 2
	case 2:
		job.Consistency = schema.ConsistencyAsync
	case 3:
		job.Consistency, job.Group, job.Tables = schema.ConsistencyGrouped, 1, nil
	}
	s, err := New(context.Background(), Config{Job: job, Placement: schema.NewPlacement(job, 1), RunID: shardtest.RunID,
		Generation: shardtest.Generation, Backend: shardtest.New(t, job).Backend, Contributors: round.ContributorsOf(job),
		StagedBytesMax: 1 << 20, ParkedBytesMax: 1 << 14})
	must(t, err)
	return job, s
}

const fuzzBytes = 40

// fuzzFrame builds a frame that says what the bytes say: of most fields what a trainer would, of each now and then
// something else.
func fuzzFrame(job *schema.Job, batch schema.Batch, b []byte) (from schema.Member, frame []byte) {
	odd := func(i int) bool { return b[i] >= 240 }
	kind := []schema.Kind{schema.KindDense, schema.KindSparse, schema.KindLookup, schema.KindPull}[b[0]%4]
	h := schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Batch: batch + schema.Batch(b[1]%2),
		Chunks: 1}
	nodes := []lane.Node{{First: 0, Count: 1}, {First: 1, Count: 1}, {First: 2, Count: 1}, {First: 1, Count: 2},
		{First: 0, Count: 3}}
	node := nodes[b[2]%3]
	from = "t0"
	if node.First > 0 {
		from = "t1"
	}
	if odd(3) {
		node, from = nodes[b[3]%5], schema.TrainerMember(int(b[4]%3))
	}
	if odd(5) {
		h.Batch, h.Bucket, h.Chunk, h.Chunks = schema.Batch(b[6]%8), schema.Bucket(b[7]%4), schema.Chunk(b[8]%3),
			schema.Chunk(b[9]%4)
		if b[6] == 255 {
			h.Batch = math.MaxUint64
		}
	}
	values, keys, sections := 0, 0, []schema.Section(nil)
	switch kind {
	case schema.KindDense:
		if values = 3; odd(10) {
			values = int(b[10] % 8)
		}
	case schema.KindPull:
		h.Chunks = 0
		if h.Bucket = schema.Bucket(b[7] % 3); b[11]%2 == 0 {
			keys, sections = 1,
				[]schema.Section{{Table: schema.Table(b[12] % 2), Dim: 5 + 11*uint32(b[12]%2), Count: 1 + uint64(b[13])}}
		} else if b[11]%4 == 1 {
			h.Flags = schema.FlagParameters
		}
	default:
		for i := range int(b[12] % 3) {
			n := int(b[13+i] % 4)
			sections = append(sections, schema.Section{Table: schema.Table(i), Dim: 5 + 11*uint32(i), Count: uint64(n)})
			keys += n
		}
	}
	var bags []schema.Bags
	if kind == schema.KindSparse {
		if b[14]%2 == 0 {
			bags = fuzzBags(sections, node, b)
		}
		for i, s := range sections {
			if bags != nil && bags[i].Count > 0 {
				s.Count = uint64(bags[i].Count)
			}
			values += int(s.Count) * int(s.Dim)
		}
		if h.Bucket++; b[15]%32 == 0 { // in two chunks
			h.Chunk, h.Chunks = schema.Chunk(b[15]>>7), 2
		}
	}
	if kind == schema.KindDense || kind == schema.KindSparse {
		h.Node, h.Lanes, h.Weight = node, uint16(job.Lanes), float64(node.Count)
		if odd(16) {
			h.Weight = float64(b[16] % 4)
		}
	}
	l := schema.Layout{Kind: kind, Values: 4 * values, Keys: keys, Sections: len(sections)}
	for _, s := range bags {
		l.Bags += int(s.Count)
	}
	return from, fuzzFill(l, h, sections, bags, b)
}

// fuzzBags makes sections with keys bags of one of the node's lanes.
func fuzzBags(sections []schema.Section, node lane.Node, b []byte) []schema.Bags {
	bags := make([]schema.Bags, len(sections))
	for i, s := range sections {
		if s.Count > 0 && b[21+i]%4 > 0 {
			bags[i] = schema.Bags{Lane: uint32(node.First) + uint32(b[20])%uint32(node.Count),
				Count: 1 + uint32(b[23+i])%uint32(s.Count)}
		}
	}
	return bags
}

// fuzzFill builds the frame with keys and values of the bytes.
func fuzzFill(l schema.Layout, h schema.Head, sections []schema.Section, bags []schema.Bags, b []byte) []byte {
	f, err := schema.NewFrame(l)
	if err != nil {
		panic(err) // the layouts above are all small and of their kinds
	}
	f.SetHead(h)
	copy(f.Sections(), sections)
	copy(f.Bags(), bags)
	offsets := f.Offsets()
	for _, s := range f.Bags() {
		for k := range s.Count {
			offsets[k] = k
		}
		offsets = offsets[s.Count:]
	}
	at := 0
	for i, s := range sections {
		key := uint64(b[17])
		for range min(int(s.Count), len(f.Keys())-at) {
			f.Keys()[at] = key % 60
			if key += 1 + uint64(b[18+at%8]%8); l.Bags > 0 && bags[i].Count > 0 {
				key = key * 37 % 61 // in no order
			}
			at++
		}
	}
	for i := range f.Float32s() {
		f.Float32s()[i] = float32(int16(binary.LittleEndian.Uint16(b[26+i%13:])))
	}
	if n := len(f.Float32s()); n > 0 && b[39] >= 250 {
		f.Float32s()[int(b[38])%n] = float32(math.NaN())
	}
	return f.Seal()
}
