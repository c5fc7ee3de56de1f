package state

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

// An outcome that is not finite is an error that names its value, or the slot that hides it, and the version stays.
func TestNonFiniteOutcomes(t *testing.T) {
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	defer backend.Close()
	sgd := schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1}
	adam := schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}
	adagrad := schema.Optimizer{Kind: schema.OptimizerAdagrad, LR: 0.1, Eps: 1e-8}
	for _, c := range []struct {
		name      string
		optimizer schema.Optimizer
		gradient  float32
		want      string // of a parameter; empty: it is finite
		row       string
	}{
		{"finite", sgd, 1e38, "", ""},
		{"values", schema.Optimizer{Kind: schema.OptimizerSGD, LR: 100}, 1e38, `parameter "w", element 12`,
			`table "t", row 3, column 2`},
		{"squares of adam", adam, 1e30, `of parameter "w", element 12`, `of table "t", row 3, column 2`},
		{"squares of adagrad", adagrad, 1e30, `of parameter "w", element 12`, `of table "t", row 3, column 2`},
	} {
		memory := [2][]float32{make([]float32, 4), make([]float32, 4)}
		d, err := NewDense(DenseConfig{Backend: backend, Lanes: 1, LR: &LRChanges{},
			Values: func(_ int, v schema.Version) []float32 { return memory[v%2] },
			Chunks: []Chunk{{Elements: 4, Optimizer: &c.optimizer,
				Pieces: []Piece{{Name: "v", Offset: 0, Elements: 1}, {Name: "w", From: 11, Offset: 1, Elements: 3}}}}})
		must(t, err)
		sum := []float32{0, 0, c.gradient, 0}
		checkOutcome(t, c.name, c.want, d.Average(0, 1, []cuda.Term{{Count: 1, Values: cuda.Float32s(sum)}}))
		if c.want != "" && d.Version(0) != 0 {
			t.Errorf("%s: version %d of a chunk was made", c.name, d.Version(0))
		}
		if c.want != "" {
			checkOutcome(t, c.name, c.want, d.Step(0, 1, sum, 1))
		}
		d.Close()
		spec := schema.TableSpec{Name: "t", Rows: 8, Dim: 3, Partitions: 2, Init: schema.Zeros()}
		table, err := NewArray(context.Background(), ArrayConfig{Backend: backend, Spec: &spec, Optimizer: c.optimizer,
			LR: &LRChanges{}, Here: everywhere, Columns: 3, Undo: true})
		must(t, err)
		rows := make([]float32, 6)
		rows[5] = c.gradient
		checkOutcome(t, c.name, c.row, table.Apply(RowGradient{Keys: []uint64{1, 3}, Sums: cuda.Float32s(rows), Weight: 1,
			Scale: 1}))
		if table.Rollback(); !slices.Equal(gathered(t, table, 3, 1, 3), make([]float32, 6)) {
			t.Errorf("%s: rows are %v after a rollback", c.name, gathered(t, table, 3, 1, 3))
		}
		table.Close()
	}
	if err := CheckFinite(backend, []float32{0, float32(math.NaN())}, func(int) string { return "it" }); err == nil {
		t.Error("NaN passes")
	}
}

func checkOutcome(t *testing.T, name, want string, err error) {
	t.Helper()
	var e *NonFiniteError
	if (want != "") != errors.As(err, &e) || want == "" && err != nil || want != "" && !strings.HasSuffix(e.name, want) {
		t.Errorf("%s: %v, want a result that is not finite: %q", name, err, want)
	}
}
