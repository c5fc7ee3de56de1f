package state

import (
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

// Rows that are drawn when they are wanted are those that are drawn at once, whoever wants them first: a lookup, a
// step, a scan, a snapshot; and so is what optimizers keep of them. Rows that a snapshot has set stay.
func TestRowsDrawnLate(t *testing.T) {
	backend := testBackend(t)
	spec := &schema.TableSpec{Name: "t", Rows: 5000, Dim: 7, Partitions: 5, Init: schema.Normal(1)} // 8 rows are a block
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 7))
		o := testOptimizers()[[]string{"momentum", "exact", "adagrad", "rowwise_adagrad"}[seed%4]]
		column := int(seed % 3)
		make := func(late bool) *Array {
			a, err := NewArray(t.Context(), ArrayConfig{Backend: backend, Spec: spec, Optimizer: o, Seed: 3,
				Here: func(p schema.Partition) bool { return p != 2 }, Column: column, Columns: 7 - column, Late: late})
			must(t, err)
			t.Cleanup(a.Close)
			return a
		}
		atOnce, late := make(false), make(true)
		for range 60 {
			keys := someKeys(r, atOnce, spec.Rows)
			switch r.IntN(4) {
			case 0:
				if got, want := gathered(t, late, late.dim, keys...), gathered(t, atOnce, late.dim, keys...); !sameBits(got, want) {
					t.Fatalf("seed %d: rows of %v differ", seed, keys)
				}
			case 1:
				sums := slices.Repeat([]float32{1, -2, 3}, len(keys)*late.dim)[:len(keys)*late.dim]
				for _, a := range []*Array{atOnce, late} {
					must(t, a.Apply(RowGradient{Keys: keys, Sums: cuda.Float32s(sums), Weight: 2, Scale: 1}))
					a.Commit()
				}
			case 2:
				p, n := schema.Partition(keys[0]%5), 1+r.IntN(300)
				n = min(n, late.Left(p, keys[0]))
				if got, want := scanned(t, late, p, keys[0], n), scanned(t, atOnce, p, keys[0], n); !sameBits(got, want) {
					t.Fatalf("seed %d: %d rows of partition %d from key %d on differ", seed, n, p, keys[0])
				}
			}
		}
		restored, s := make(true), &Snapshot{}
		must(t, late.Snapshot(1000, s.AddRows))
		all := restored.Restore()
		for _, rows := range s.Rows {
			must(t, all.Rows(rows))
		}
		must(t, all.Done())
		var keys []uint64
		for key := range spec.Rows {
			if late.places.has(key) {
				keys = append(keys, key)
			}
		}
		want := gathered(t, atOnce, late.dim, keys...)
		for _, a := range []*Array{late, restored} {
			if !sameBits(gathered(t, a, late.dim, keys...), want) || a.String() != atOnce.String() {
				t.Errorf("seed %d: %v, want %v", seed, a, atOnce)
			}
		}
	}
}

// The row of the padding is zeros, drawn at once or when it is wanted, and the others are what they are without one.
func TestRowOfPadding(t *testing.T) {
	backend, key := testBackend(t), uint64(41)
	bare := schema.TableSpec{Name: "t", Rows: 50, Dim: 7, Partitions: 5, Init: schema.Normal(1)}
	padded := bare
	padded.Padding = &key
	for _, late := range []bool{false, true} {
		rows := func(spec *schema.TableSpec, keys ...uint64) []float32 {
			a, err := NewArray(t.Context(), ArrayConfig{Backend: backend, Spec: spec, Optimizer: testOptimizers()["momentum"],
				Seed: 3, Here: func(schema.Partition) bool { return true }, Columns: spec.Dim, Late: late})
			must(t, err)
			defer a.Close()
			return slices.Clone(gathered(t, a, a.dim, keys...))
		}
		if got := rows(&padded, key); !slices.Equal(got, make([]float32, 7)) {
			t.Errorf("late %v: the row of the padding is %v", late, got)
		}
		if !sameBits(rows(&padded, 40, 42), rows(&bare, 40, 42)) || rows(&bare, key)[0] == 0 {
			t.Errorf("late %v: other rows differ", late)
		}
	}
}

// someKeys are distinct ones whose rows are here.
func someKeys(r *rand.Rand, a *Array, rows uint64) []uint64 {
	var keys []uint64
	for range 1 + r.IntN(9) {
		if key := r.Uint64N(rows); a.places.has(key) && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return someKeys(r, a, rows)
	}
	return keys
}

func scanned(t *testing.T, a *Array, p schema.Partition, cursor uint64, n int) []float32 {
	t.Helper()
	rows := make([]float32, n*a.dim)
	must(t, a.Scan(p, cursor, make([]uint64, n), rows))
	return rows
}
