package ps

import (
	"time"

	"gradbus/cuda"
)

// timedBackend times what a shard has its backend do to gradients and parameters: sums, merges and optimizers. Whoever
// has the step lock of the shard's worker guards it; what is answered to lookups, and what hosted modules compute, is
// not in it.
type timedBackend struct {
	cuda.Backend
	spent time.Duration
	bytes uint64 // read and written, as the operations' arguments say
}

// took notes a call that began at some time, with what it has touched.
func (b *timedBackend) took(began time.Time, touched int) {
	b.spent += time.Since(began)
	b.bytes += uint64(touched)
}

func sizeOf(vectors ...cuda.Vector) (bytes int) {
	for i := range vectors {
		bytes += vectors[i].Len() * vectors[i].DType().Bytes()
	}
	return bytes
}

func sizeOfTerms(terms []cuda.Term) (bytes int) {
	for i := range terms {
		bytes += sizeOf(terms[i].Values)
	}
	return bytes
}

func sizeOfSlots(slots []cuda.Slot) (bytes int) {
	for i := range slots {
		bytes += 2 * sizeOf(slots[i].After) // of a table, Before is all of it, of which as much is read
	}
	return bytes
}

// BagBackward implements cuda.Backend.
func (b *timedBackend) BagBackward(a cuda.BagBackward) (int, error) {
	began := time.Now()
	n, err := b.Backend.BagBackward(a)
	b.took(began, sizeOf(a.IDs, a.GradOut)+4*a.Dim*n)
	return n, err
}

// Coalesce implements cuda.Backend.
func (b *timedBackend) Coalesce(a cuda.Coalesce) (int, error) {
	began := time.Now()
	n, err := b.Backend.Coalesce(a)
	b.took(began, sizeOf(a.Keys, a.Rows)+4*a.Dim*n)
	return n, err
}

// Merge implements cuda.Backend.
func (b *timedBackend) Merge(a cuda.Merge) (int, error) {
	began := time.Now()
	n, err := b.Backend.Merge(a)
	touched := 4 * a.Dim * n
	for i := range a.Terms {
		touched += sizeOf(a.Terms[i].Keys, a.Terms[i].Rows)
	}
	b.took(began, touched)
	return n, err
}

// ApplyRows implements cuda.Backend.
func (b *timedBackend) ApplyRows(a cuda.ApplyRows) error {
	began := time.Now()
	err := b.Backend.ApplyRows(a)
	b.took(began, sizeOf(a.Index, a.Grad, a.Out)+sizeOf(a.Out)+sizeOfSlots(a.Slots))
	return err
}

// CoalesceApply implements cuda.Backend.
func (b *timedBackend) CoalesceApply(a cuda.CoalesceApply) (int, error) {
	began := time.Now()
	n, err := b.Backend.CoalesceApply(a)
	b.took(began, sizeOf(a.Keys, a.Rows)+2*4*a.Dim*n*(1+len(a.Slots)))
	return n, err
}

// ApplyDense implements cuda.Backend.
func (b *timedBackend) ApplyDense(a cuda.ApplyDense) error {
	began := time.Now()
	err := b.Backend.ApplyDense(a)
	b.took(began, sizeOf(a.Param, a.Grad, a.Out)+sizeOfSlots(a.Slots))
	return err
}

// Average implements cuda.Backend.
func (b *timedBackend) Average(a cuda.Average) error {
	began := time.Now()
	err := b.Backend.Average(a)
	b.took(began, sizeOfTerms(a.Terms)+sizeOf(a.Out))
	return err
}

// AverageApply implements cuda.Backend.
func (b *timedBackend) AverageApply(a cuda.AverageApply) error {
	began := time.Now()
	err := b.Backend.AverageApply(a)
	b.took(began, sizeOfTerms(a.Terms)+sizeOf(a.Param, a.Out)+sizeOfSlots(a.Slots))
	return err
}
