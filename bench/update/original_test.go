package update

import (
	"math"
	"reflect"
	"testing"

	"gradbus/bench/referencetest"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
)

// What runs by default has the constants of parameter_server_test.py: batches of the original are 4, which is too few
// to measure.
func TestConstantsOfTheOriginal(t *testing.T) {
	c := DefaultConfig()
	job, linear := c.job("constants"), c.module()
	c.Model = convnet
	convnet := c.module()
	for _, x := range []struct {
		what       string
		have, want any
	}{
		{"trainers", job.Trainers, 3},
		{"lanes", job.Lanes, 3},
		{"gradients of an update", job.Group, 3},
		{"consistency", job.Consistency, "grouped"},
		{"owner of the model", job.Apply, "update"},
		{"optimizer", job.Optimizer, schema.Optimizer{Kind: "sgd", LR: 0.001, Momentum: 0.9}},
		{"samples of a batch", c.BatchSize, 20},
		{"inputs", linear.in, []int{100}},
		{"model", string(nn.Config(linear.Module)), `[{"linear":{"in":100,"out":30}}]`},
		{"images", convnet.in, []int{3, 64, 64}},
		{"classes", convnet.out, 30},
	} {
		if !reflect.DeepEqual(x.have, x.want) {
			t.Errorf("%s: %v, want %v", x.what, x.have, x.want)
		}
	}
}

// original is a run as the original has it, in one process: the mean over all trainers' samples, one step of SGD.
type original struct {
	trainers, batches, samples int
	lr, momentum               float64
	inputs, outputs            int // of a sample
	layers                     []referencetest.Layer
	name                       func(place int, parameter string) string
	from                       [][]float32 // initial values; nil draws them
	loss                       func(y, target []float64) (float64, []float64)
	classes                    bool // the label at each place of a lane's batches is 1 for one class; else it is 0
}

// linear is the run of a configuration of the linear model.
func linear(c *Config) original {
	return original{trainers: c.Trainers, batches: c.Warmup + c.Batches, samples: c.BatchSize, lr: c.LR,
		momentum: c.Momentum, inputs: c.In, outputs: c.Out,
		layers: []referencetest.Layer{&referencetest.Linear{In: c.In, Out: c.Out}},
		name:   func(_ int, parameter string) string { return parameter }, loss: referencetest.L1}
}

// losses are those of every batch.
func (o original) losses(seed uint64) []float64 {
	model := referencetest.New(seed, o.name, o.layers...)
	model.Set(o.from...)
	labels := make([][][]float64, o.trainers)
	for l := range labels {
		r := philox.New(seed, "update label", uint64(l), 0, 0)
		for range o.samples {
			label := make([]float64, o.outputs)
			if o.classes {
				label[r.Below(uint32(o.outputs))] = 1
			}
			labels[l] = append(labels[l], label)
		}
	}
	var losses []float64
	for b := range o.batches {
		sum, count := 0.0, float64(o.trainers*o.samples)
		for l := range o.trainers {
			r := philox.New(seed, "update input", uint64(b), uint64(l), 0)
			for s := range o.samples {
				x := make([]float64, o.inputs)
				for i := range x {
					x[i] = float64(float32(r.Normal()))
				}
				loss, grad := o.loss(model.Forward(x), labels[l][s])
				model.Backward(grad)
				sum += loss
			}
		}
		model.Step(count, o.lr, o.momentum)
		losses = append(losses, sum/count)
	}
	return losses
}

// The losses of the original's run, with its constants written out here: the rate shows by 1e-4, float32 by 1e-7.
func TestLossesOfTheOriginal(t *testing.T) {
	want := original{trainers: 3, batches: 4, samples: 20, lr: 0.001, momentum: 0.9, inputs: 100, outputs: 30,
		layers: []referencetest.Layer{&referencetest.Linear{In: 100, Out: 30}},
		name:   func(_ int, parameter string) string { return parameter }, loss: referencetest.L1}
	c := DefaultConfig()
	wantLosses(t, c, want, 1e-6)
}

// The convolutional model's run is that of its layers, written out here. At this rate its loss falls, by far more than
// the tolerance.
func TestConvnet(t *testing.T) {
	want := original{trainers: 2, batches: 4, samples: 1, lr: 1, momentum: 0, inputs: 3 * 64 * 64, outputs: 30,
		layers: []referencetest.Layer{
			&referencetest.Conv{In: 3, Out: 32, Side: 64, Kernel: 7, Stride: 2, Padding: 3}, &referencetest.ReLU{},
			&referencetest.MaxPool{Side: 32},
			&referencetest.Conv{In: 32, Out: 64, Side: 16, Kernel: 3, Stride: 1, Padding: 1}, &referencetest.ReLU{},
			&referencetest.Conv{In: 64, Out: 128, Side: 16, Kernel: 3, Stride: 2, Padding: 1}, &referencetest.ReLU{},
			&referencetest.Conv{In: 128, Out: 256, Side: 8, Kernel: 3, Stride: 2, Padding: 1}, &referencetest.ReLU{},
			&referencetest.Linear{In: 4096, Out: 30}},
		name: func(place int, parameter string) string {
			if place == 9 {
				place++ // a layer that flattens is before it
			}
			return referencetest.Numbered(place, parameter)
		},
		loss: referencetest.MSE, classes: true}
	c := DefaultConfig()
	c.Model, c.Trainers, c.BatchSize, c.LR, c.Momentum = convnet, 2, 1, 1, 0
	losses := wantLosses(t, c, want, 1e-6)
	if first, last := losses[0], losses[len(losses)-1]; last > first-1e-3 {
		t.Errorf("loss %v, then %v: it does not fall", first, last)
	}
}

// wantLosses runs a configuration for as many batches as the original, and compares the first loss and the last.
func wantLosses(t *testing.T, c Config, o original, tolerance float64) []float64 {
	t.Helper()
	want := o.losses(c.Seed)
	found, _ := run(t, func(of *Config) {
		*of = c
		of.InProcess, of.Batches, of.Warmup = true, o.batches, 0
	})
	last := want[len(want)-1]
	if math.Abs(found.LossFirst-want[0]) > tolerance || math.Abs(found.LossLast-last) > tolerance {
		t.Errorf("losses %v and %v, want %v and %v", found.LossFirst, found.LossLast, want[0], last)
	}
	return want
}
