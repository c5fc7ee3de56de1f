package ps

import (
	"testing"

	"gradbus/cuda"
)

// What an operation touches: terms of two nodes of 4 values, parameters and momentum from one version to the next.
func TestTimedBackendCountsBytes(t *testing.T) {
	inner, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	defer inner.Close()
	values := func(n int) cuda.Vector { return cuda.Float32s(make([]float32, n)) }
	terms := []cuda.Term{{First: 0, Count: 1, Values: values(4)}, {First: 1, Count: 1, Values: values(4)}}
	for name, c := range map[string]struct {
		call func(b *timedBackend) error
		want uint64
	}{
		"average": {func(b *timedBackend) error {
			return b.Average(cuda.Average{Lanes: 2, Weight: 2, Terms: terms, Out: values(4)})
		}, 3 * 16},
		"average and apply": {func(b *timedBackend) error {
			return b.AverageApply(cuda.AverageApply{Lanes: 2, Weight: 2, Terms: terms, Optimizer: cuda.SGD{LR: 1, Momentum: 0.5},
				Param: values(4), Out: values(4),
				Slots: []cuda.Slot{{Name: "momentum", Before: values(4), After: values(4)}}})
		}, 6 * 16},
		"apply": {func(b *timedBackend) error {
			return b.ApplyDense(cuda.ApplyDense{Optimizer: cuda.SGD{LR: 1}, Weight: 1, Param: values(4), Grad: values(4),
				Out: values(4)})
		}, 3 * 16},
		"rows": {func(b *timedBackend) error { // 2 of 100 rows of 3: index, gradient, old and new rows
			return b.ApplyRows(cuda.ApplyRows{Dim: 3, Optimizer: cuda.SGD{LR: 1}, Weight: 1, Table: values(300),
				Index: cuda.Int64s([]int64{7, 3}), Grad: values(6), Out: values(6)})
		}, 16 + 3*24},
		"merge": {func(b *timedBackend) error { // keys {1, 2} and {2}: two rows come out
			_, err := b.Merge(cuda.Merge{Dim: 3, Lanes: 2, OutKeys: cuda.Uint64s(make([]uint64, 3)), OutRows: values(9),
				Terms: []cuda.RowsTerm{
					{First: 0, Count: 1, Keys: cuda.Uint64s([]uint64{1, 2}), Rows: values(6)},
					{First: 1, Count: 1, Keys: cuda.Uint64s([]uint64{2}), Rows: values(3)}}})
			return err
		}, 3*8 + 9*4 + 6*4},
	} {
		b := &timedBackend{Backend: inner}
		if err := c.call(b); err != nil || b.bytes != c.want || b.spent <= 0 {
			t.Errorf("%s: %d bytes in %v, %v; want %d", name, b.bytes, b.spent, err, c.want)
		}
	}
}
