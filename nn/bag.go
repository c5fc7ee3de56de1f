package nn

import (
	"fmt"

	"gradbus/cuda"
)

// EmbeddingBag pools embedding rows into bags: the sum or the mean of the rows that a sample's ids name.
type EmbeddingBag struct {
	dim  int
	Mode cuda.Mode

	backend cuda.Backend
	keys    []int64
	rows    []float32
}

// NewEmbeddingBag gives a layer for rows of dim values; it panics where dim is below 1.
func NewEmbeddingBag(backend cuda.Backend, dim int, mode cuda.Mode) *EmbeddingBag {
	if dim < 1 {
		panic(fmt.Sprintf("nn: embedding bag of rows of %d values", dim))
	}
	return &EmbeddingBag{dim: dim, Mode: mode, backend: backend}
}

// Forward writes out [B, Dim]: row b pools rows[ids[i]] for i in [offsets[b], offsets[b+1]). rows is [R, Dim], ids [N]
// in [0, R), offsets [B+1] from 0 to N and never falling. A bag without ids is a zero row. out may not overlap rows.
// Sums run in the order of positions, canonically, and the mean divides once. It fails with errors of the backend.
//
//	rows = {{1, 2}, {3, 4}}, ids = {0, 1, 1}, offsets = {0, 2, 3}, mean   ->   out = {{2, 3}, {3, 4}}
func (e *EmbeddingBag) Forward(rows []float32, ids, offsets []int64, out []float32) error {
	return e.backend.BagForward(cuda.BagForward{Dim: e.dim, Mode: e.Mode, Padding: cuda.NoPadding,
		Rows: cuda.Float32s(rows), IDs: cuda.Int64s(ids), Offsets: cuda.Int64s(offsets), Out: cuda.Float32s(out)})
}

// backward gives the gradient of the rows from gradOut [B, Dim]: the distinct ids, ascending, and for each the sum over
// its positions, in canonical order, of gradOut of the position's bag, divided by the bag's length first where the mode
// is the mean. rowCount is R. The slices it returns are the layer's own, valid until the next Backward. It fails with
// errors of the backend.
//
//	ids = {0, 1, 1}, offsets = {0, 2, 3}, gradOut = {{2, 4}, {1, 1}}, mean   ->   {0, 1}, {{1, 2}, {2, 3}}
func (e *EmbeddingBag) backward(rowCount int, ids, offsets []int64, gradOut []float32) (distinct []int64,
	rows []float32, err error) {
	room := min(len(ids), rowCount) // no more ids than that can be distinct
	e.keys, e.rows = grown(e.keys, room), grown(e.rows, room*e.dim)
	n, err := e.backend.BagBackward(cuda.BagBackward{Dim: e.dim, Mode: e.Mode, Padding: cuda.NoPadding, R: int64(rowCount),
		IDs: cuda.Int64s(ids), Offsets: cuda.Int64s(offsets),
		GradOut: cuda.Float32s(gradOut), Keys: cuda.Int64s(e.keys), Out: cuda.Float32s(e.rows)})
	if err != nil {
		return nil, nil, err
	}
	return e.keys[:n], e.rows[:n*e.dim], nil
}
