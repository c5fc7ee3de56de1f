package average

import (
	"slices"

	"gradbus/philox"
)

// data is DummyData: every sample is ids drawn with replacement from a part of all ids, chosen once, and a target. It
// is a pure function of the configuration and the seed.
type data struct {
	Length  int     // ids of a sample
	IDs     []int32 // [samples, Length]
	Targets []int32 // [samples]
}

// newData draws the data. The configuration must be one that loadData gives.
func newData(c dataConfig, seed uint64) *data {
	chosen := philox.Permutation(seed, 0, c.MaxVal)[:c.ids()]
	d := &data{Length: c.SampleLength, IDs: make([]int32, c.SampleCount*c.SampleLength),
		Targets: make([]int32, c.SampleCount)}
	ids, targets := philox.New(seed, "dummy data ids", 0, 0, 0), philox.New(seed, "dummy data targets", 0, 0, 0)
	for i := range d.IDs {
		d.IDs[i] = chosen[ids.Below(uint32(len(chosen)))]
	}
	for i := range d.Targets {
		d.Targets[i] = int32(targets.Below(uint32(c.MaxVal)))
	}
	return d
}

// samples is how many there are.
func (d *data) samples() int { return len(d.Targets) }

// dealt is how samples are dealt: in their order, in batches of so many, which go to the trainers in turn. So in step
// s, counted through the epochs, trainer t has batch s * trainers + t of its epoch, if there is one.
type dealt struct {
	samples, batchSize, trainers int
}

// batches is how many batches an epoch has; the last may be smaller than the others.
func (d dealt) batches() int { return (d.samples + d.batchSize - 1) / d.batchSize }

// steps is how many steps an epoch takes. In the last there may be trainers without a batch.
func (d dealt) steps() int { return (d.batches() + d.trainers - 1) / d.trainers }

// of gives the samples [lo, hi) of a trainer in a step; none where it has no batch.
func (d dealt) of(step uint64, trainer int) (lo, hi int) {
	lo = (int(step%uint64(d.steps()))*d.trainers + trainer) * d.batchSize
	return min(lo, d.samples), min(lo+d.batchSize, d.samples)
}

// preprocessing is what a trainer does to the data before it trains, by name.
type preprocessing func(*data)

// preprocessings are the choices of --preprocess.
var preprocessings = choice[preprocessing]{
	{"preprocess_dummy_data", func(*data) {}},
	{"sort_ids", sortIDs},
}

// sortIDs puts the ids of every sample in order, which changes no mean but for its rounding.
func sortIDs(d *data) {
	for i := range d.samples() {
		slices.Sort(d.IDs[i*d.Length : (i+1)*d.Length])
	}
}
