package packages

import (
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/examples/packages/corpus"
	"gradbus/lane"
	"gradbus/philox"
	"gradbus/schema"
)

func testBackend(t testing.TB) cuda.Backend {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newWorkload(t *testing.T, s Settings, data *corpus.Data) *Workload {
	t.Helper()
	w, err := NewWorkload(s, data, testBackend(t))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Ten examples in batches of at most four are three batches of 3, 3 and 4, in the order of the epoch's permutation.
func TestExamplesByHand(t *testing.T) {
	s := Defaults()
	s.Batch, s.Lanes, s.Seed = 4, 2, 7
	data := handMade(10, 1, 2)
	w := newWorkload(t, s, data)
	if got := s.BatchesPerEpoch(10); got != 3 {
		t.Fatalf("%d batches an epoch", got)
	}
	if got := s.Batches(data); got != 12 {
		t.Errorf("%d batches in 4 epochs", got)
	}
	order := philox.Permutation(7, 1, 10)
	for _, c := range []struct {
		batch schema.Batch
		lane  lane.Lane
		want  []int32
	}{{3, 0, order[0:1]}, {3, 1, order[1:3]}, {4, 0, order[3:4]}, {4, 1, order[4:6]}, {5, 0, order[6:8]},
		{5, 1, order[8:10]}} {
		if got := w.examples(c.batch, c.lane); !slices.Equal(got, c.want) {
			t.Errorf("batch %d lane %d: %v, want %v", c.batch, c.lane, got, c.want)
		}
	}
}

// An epoch has every example once, in an order that the number of lanes does not change; batches are of nearly one
// size.
func TestExamplesOfEpochs(t *testing.T) {
	for _, c := range []struct{ train, batch, lanes int }{{1, 1, 1}, {10, 256, 4}, {1000, 64, 1}, {1000, 64, 7},
		{1001, 10, 16}, {97, 1, 3}} {
		s := Defaults()
		s.Batch, s.Lanes = c.batch, c.lanes
		w := newWorkload(t, s, handMade(c.train, 1, 2))
		per := s.BatchesPerEpoch(c.train)
		for epoch := range uint64(3) {
			var all []int32
			least, most := c.train, 0
			for b := range per {
				size := 0
				for l := range c.lanes {
					chosen := w.examples(schema.Batch(epoch*uint64(per)+uint64(b)), lane.Lane(l))
					all, size = append(all, chosen...), size+len(chosen)
				}
				least, most = min(least, size), max(most, size)
			}
			if !slices.Equal(all, philox.Permutation(s.Seed, epoch, c.train)) {
				t.Errorf("%+v epoch %d: not the epoch's permutation", c, epoch)
			}
			if most > c.batch || most-least > 1 || least == 0 {
				t.Errorf("%+v epoch %d: batches of %d to %d", c, epoch, least, most)
			}
		}
	}
}

// Keys are appended, lane after lane; looking one batch ahead, across an epoch's end, does not disturb the batch in
// hand.
func TestKeysAhead(t *testing.T) {
	s := Defaults()
	s.Batch, s.Lanes = 4, 2
	data := handMade(10, 1, 2)
	w := newWorkload(t, s, data)
	last := schema.Batch(s.BatchesPerEpoch(10) - 1)
	before := slices.Clone(w.examples(last, 1))
	keys := [][]uint64{{99}}
	n, keys := w.Keys(last+1, 0, keys)
	want := []uint64{99}
	first := philox.Permutation(s.Seed, 1, 10)[:1]
	for _, i := range first {
		want = append(want, data.Train.KeysOf(int(i))...)
	}
	if n != len(first) || !slices.Equal(keys[0], want) {
		t.Errorf("%d samples, keys %v, want %v", n, keys[0], want)
	}
	if got := w.examples(last, 1); !slices.Equal(got, before) {
		t.Errorf("batch %d lane 1: %v after looking ahead, %v before", last, got, before)
	}
}

// Each example is a bag, one without keys too.
func TestBags(t *testing.T) {
	s := Defaults()
	s.Batch, s.Lanes = 10, 1
	data := handMade(10, 1, 2) // examples of 0 to 3 keys
	w := newWorkload(t, s, data)
	want := []int64{0}
	for _, i := range philox.Permutation(s.Seed, 0, 10) {
		want = append(want, want[len(want)-1]+int64(i%4))
	}
	if got := w.Bags(0, 0, [][]int64{nil}); !slices.Equal(got[0], want) {
		t.Errorf("offsets %v, want %v", got[0], want)
	}
}
