package mnist

import (
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer/shuffle"
)

// Feed gives the training samples of batches and lanes as package shuffle orders them, in batches of at most Batch
// samples. It is not safe for concurrent use.
type Feed struct {
	set      *Set
	shuffler *shuffle.Shuffler
	pixels   *[256]float32
}

// NewFeed shuffles set for lanes, at most batch samples to all lanes of a batch together. It fails where shuffle.New
// does.
func NewFeed(seed uint64, set *Set, batch, lanes int) (*Feed, error) {
	shuffler, err := shuffle.New(seed, set.Len(), batch, lanes)
	if err != nil {
		return nil, err
	}
	return &Feed{set: set, shuffler: shuffler, pixels: normalized()}, nil
}

// PerEpoch is the number of batches in an epoch.
func (f *Feed) PerEpoch() int { return f.shuffler.PerEpoch() }

// Samples are the training samples of a lane of a batch, as places in the set. The slice is the feed's and stays as it
// is.
func (f *Feed) Samples(b schema.Batch, l lane.Lane) []int32 { return f.shuffler.Samples(b, l) }

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

// Scan gives all samples of a set in order, normalised, at most batch at a time: x [n, 1, 28, 28] and targets [n] are
// valid until yield returns. An error of yield ends the scan and is returned.
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
