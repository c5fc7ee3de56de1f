// Package shuffle assigns the samples of a training set to batches and lanes. The assignment is a function of (seed,
// batch, lane) alone, so it does not depend on the number of trainers, and every trainer can compute it.
//
// An epoch is one permutation of the set, a function of (seed, epoch). It is cut into the smallest number of batches of
// at most batch samples. Their sizes differ by at most one, so no small last batch has the weight of a full one.
// lane.Slice cuts a batch into lanes.
//
// The package knows numbers of samples and their positions. It must not know their content.
package shuffle

import (
	"fmt"
	"math"

	"gradbus/lane"
	"gradbus/philox"
	"gradbus/schema"
)

// Shuffler shuffles one training set. It is not safe for concurrent use.
type Shuffler struct {
	seed     uint64
	samples  int
	lanes    int
	perEpoch int
	orders   [2]order // of an even and an odd epoch: keys are named one batch ahead, so two epochs may be in use
}

// order is the permutation of one epoch.
type order struct {
	known bool
	epoch uint64
	of    []int32
}

// New returns a Shuffler of samples samples for lanes, with at most batch of them in a batch over all lanes. It fails
// without samples or lanes.
//
//	New(1, 10, 4, 2) // three batches of 3, 3 and 4 samples: 1 and 2, 1 and 2, 2 and 2
func New(seed uint64, samples, batch, lanes int) (*Shuffler, error) {
	for _, n := range []struct {
		name      string
		value, to int
	}{{"samples", samples, math.MaxInt32}, {"batch", batch, math.MaxInt32}, {"lanes", lanes, lane.LanesMax}} {
		if n.value < 1 || n.value > n.to {
			return nil, fmt.Errorf("shuffle %d samples into batches of %d to %d lanes: want %s of 1 to %d", samples, batch,
				lanes, n.name, n.to)
		}
	}
	return &Shuffler{seed: seed, samples: samples, lanes: lanes, perEpoch: PerEpoch(samples, batch)}, nil
}

// PerEpoch returns the number of batches in an epoch, with at most batch samples each. batch is at least 1.
func PerEpoch(samples, batch int) int { return (samples + batch - 1) / batch }

// PerEpoch returns the number of batches in an epoch.
func (d *Shuffler) PerEpoch() int { return d.perEpoch }

// Samples returns the positions in the set of a lane's samples in a batch. The Shuffler owns the slice; the caller must
// not change it.
func (d *Shuffler) Samples(b schema.Batch, l lane.Lane) []int32 {
	epoch, at := uint64(b)/uint64(d.perEpoch), int(uint64(b)%uint64(d.perEpoch))
	o := &d.orders[epoch%2]
	if !o.known || o.epoch != epoch {
		*o = order{true, epoch, philox.Permutation(d.seed, epoch, d.samples)}
	}
	batch := o.of[at*d.samples/d.perEpoch : (at+1)*d.samples/d.perEpoch]
	lo, hi := lane.Slice(l, d.lanes, len(batch))
	return batch[lo:hi]
}
