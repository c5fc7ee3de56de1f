package trainer

import (
	"fmt"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Gradients that are given by rows, by bags or by both in turn give equal bits, for any number of trainers and shards.
func TestRowsAndBagsGiveEqualBits(t *testing.T) {
	const lanes, batches = 6, 7
	want, losses := toyOutcome(t, lanes, batches)
	for shards := 1; shards <= 3; shards++ {
		server := startServer(t, shards)
		for _, trainers := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%d shards/%d trainers", shards, trainers), func(t *testing.T) {
				job := toyJob(fmt.Sprintf("forms-%d", trainers), trainers, lanes, schema.ApplyUpdate)
				checkOutcomes(t, trainAll(t, testConfig(t, server), job, batches), want, losses)
			})
		}
		server.Close()
	}
}

// Bags by hand: two lanes of one node, keys 7, 8 and 9 (local ids 0, 1, 2) on two shards, key 8 alone on the second.
func TestSharesLiteral(t *testing.T) {
	s, _ := handShares(t, true, 100)
	check := func(shard int, want ...scatterPiece) schema.View {
		t.Helper()
		chunks := s.share(shard)
		if len(chunks) != 1 || !slices.Equal(chunks[0], want) {
			t.Fatalf("shard %d is sent %v, want %v", shard, chunks, want)
		}
		return filled(t, s, shard, chunks[0])
	}
	v := check(0, scatterPiece{piece{0, 0, 0, 2}, 0, 0, 3}, scatterPiece{piece{0, 0, 0, 1}, 1, 0, 1})
	if !slices.Equal(v.Keys(), []uint64{7, 7, 9, 9}) || !slices.Equal(v.Offsets(), []uint32{0, 2, 0}) ||
		!slices.Equal(v.Float32s(), []float32{1, 2, 3, 4, 5, 6}) ||
		!slices.Equal(v.Bags(), []schema.Bags{{Lane: 0, Count: 2}, {Lane: 1, Count: 1}}) {
		t.Errorf("shard 0: keys %v offsets %v values %v bags %v", v.Keys(), v.Offsets(), v.Float32s(), v.Bags())
	}
	v = check(1, scatterPiece{piece{0, 0, 0, 1}, 0, 0, 1}, scatterPiece{piece{0, 0, 0, 1}, 1, 0, 1})
	if !slices.Equal(v.Keys(), []uint64{8, 8}) || !slices.Equal(v.Offsets(), []uint32{0, 0}) ||
		!slices.Equal(v.Float32s(), []float32{3, 4, 5, 6}) {
		t.Errorf("shard 1: keys %v offsets %v values %v", v.Keys(), v.Offsets(), v.Float32s())
	}
}

// handShares are, as bags or in the smaller form, lane 0's bags {7, 7}, {9, 8} and {} and lane 1's bag {8, 9}, with gradients {1, 2} {3, 4} and {5, 6}.
func handShares(t *testing.T, asBags bool, valuesMax int) (*scatter, *rowSums) {
	t.Helper()
	keys := []uint64{7, 8, 9}
	owners := newRouting([]int{2}, 2, valuesMax, func(_ int, key uint64) int { return int(key+1) % 2 })
	owners.assign([][]uint64{keys})
	plan := newLanePlan(0, 2, 2)
	plan.present([]int{3, 1})
	sums := newRowSums(testBackend(t), 2, newBagGrads(schema.DTypeFloat32, plan, owners, make([]schema.TableSpec, 1)),
		[]int{2})
	sums.count = func(int) int { return len(keys) }
	sums.reset()
	sums.begin(0, plan.lanes[0])
	err := sums.addBags(0, cuda.Sum, []int64{0, 0, 2, 1}, []int64{0, 2, 4, 4}, []float32{1, 2, 3, 4, 9, 9})
	if err == nil {
		err = sums.end()
	}
	sums.begin(1, plan.lanes[1])
	if err == nil {
		err = sums.addBags(0, cuda.Mean, []int64{1, 2}, []int64{0, 2}, []float32{10, 12})
	}
	if err == nil {
		err = sums.end()
	}
	sums.bags.form[0][0] = sums.bags.form[0][0] || asBags
	s := newScatter(sums, newRouting([]int{2}, 2, valuesMax, nil), nil, func(int) []uint64 { return keys })
	if err == nil {
		err = s.assign(0, owners)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, sums
}

func filled(t *testing.T, s *scatter, shard int, pieces []scatterPiece) schema.View {
	t.Helper()
	f, err := schema.NewFrame(s.layout(shard, pieces))
	if err != nil {
		t.Fatal(err)
	}
	f.SetHead(schema.Head{Chunks: 1, Node: lane.Node{Count: 2}, Lanes: 2, Weight: 4})
	s.fill(f, shard, pieces)
	v, err := schema.Verify(f.Seal(), schema.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The bytes by which the form is chosen are those of sections, keys, offsets and values in the frames of each form.
func TestFormBytesAreThoseOfFrames(t *testing.T) {
	count := func(asBags bool) (bytes int) {
		s, _ := handShares(t, asBags, 100)
		for shard := range 2 {
			for _, pieces := range s.share(shard) {
				v := filled(t, s, shard, pieces)
				bytes += 16*len(v.Sections()) + 8*len(v.Bags()) + 8*len(v.Keys()) + 4*len(v.Offsets()) + len(v.Values())
			}
		}
		return bytes
	}
	_, sums := handShares(t, true, 100)
	rows, bags := sums.bags.bytes(0, 0, 2, 2, 3)
	if got := count(true); got != bags {
		t.Errorf("%d bytes of bags, and %d in the frames", bags, got)
	}
	// Three rows, on two shards, are 3 * (8 + 8) + 2 * 16, the smaller form.
	if rows != 80 || bags <= rows {
		t.Errorf("%d bytes of rows and %d of bags, want 80 and more", rows, bags)
	}
	if got := count(false); got != rows {
		t.Errorf("%d bytes of rows, and %d in the frames of the smaller form", rows, got)
	}
}

// In 16 bits the form shows in the bits, so that the choice may not depend on the number of shards: it is that of one.
func TestFormOfHalvesIgnoresShards(t *testing.T) {
	_, sums := handShares(t, true, 100)
	sums.bags.dtype = schema.DTypeBFloat16
	// Rows: 3 keys of 12 bytes and a section of 16. Bags: 6 positions of 8, 3 bags of 8, a section of 24 for each lane.
	if rows, bags := sums.bags.bytes(0, 0, 2, 2, 3); rows != 52 || bags != 120 {
		t.Errorf("%d bytes of rows and %d of bags, want 52 and 120", rows, bags)
	}
}

// Of a batch before only the rows of bags without keys are cleared: the others are written when they arrive.
func TestEmptyBagsAreZero(t *testing.T) {
	b := laneBags{offsets: []int64{0, 0, 2, 2, 2, 3, 3}, pooled: make([]float32, 12)}
	for i := range b.pooled {
		b.pooled[i] = 7
	}
	b.clearEmpty(2)
	if want := []float32{0, 0, 7, 7, 0, 0, 0, 0, 7, 7, 0, 0}; !slices.Equal(b.pooled, want) {
		t.Errorf("pooled rows are %v, want %v", b.pooled, want)
	}
	(&laneBags{}).clearEmpty(2) // of a lane without samples
}
