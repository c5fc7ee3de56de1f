package state

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testBackend(t testing.TB) cuda.Backend {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

func everywhere(schema.Partition) bool { return true }

// testArray is a table of rows of dim zeros in four partitions.
func testArray(t testing.TB, rows uint64, dim int, o schema.Optimizer) *Array {
	t.Helper()
	spec := &schema.TableSpec{Name: "t", Rows: rows, Dim: dim, Partitions: 4, Init: schema.Zeros()}
	a, err := NewArray(t.Context(), ArrayConfig{Backend: testBackend(t), Spec: spec, Optimizer: o, Here: everywhere,
		Columns: dim, Undo: true})
	must(t, err)
	t.Cleanup(a.Close)
	return a
}

// gathered is the rows of keys.
func gathered(t testing.TB, a Table, dim int, keys ...uint64) []float32 {
	t.Helper()
	rows := make([]float32, len(keys)*dim)
	must(t, a.Gather(keys, rows))
	return rows
}

// Rows of an open round are not seen before it is committed; momentum begins with a row's first step.
func TestRowsOfAnOpenRound(t *testing.T) {
	a := testArray(t, 10, 2, schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.5, Momentum: 0.5})
	step := func(key uint64, x, y, weight float32) {
		t.Helper()
		must(t, a.Apply(RowGradient{Keys: []uint64{key}, Sums: cuda.Float32s([]float32{x, y}), Weight: weight, Scale: 1}))
	}
	step(7, 2, 4, 2)
	step(3, 1, 1, 1)
	if got := gathered(t, a, 2, 7, 3); !slices.Equal(got, make([]float32, 4)) {
		t.Errorf("rows are %v before the commit", got)
	}
	a.Commit()
	if got := gathered(t, a, 2, 7, 3, 0); !slices.Equal(got, []float32{-0.5, -1, -0.5, -0.5, 0, 0}) {
		t.Errorf("rows are %v", got)
	}
	step(7, 0, 0, 1) // momentum 0.5*{1,2}
	a.Commit()
	if got := gathered(t, a, 2, 7); !slices.Equal(got, []float32{-0.75, -1.5}) || a.Version() != 2 {
		t.Errorf("row is %v at version %d", got, a.Version())
	}
	out := make([]float32, 4)
	must(t, a.Pool(Bags{Mode: cuda.Mean, Keys: []uint64{7, 3, 7}, Offsets: []uint32{0, 2}}, out))
	if !slices.Equal(out, []float32{-0.625, -1, -0.75, -1.5}) {
		t.Errorf("bags are %v", out)
	}
}

// A scan gives every row once, partitions ascending and keys ascending within each.
func TestScanIsInOrder(t *testing.T) {
	a := testArray(t, 100, 3, schema.Optimizer{LR: 1})
	for key := range uint64(100) {
		must(t,
			a.Apply(RowGradient{Keys: []uint64{key}, Sums: cuda.Float32s([]float32{-float32(key), 0, 0}), Weight: 1, Scale: 1}))
	}
	a.Commit()
	var s Scanner
	var last struct {
		p   schema.Partition
		key uint64
	}
	seen := 0
	must(t, s.Scan(a, a.config.Spec, 20, func(p schema.Partition, keys []uint64, rows []float32) error {
		if len(keys) > 6 || len(rows) != 3*len(keys) {
			t.Errorf("%d keys and %d values at once", len(keys), len(rows))
		}
		for i, key := range keys {
			if schema.PartitionOf(key, 4) != p || p < last.p || seen > 0 && p == last.p && key <= last.key ||
				rows[3*i] != float32(key) {
				t.Errorf("partition %d key %d row %v after partition %d key %d", p, key, rows[3*i:3*i+3], last.p, last.key)
			}
			last.p, last.key = p, key
			seen++
		}
		return nil
	}))
	if seen != 100 {
		t.Errorf("%d rows", seen)
	}
}

// Chunks lie where their owner wants them; a version without samples is the one before.
func TestDenseSteps(t *testing.T) {
	values := [2][]float32{{1, 2, 3}, make([]float32, 3)}
	sgd := schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.5, Momentum: 0.5}
	d, err := NewDense(DenseConfig{Backend: testBackend(t), Lanes: 2, Chunks: []Chunk{{Elements: 3, Optimizer: &sgd}},
		Values: func(_ int, v schema.Version) []float32 { return values[v%2] }})
	must(t, err)
	defer d.Close()
	terms := []cuda.Term{{First: 0, Count: 1, Values: cuda.Float32s([]float32{1, 0, 2})},
		{First: 1, Count: 1, Values: cuda.Float32s([]float32{3, 0, 0})}}
	must(t, d.Average(0, 2, terms))
	if want := []float32{0, 2, 2.5}; !slices.Equal(values[1], want) {
		t.Errorf("%v, want %v", values[1], want)
	}
	d.Keep(0)
	must(t, d.Step(0, 1, []float32{0, 0, 0}, 1)) // momentum 0.5*{2,0,1}
	if want := []float32{-0.5, 2, 2.25}; !slices.Equal(values[1], want) || d.Version(0) != 3 {
		t.Errorf("%v at version %d, want %v", values[1], d.Version(0), want)
	}
	d.Set(0, []float32{7, 8, 9})
	if want := []float32{7, 8, 9}; !slices.Equal(values[0], want) || d.Version(0) != 4 {
		t.Errorf("%v at version %d, want %v", values[0], d.Version(0), want)
	}
}

// fading is a context that ends after a number of looks at it.
type fading struct {
	context.Context
	looks atomic.Int64
}

func (f *fading) Err() error {
	if f.looks.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// A job may end while its tables are drawn, and others wait for that: it must not take as long as the largest
// partition.
func TestDrawingEndsWithItsContext(t *testing.T) {
	spec := &schema.TableSpec{Name: "t", Rows: 100_000, Dim: 1, Partitions: 1, Init: schema.Uniform(1)}
	a := testArray(t, 1, 1, schema.Optimizer{LR: 1})
	a.places, a.config.Spec, a.rows = newPlaces(spec, everywhere), spec, make([]float32, 100_000)
	ctx := &fading{Context: context.Background()}
	ctx.looks.Store(5)
	if err := a.draw(ctx); err == nil || a.rows[len(a.rows)-1] != 0 || a.rows[0] == 0 {
		t.Errorf("%v: drawn to the end after the context had ended, or not at all", err)
	}
}

// A batch allocates nothing, whatever the optimizer: neither a dense step nor a round over rows.
func TestStepsAllocateNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates; make test-all runs this without it")
	}
	keys, sums := []uint64{3, 8, 5}, make([]float32, 6)
	values := [2][]float32{make([]float32, 64), make([]float32, 64)}
	terms := []cuda.Term{{Count: 1, Values: cuda.Float32s(make([]float32, 64))}}
	for name, o := range testOptimizers() {
		a := testArray(t, 10, 2, o)
		d, err := NewDense(DenseConfig{Backend: testBackend(t), Lanes: 1, Chunks: []Chunk{{Elements: 64, Optimizer: &o}},
			Values: func(_ int, v schema.Version) []float32 { return values[v%2] }})
		must(t, err)
		batch := func() {
			must(t, d.Average(0, 3, terms))
			must(t, a.Gather(keys, sums))
			must(t, a.Apply(RowGradient{Keys: keys, Sums: cuda.Float32s(sums), Weight: 3, Scale: 1}))
			a.Commit()
		}
		batch()
		if n := testing.AllocsPerRun(50, batch); n != 0 {
			t.Errorf("%s: %v allocations a batch", name, n)
		}
		d.Close()
	}
}
