package state

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

// flat is pieces of a table in a row, however they were cut.
type flat struct {
	keys   []uint64
	values []float32
	slots  map[string][]float32
	last   []int64
	at     string // version and steps, of all alike
}

func (f *flat) add(t testing.TB, r Rows) {
	t.Helper()
	at := fmt.Sprintf("version %d steps %d", r.Version, r.Steps)
	if f.slots == nil {
		f.slots, f.at = map[string][]float32{}, at
	}
	if f.at != at {
		t.Fatalf("a piece of %s after one of %s", at, f.at)
	}
	f.keys, f.values, f.last = append(f.keys, r.Keys...), append(f.values, r.Values...), append(f.last, r.Last...)
	for _, s := range r.Slots {
		f.slots[s.Name] = append(f.slots[s.Name], s.Values...)
	}
}

func (f *flat) equal(g *flat) bool {
	same := f.at == g.at && slices.Equal(f.keys, g.keys) && sameBits(f.values, g.values) && slices.Equal(f.last, g.last) &&
		len(f.slots) == len(g.slots)
	for name, values := range f.slots {
		same = same && sameBits(values, g.slots[name])
	}
	return same
}

// A copy has the rows, slots and marks of the version at which it began, whatever steps and readers do meanwhile.
func TestRowsCopyWhileStepsGoOn(t *testing.T) {
	backend := testBackend(t)
	for name, o := range testOptimizers() {
		for seed := range uint64(6) {
			r := rand.New(rand.NewPCG(seed, 4))
			g := newGroup(t, backend, o, 1+r.IntN(3), 1+r.IntN(9), seed%2 == 0)
			next := schema.Version(0)
			step := func() {
				g.apply(t, testWork(seed, next))
				g.commit()
				next++
			}
			for range r.IntN(4) {
				step()
			}
			want, got, copies := make([]flat, len(g.owners)), make([]flat, len(g.owners)), make([]RowsCopy, len(g.owners))
			for i, a := range g.owners {
				must(t, a.Snapshot(1<<20, func(rows Rows) error { want[i].add(t, rows); return nil }))
				copies[i] = a.Copy(0, true)
			}
			for open := len(copies); open > 0; {
				for i, c := range copies {
					if c == nil {
						continue
					}
					rows, more := c.Next(1 + r.IntN(40))
					if more {
						got[i].add(t, rows)
						continue
					}
					c.Close()
					copies[i], open = nil, open-1
				}
				if r.IntN(2) == 0 {
					step()
				}
				if r.IntN(3) == 0 {
					g.all(t) // readers may make up for steps
				}
			}
			for i := range want {
				if !want[i].equal(&got[i]) {
					t.Errorf("%s, seed %d: copy of owner %d is not what was there", name, seed, i)
				}
			}
		}
	}
}

// So has a copy of which stretches are asked for, in any order and more than once.
func TestRowsCopyInStretches(t *testing.T) {
	for name, o := range testOptimizers() {
		for seed := range uint64(6) {
			r := rand.New(rand.NewPCG(seed, 5))
			g := newGroup(t, testBackend(t), o, 1, 1+r.IntN(9), seed%2 == 0)
			a := g.owners[0]
			next := schema.Version(0)
			step := func() {
				g.apply(t, testWork(seed, next))
				g.commit()
				next++
			}
			step()
			var want, got flat
			must(t, a.Snapshot(1<<20, func(rows Rows) error { want.add(t, rows); return nil }))
			c := a.Copy(0, true)
			partitions := a.config.Spec.Partitions
			parts := make([]flat, partitions)
			for _, p := range r.Perm(partitions) {
				for cursor := uint64(0); a.Left(schema.Partition(p), cursor) > 0; {
					rows := c.Stretch(schema.Partition(p), cursor, 1+r.IntN(40))
					step()
					again := c.Stretch(schema.Partition(p), cursor, 1+r.IntN(40))
					if again.Keys[0] != rows.Keys[0] || !sameBits(again.Values[:testDim], rows.Values[:testDim]) {
						t.Errorf("%s, seed %d: row %d is another when it is asked for again", name, seed, rows.Keys[0])
					}
					parts[p].add(t, rows)
					cursor = rows.Keys[len(rows.Keys)-1] + 1
				}
			}
			c.Close()
			for i := range parts {
				f := &parts[i]
				rows := Rows{Keys: f.keys, Values: f.values, Last: f.last, Version: 1, Steps: 1}
				for slot, values := range f.slots {
					rows.Slots = append(rows.Slots, Slot{slot, values})
				}
				got.add(t, rows)
				if len(f.keys) > 0 && f.at != want.at {
					t.Errorf("%s, seed %d: partition %d is of %s, want %s", name, seed, i, f.at, want.at)
				}
			}
			if got.at = want.at; !want.equal(&got) {
				t.Errorf("%s, seed %d: stretches are not what was there", name, seed)
			}
		}
	}
}

// The undo log has what has changed before it was copied, and nothing of a copy that has ended.
func TestRowsCopyKeepsWhatItNeeds(t *testing.T) {
	g := newGroup(t, testBackend(t), testOptimizers()["adam"], 1, 4, false)
	a := g.owners[0]
	step := func(seed uint64) {
		w := testWork(seed, 1)
		for ; w == nil; seed++ {
			w = testWork(seed, 1)
		}
		g.apply(t, w)
		g.commit()
	}
	c := a.Copy(0, true)
	if c.Bytes() != 0 {
		t.Errorf("%d bytes before anything has changed", c.Bytes())
	}
	step(1)
	kept := c.Bytes()
	if least := int64(3 * testDim * 4); kept < least {
		t.Errorf("%d bytes for changed rows with two slots, want at least %d", kept, least)
	}
	for _, more := c.Next(1 << 20); more; _, more = c.Next(1 << 20) {
	}
	step(2)
	if c.Bytes() != kept {
		t.Errorf("%d bytes of rows that were copied already", c.Bytes()-kept)
	}
	c.Close()
	if a.copying != nil {
		t.Error("a copy that was closed goes on")
	}
}

