package state

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

// flatOf is all that a table has at its version.
func flatOf(t testing.TB, a *Array) *flat {
	t.Helper()
	f := &flat{}
	must(t, a.Snapshot(1<<20, func(rows Rows) error { f.add(t, rows); return nil }))
	return f
}

// A round that is rolled back leaves rows, slots, marks and steps as they were, also where a copy is in progress, and
// the same round then gives the same bits.
func TestRollback(t *testing.T) {
	for name, o := range testOptimizers() {
		for seed := range uint64(6) {
			r := rand.New(rand.NewPCG(seed, 7))
			g, twin := newGroup(t, testBackend(t), o, 1, 1+r.IntN(9), false), newGroup(t, testBackend(t), o, 1, 3, false)
			a := g.owners[0]
			for v := range schema.Version(8) {
				before := flatOf(t, a)
				var c RowsCopy
				if r.IntN(2) == 0 {
					c = a.Copy(0, true)
				}
				g.apply(t, testWork(seed+1, v))
				a.Rollback()
				if c != nil {
					var got flat
					for rows, more := c.Next(40); more; rows, more = c.Next(40) {
						got.add(t, rows)
					}
					if c.Close(); !got.equal(before) {
						t.Fatalf("%s, seed %d: the copy of version %d is not what was there", name, seed, v)
					}
				}
				if !flatOf(t, a).equal(before) {
					t.Fatalf("%s, seed %d: version %d changed in a round that was rolled back", name, seed, v)
				}
				for _, each := range []*group{g, twin} {
					each.apply(t, testWork(seed, v))
					each.commit()
				}
				if !sameBits(g.all(t), twin.all(t)) {
					t.Fatalf("%s, seed %d: version %d differs after a round that was rolled back", name, seed, v+1)
				}
			}
		}
	}
}

// A round is rolled back wholly, however many of its rows were exchanged before the one that is not finite.
func TestRollbackAfterManyRows(t *testing.T) {
	const rows, dim = 3 * applyValues / 64, 64
	a := testArray(t, rows, dim, schema.Optimizer{Kind: schema.OptimizerSGD, LR: 4})
	keys, sums := make([]uint64, rows), make([]float32, rows*dim)
	for i := range keys {
		keys[i], sums[i*dim] = uint64(i), 1
	}
	sums[(rows-1)*dim+3] = math.MaxFloat32 // its step is not finite
	var bad *NonFiniteError
	if err := a.Apply(RowGradient{Keys: keys, Sums: cuda.Float32s(sums), Weight: 1, Scale: 1}); !errors.As(err, &bad) ||
		bad.name != `table "t", row 3071, column 3` {
		t.Fatalf("%v", err)
	}
	if a.rows[0] != -4 {
		t.Errorf("row 0 begins with %v in the open round, want -4", a.rows[0])
	}
	a.Rollback()
	if !slices.Equal(a.rows, make([]float32, rows*dim)) {
		t.Error("rows changed in a round that was rolled back")
	}
}

// The version before stays readable until the next round is committed, also where that is rolled back.
func TestReadPrevious(t *testing.T) {
	spec := schema.TableSpec{Name: "t", Rows: 10, Dim: 1, Partitions: 2, Init: schema.Zeros()}
	a, err := NewArray(t.Context(), ArrayConfig{Backend: testBackend(t), Spec: &spec, Here: everywhere, Columns: 1,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1}, Undo: true})
	must(t, err)
	defer a.Close()
	apply := func(key uint64, by float32) {
		must(t, a.Apply(RowGradient{Keys: []uint64{key}, Sums: cuda.Float32s([]float32{-by}), Weight: 1, Scale: 1}))
	}
	check := func(when string, previous, now []float32) {
		t.Helper()
		var was []float32
		must(t, a.ReadPrevious(func() error { was = gathered(t, a, 1, 3, 4, 5); return nil }))
		if is := gathered(t, a, 1, 3, 4, 5); !slices.Equal(was, previous) || !slices.Equal(is, now) {
			t.Errorf("%s: rows were %v and are %v, want %v and %v", when, was, is, previous, now)
		}
	}
	apply(3, 1)
	apply(4, 2)
	a.Commit()
	check("after a round", []float32{0, 0, 0}, []float32{1, 2, 0})
	apply(4, 10)
	apply(5, 20)
	a.Rollback()
	check("rolled back", []float32{0, 0, 0}, []float32{1, 2, 0})
	apply(4, 10)
	a.Commit()
	check("after two rounds", []float32{1, 2, 0}, []float32{1, 12, 0})
	a.Commit()
	check("after one without rows", []float32{1, 12, 0}, []float32{1, 12, 0})
}
