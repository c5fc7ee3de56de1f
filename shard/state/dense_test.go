package state

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

func wants(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// testDense is two parameters of 40 and 23 values, of which the second has an optimizer of its own, cut into chunks of
// at most so many values.
type testDense struct {
	*Dense
	values [][][]float32 // [version % 2][chunk]
}

func newTestDense(t testing.TB, backend cuda.Backend, o schema.Optimizer, chunk int, inPlace bool) *testDense {
	t.Helper()
	d := &testDense{values: make([][][]float32, 2)}
	own := schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.3}
	c := DenseConfig{Backend: backend, Lanes: 1, InPlace: inPlace,
		Values: func(i int, v schema.Version) []float32 { return d.values[v%2][i] }}
	for _, p := range []struct {
		name     string
		elements int
		of       *schema.Optimizer
	}{{"a", 40, &o}, {"b", 23, &own}} {
		for from := 0; from < p.elements; from += chunk {
			n := min(chunk, p.elements-from)
			c.Chunks = append(c.Chunks, Chunk{Elements: n, Optimizer: p.of,
				Pieces: []Piece{{Name: p.name, Init: schema.Normal(1), Seed: 3, From: from, Elements: n}}})
			for v := range d.values {
				d.values[v] = append(d.values[v], make([]float32, n))
			}
		}
	}
	var err error
	d.Dense, err = NewDense(c)
	must(t, err)
	must(t, d.Draw(t.Context()))
	t.Cleanup(d.Close)
	return d
}

// step makes the next version of every chunk: kept where nobody has samples.
func (d *testDense) step(t testing.TB, seed uint64, v schema.Version) {
	t.Helper()
	for i := range d.chunks {
		d.stepChunk(t, i, seed, v)
	}
}

func (d *testDense) stepChunk(t testing.TB, i int, seed uint64, v schema.Version) {
	t.Helper()
	if rand.New(rand.NewPCG(seed, uint64(v))).IntN(5) == 0 {
		d.Keep(i)
		return
	}
	p := d.config.Chunks[i].Pieces[0]
	r := rand.New(rand.NewPCG(seed<<8|uint64(p.Name[0]), uint64(v)))
	g := make([]float32, 40)
	for k := range g {
		g[k] = float32(r.NormFloat64())
	}
	must(t, d.Average(i, 3, []cuda.Term{{Count: 1, Values: cuda.Float32s(g[p.From : p.From+p.Elements])}}))
}

// at is all values of a version, as a snapshot of it says, and steps and slots.
func (d *testDense) at(t testing.TB, v schema.Version) (values, slots []float32, steps []uint64) {
	t.Helper()
	var s Snapshot
	must(t, d.Snapshot(v, s.AddTensor))
	for _, x := range s.Tensors {
		values = append(values, x.Values...)
		for _, slot := range x.Slots {
			slots = append(slots, slot.Values...)
		}
		if x.From == 0 {
			steps = append(steps, x.Steps)
		}
	}
	return values, slots, steps
}

// A snapshot of dense state at any version, with some of its chunks at the next one already or not, goes on as if
// nothing had happened, however it is cut into chunks.
func TestDenseGoesOnFromASnapshot(t *testing.T) {
	backend := testBackend(t)
	for name, o := range testOptimizers() {
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, 2))
			first := newTestDense(t, backend, o, 1+r.IntN(45), seed%4 == 3)
			at, end := schema.Version(r.IntN(8)), schema.Version(10)
			for v := range at {
				first.step(t, seed, v)
			}
			ahead := 0
			if !first.config.InPlace {
				for ahead < len(first.chunks) && r.IntN(2) == 0 {
					first.stepChunk(t, ahead, seed, at)
					ahead++
				}
			}
			var s Snapshot
			must(t, first.Snapshot(at, s.AddTensor))
			second := newTestDense(t, backend, o, 1+r.IntN(45), r.IntN(2) == 0)
			second.step(t, seed+1, 0) // what was there is forgotten
			restore := second.Restore()
			r.Shuffle(len(s.Tensors), func(i, j int) { s.Tensors[i], s.Tensors[j] = s.Tensors[j], s.Tensors[i] })
			for _, x := range s.Tensors {
				must(t, restore.Tensor(x))
			}
			must(t, restore.Done())
			if at > 0 && second.keeps(at-1) || !second.keeps(at) {
				t.Errorf("%s seed %d: restored at version %d, it has the one before, or not that", name, seed, at)
			}
			for i := ahead; i < len(first.chunks); i++ {
				first.stepChunk(t, i, seed, at)
			}
			second.step(t, seed, at)
			for v := at + 1; v < end; v++ {
				first.step(t, seed, v)
				second.step(t, seed, v)
			}
			v1, _, n1 := first.at(t, end)
			v2, _, n2 := second.at(t, Newest)
			if !sameBits(v1, v2) || !slices.Equal(n1, n2) {
				t.Errorf("%s seed %d: values differ after a snapshot of version %d", name, seed, at)
			}
		}
	}
}

// What does not fit, or is not there any more, is refused by name.
func TestDenseRefusesSnapshots(t *testing.T) {
	backend := testBackend(t)
	o := testOptimizers()["momentum"]
	d := newTestDense(t, backend, o, 10, false)
	none := func(Tensor) error { return nil }
	wants(t, "a version to come", d.Snapshot(1, none), ErrVersion)
	d.step(t, 1, 0)
	d.step(t, 1, 1)
	wants(t, "a version that is gone", d.Snapshot(0, none), ErrVersion)
	must(t, d.Snapshot(1, none))
	var s Snapshot
	must(t, d.Snapshot(Newest, s.AddTensor))
	r := d.Restore()
	for _, x := range s.Tensors[1:] {
		must(t, r.Tensor(x))
	}
	wants(t, "a piece less", r.Done(), ErrSnapshot)
	must(t, r.Tensor(s.Tensors[0]))
	must(t, r.Done())
	must(t, r.Tensor(s.Tensors[2]))
	wants(t, "a piece twice", r.Done(), ErrSnapshot)
	changed := s.Tensors[1]
	changed.Slots = nil
	wants(t, "no slots", d.Restore().Tensor(changed), ErrSnapshot)
	whole := newTestDense(t, backend, o, 64, false).Restore()
	must(t, whole.Tensor(s.Tensors[0]))
	s.Tensors[1].Version++
	wants(t, "another version", whole.Tensor(s.Tensors[1]), ErrSnapshot)
}
