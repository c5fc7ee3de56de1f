package mnist

import (
	"gradbus/lane"
	"gradbus/philox"
	"gradbus/schema"
)

// Feed deals the training samples to batches and lanes: who sees what is a function of (seed, batch, lane) alone. An epoch
// is one permutation of the set, a function of (seed, epoch), dealt into the fewest batches of at most Batch samples for each
// lane, whose sizes differ by at most one. It is not safe for concurrent use.
type Feed struct {
	seed     uint64
	set      *Set
	lanes    int
	perEpoch int
	pixels   *[256]float32
	orders   [2]order // of an even and an odd epoch: a trainer may ask one batch ahead
}

// order is the permutation of one epoch.
type order struct {
	known bool
	epoch uint64
	of    []int32
}

// NewFeed deals set, which is not empty, to lanes of at most batch samples each; both are 1 or more.
func NewFeed(seed uint64, set *Set, batch, lanes int) *Feed {
	return &Feed{seed: seed, set: set, lanes: lanes, perEpoch: batchesPerEpoch(set.Len(), batch, lanes), pixels: normalized()}
}

func batchesPerEpoch(n, batch, lanes int) int { return (n + batch*lanes - 1) / (batch * lanes) }

// PerEpoch is the number of batches in an epoch.
func (f *Feed) PerEpoch() int { return f.perEpoch }

// Samples are the training samples of a lane of a batch, as places in the set. The slice is the feed's and stays as it is.
func (f *Feed) Samples(b schema.Batch, l lane.Lane) []int32 {
	epoch, at := uint64(b)/uint64(f.perEpoch), int(uint64(b)%uint64(f.perEpoch))
	n := f.set.Len()
	o := &f.orders[epoch%2]
	if !o.known || o.epoch != epoch {
		*o = order{true, epoch, philox.Permutation(f.seed, epoch, n)}
	}
	batch := o.of[at*n/f.perEpoch : (at+1)*n/f.perEpoch]
	lo, hi := lane.Slice(l, f.lanes, len(batch))
	return batch[lo:hi]
}

// Fill appends the images [n, 1, 28, 28] of a lane of a batch to x, normalised, and their labels to targets.
//
//	x, targets = feed.Fill(b, l, x[:0], targets[:0])
func (f *Feed) Fill(b schema.Batch, l lane.Lane, x []float32, targets []int32) ([]float32, []int32) {
	for _, i := range f.Samples(b, l) {
		x = appendImage(x, f.set.Images[int(i)*Pixels:][:Pixels], f.pixels)
		targets = append(targets, int32(f.set.Labels[i]))
	}
	return x, targets
}

func appendImage(x []float32, image []byte, pixels *[256]float32) []float32 {
	for _, p := range image {
		x = append(x, pixels[p])
	}
	return x
}

// Scan gives all samples of a set in order, normalised, at most batch at a time: x [n, 1, 28, 28] and targets [n] are valid
// until yield returns. An error of yield ends the scan and is returned.
func Scan(set *Set, batch int, yield func(x []float32, targets []int32) error) error {
	pixels := normalized()
	var x []float32
	var targets []int32
	for lo := 0; lo < set.Len(); lo += batch {
		x, targets = x[:0], targets[:0]
		for i := lo; i < min(lo+batch, set.Len()); i++ {
			x = appendImage(x, set.Images[i*Pixels:][:Pixels], pixels)
			targets = append(targets, int32(set.Labels[i]))
		}
		if err := yield(x, targets); err != nil {
			return err
		}
	}
	return nil
}