// A copy of dense state has the version that it was asked for, however steps of chunks and the copy take turns.
func TestDenseCopyWhileStepsGoOn(t *testing.T) {
	backend := testBackend(t)
	for name, o := range testOptimizers() {
		for seed := range uint64(6) {
			r := rand.New(rand.NewPCG(seed, 5))
			d := newTestDense(t, backend, o, 1+r.IntN(20), false)
			at := schema.Version(r.IntN(5))
			for v := range at {
				d.step(t, seed, v)
			}
			var want Snapshot
			must(t, d.Snapshot(at, want.AddTensor))
			for i := range r.IntN(len(d.chunks)) { // some may be at the next version already
				d.stepChunk(t, i, seed, at)
			}
			c, err := d.Copy(at, 0, true)
			must(t, err)
			if got := copyWhileStepping(t, d, c, r, seed); !slices.EqualFunc(want.Tensors, got.Tensors, sameTensor) {
				t.Errorf("%s, seed %d: the copy is not what was there", name, seed)
			}
		}
	}
}

// copyWhileStepping takes all pieces of a copy, and steps some chunks after each.
func copyWhileStepping(t *testing.T, d *testDense, c *DenseCopy, r *rand.Rand, seed uint64) (got Snapshot) {
	defer c.Close()
	for pieces, more := c.Next(); more; pieces, more = c.Next() {
		for _, p := range pieces {
			must(t, got.AddTensor(p))
		}
		for i := range d.chunks {
			for range r.IntN(3) {
				d.stepChunk(t, i, seed, d.Version(i))
			}
		}
	}
	return got
}

// Chunks that are at versions of their own are copied as they are, while later ones are made.
func TestDenseCopyOfAMoment(t *testing.T) {
	const number = 1000
	for name, o := range testOptimizers() {
		for seed := range uint64(6) {
			r := rand.New(rand.NewPCG(seed, 6))
			d := newTestDense(t, testBackend(t), o, 1+r.IntN(20), false)
			most := map[string]uint64{}
			for i := range d.chunks {
				for range r.IntN(5) {
					d.stepChunk(t, i, seed, d.Version(i))
				}
			}
			var want Snapshot
			must(t, d.Snapshot(Newest, want.AddTensor))
			for _, p := range want.Tensors {
				most[p.Name] = max(most[p.Name], p.Steps)
			}
			for i := range want.Tensors {
				want.Tensors[i].Version, want.Tensors[i].Steps = number, most[want.Tensors[i].Name]
			}
			got := copyWhileStepping(t, d, d.copyNow(number), r, seed)
			if !slices.EqualFunc(want.Tensors, got.Tensors, sameTensor) {
				t.Errorf("%s, seed %d: the copy is not what was there", name, seed)
			}
		}
	}
}

// What goes on from a moment has the learning rate of the steps that were done by then, and not of its number.
func TestRatesGoOnFromAMoment(t *testing.T) {
	const number = 3
	o := schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.5,
		Schedule: &schema.Schedule{Kind: schema.ScheduleLinear, Total: 100, Final: 0.01}}
	first, second := newTestDense(t, testBackend(t), o, 50, false), newTestDense(t, testBackend(t), o, 50, false)
	gradient := make([]float32, 40)
	for i := range gradient {
		gradient[i] = float32(i) + 1
	}
	step := func(d *testDense) {
		must(t, d.Average(0, 1, []cuda.Term{{Count: 1, Values: cuda.Float32s(gradient)}}))
	}
	for range 50 {
		step(first)
	}
	restore, c := second.Restore(), first.copyNow(number)
	for pieces, more := c.Next(); more; pieces, more = c.Next() {
		for _, p := range pieces {
			must(t, restore.Tensor(p))
		}
	}
	must(t, restore.Done())
	step(first)
	step(second)
	if a, b := first.values[first.Version(0)%2][0], second.values[second.Version(0)%2][0]; !sameBits(a, b) ||
		second.Version(0) != number+1 {
		t.Errorf("version %d has %v, want %v", second.Version(0), b[:3], a[:3])
	}
}

func sameTensor(a, b Tensor) bool {
	return a.Name == b.Name && a.From == b.From && a.Version == b.Version && a.Steps == b.Steps &&
		sameBits(a.Values, b.Values) &&
		slices.EqualFunc(a.Slots, b.Slots, func(x, y Slot) bool { return x.Name == y.Name && sameBits(x.Values, y.Values) })
}

func TestDenseCopyOfAVersionThatIsNotKept(t *testing.T) {
	d := newTestDense(t, testBackend(t), testOptimizers()["momentum"], 7, false)
	d.step(t, 1, 0)
	d.step(t, 1, 1)
	for _, v := range []schema.Version{0, 3} {
		if _, err := d.Copy(v, 0, true); !errors.Is(err, ErrVersion) {
			t.Errorf("copy of version %d: %v, want %v", v, err, ErrVersion)
		}
	}
}
