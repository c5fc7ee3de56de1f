package round

import (
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Four lanes by hand: lanes 0 and 1 become one sum as soon as both are there, and their frames are given back; 2 waits
// for 3, which is left to the close. A frame that comes again is still known, and at the end everything is there, in any
// case.
func TestRowsAreSummedOnArrival(t *testing.T) {
	for _, summing := range []schema.Summing{schema.SummingFused, schema.SummingAtClose} {
		s, w := newBagRounds(t, 4, schema.DTypeFloat32)
		s.config.summing, s.config.held = summing, NewHeld(4)
		var leases []*lease
		add := func(l int, keys []uint64, values ...float32) *SparseChunk {
			c := bagChunk(t, schema.DTypeFloat32, lane.Node{First: lane.Lane(l), Count: 1}, 4, 0, 1,
				bagSection{keys: keys, values: values})
			leases = append(leases, &lease{})
			c.Contributor, c.Payload = l, leases[len(leases)-1]
			addBags(t, s, w, c)
			return c
		}
		released := func(want ...int) {
			t.Helper()
			got := make([]int, len(leases))
			for i, l := range leases {
				got[i] = l.released
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v: released %v times, want %v", summing, got, want)
			}
		}
		early := 1
		if summing == schema.SummingAtClose {
			early = 0
		}
		add(2, []uint64{1}, 100, 200)
		first := add(1, []uint64{1, 3}, 1, 2, 3, 4)
		add(0, []uint64{3}, 10, 20)
		released(0, early, early)
		if refused := s.Check(first, w); refused == nil || refused.Reason != schema.ReasonDuplicate {
			t.Errorf("a frame that was added up is %v when it comes again, want a duplicate", refused)
		}
		if held := s.HeldOf(0, 1); held != first.Bytes {
			t.Errorf("%d bytes count in the share of lane 1, want %d until the round closes", held, first.Bytes)
		}
		add(3, nil)
		released(0, early, early, 0)
		wantMerged(t, s, 0, []uint64{1, 3}, []float32{101, 202, 13, 24})
		wantMerged(t, s, 1, nil, nil)
		s.Close(w, 4)
		released(1, 1, 1, 1)
		if s.config.held.Bytes() != 0 {
			t.Errorf("%d bytes are held after the end", s.config.held.Bytes())
		}
	}
}

// Contributions of any nodes, by rows or by bags, in any number of chunks and any order, over several batches: what is
// added as it arrives has the bits of what is added at the end, and gives every frame back once.
func TestRowsOnArrivalAgainstAtClose(t *testing.T) {
	seed := rand.Uint64()
	for trial := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, trial))
		lanes := 1 + random.IntN(9)
		early, ew := newBagRounds(t, lanes, schema.DTypeFloat32)
		late, lw := newBagRounds(t, lanes, schema.DTypeFloat32)
		early.config.summing = schema.SummingFused
		late.config.summing = schema.SummingAtClose
		for _, s := range []*Sparse{early, late} {
			s.config.held = NewHeld(1)
		}
		for batch := range schema.Batch(3) {
			ew.reset()
			lw.reset()
			var leases []*lease
			for _, chunk := range randomRows(t, random, lanes) {
				leases = append(leases, &lease{})
				chunk.Head.Batch, chunk.Payload = batch, leases[len(leases)-1]
				addBags(t, early, ew, chunk)
				other := *chunk
				other.Payload = nil
				addBags(t, late, lw, &other)
			}
			for id := range schema.Table(len(bagTables)) {
				keys, sums, _, err := late.Merge(id, bagTables[id].Dim, 1)
				if err != nil {
					t.Fatal(err)
				}
				want := make([]float32, sums.Len())
				if err := late.config.backend.Copy(cuda.Float32s(want), sums); err != nil {
					t.Fatal(err)
				}
				wantMerged(t, early, id, keys, want)
			}
			early.Close(ew, 1)
			late.Close(lw, 1)
			for i, l := range leases {
				if l.released != 1 {
					t.Errorf("payload %d was released %d times", i, l.released)
				}
			}
			if early.config.held.Bytes() != 0 || len(early.open[0].sums) != 0 {
				t.Errorf("held after the end: %v", early)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d trial %d", seed, trial)
		}
	}
}

// randomRows are the chunks of contributions of disjoint nodes that cover the tree, shuffled.
func randomRows(t *testing.T, random *rand.Rand, lanes int) (all []*SparseChunk) {
	var lay func(n lane.Node)
	lay = func(n lane.Node) {
		if n.Count > 1 && random.IntN(4) > 0 {
			left, right := n.Split()
			lay(left)
			lay(right)
			return
		}
		var sections []bagSection
		key := uint64(0)
		for range random.IntN(4) {
			var s bagSection
			for range 1 + random.IntN(4) {
				key += 1 + random.Uint64N(8)
				s.keys = append(s.keys, key)
				s.values = append(s.values, random.Float32()-0.5, random.Float32())
			}
			if n.Count == 1 && len(sections) == 0 && random.IntN(3) == 0 {
				s.lane, s.starts, s.values = uint32(n.First), []uint32{0}, s.values[:2]
				sections = append(sections, s)
				break
			}
			sections = append(sections, s)
		}
		for i, s := range sections {
			all = append(all, bagChunk(t, schema.DTypeFloat32, n, lanes, schema.Chunk(i), schema.Chunk(len(sections)), s))
		}
		if len(sections) == 0 {
			all = append(all, bagChunk(t, schema.DTypeFloat32, n, lanes, 0, 1))
		}
	}
	lay(lane.Root(lanes))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}
