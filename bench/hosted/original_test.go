package hosted

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"gradbus/bench/referencetest"
	"gradbus/examples/mnist"
	"gradbus/nn"
	"gradbus/schema"
)

// What runs by default has the constants of rpc_parameter_server.py, wherever the model is computed.
func TestConstantsOfTheOriginal(t *testing.T) {
	c := DefaultConfig()
	data := mnist.Synthetic(10, 10)
	remote := c.remoteJob(data)
	pull := mnist.Job(c.pullSettings(), data, mnist.Model(), "own")
	sgd := schema.Optimizer{Kind: "sgd", LR: 0.03}
	model := `[{"conv2d":{"in":1,"out":32,"kernel":3}},{"relu":{}},{"conv2d":{"in":32,"out":64,"kernel":3}},` +
		`{"max_pool2d":{"kernel":2}},{"dropout2d":{"p":0.25}},{"flatten":{}},{"linear":{"in":9216,"out":128}},{"relu":{}},` +
		`{"dropout":{"p":0.5}},{"linear":{"in":128,"out":10}},{"log_softmax":{}}]`
	for _, x := range []struct {
		what       string
		have, want any
	}{
		{"data", c.Data, "mnist"},
		{"samples of a batch", c.BatchSize, 32},
		{"samples of all trainers' batches, pulled", c.pullSettings().Batch, 2 * 32},
		{"batches from one loss to the next", lossEvery, 5},
		{"optimizer", remote.Optimizer, sgd},
		{"optimizer, pulled", pull.Optimizer, sgd},
		{"model", remote.Modules[0].Module, model},
		{"model, pulled", pull.Settings["model"], model},
		{"model of a local step", string(nn.Config(mnist.Model())), model},
	} {
		if !reflect.DeepEqual(x.have, x.want) {
			t.Errorf("%s: %v, want %v", x.what, x.have, x.want)
		}
	}
}

// original is the run of the original in one process: the loss of every batch of so many samples, and the mean loss on
// the test set at the end.
func original(t *testing.T, seed uint64, data *mnist.Data, samples, batches int) (losses []float64, test float64) {
	t.Helper()
	feed, err := mnist.NewFeed(seed, &data.Train, samples, 1)
	if err != nil {
		t.Fatal(err)
	}
	model := referencetest.New(seed, func(place int, parameter string) string {
		if place > 4 {
			place++ // a layer that flattens is before it
		}
		return referencetest.Numbered(place, parameter)
	},
		&referencetest.Conv{In: 1, Out: 32, Side: 28, Kernel: 3, Stride: 1}, &referencetest.ReLU{},
		&referencetest.Conv{In: 32, Out: 64, Side: 26, Kernel: 3, Stride: 1}, &referencetest.MaxPool{Side: 24},
		&referencetest.Dropout{P: 0.25, Groups: 64, Place: 4},
		&referencetest.Linear{In: 9216, Out: 128}, &referencetest.ReLU{},
		&referencetest.Dropout{P: 0.5, Groups: 128, Place: 8},
		&referencetest.Linear{In: 128, Out: 10}, &referencetest.Softmax{})
	image := func(set *mnist.Set, i int) []float64 {
		x := make([]float64, 28*28)
		for k := range x {
			x[k] = (float64(set.Images[i*len(x)+k])/255 - 0.1307) / 0.3081
		}
		return x
	}
	for b := range batches {
		model.Begin(referencetest.Pass{Seed: seed, Batch: uint64(b)})
		of, sum := feed.Samples(schema.Batch(b), 0), 0.0
		for _, i := range of {
			loss, grad := referencetest.NegativeLog(model.Forward(image(&data.Train, int(i))), int(data.Train.Labels[i]))
			model.Backward(grad)
			sum += loss
		}
		model.Step(float64(len(of)), 0.03, 0)
		losses = append(losses, sum/float64(len(of)))
	}
	model.Begin(referencetest.Pass{Evaluate: true})
	for i, label := range data.Test.Labels {
		loss, _ := referencetest.NegativeLog(model.Forward(image(&data.Test, i)), int(label))
		test += loss / float64(len(data.Test.Labels))
	}
	return losses, test
}

// The losses of the original's run, with its constants written out in original, in both modes, on few samples a batch:
// dropout and rate show by more than 1e-3, float32 by less than 1e-6.
func TestLossesOfTheOriginal(t *testing.T) {
	c := small(t)
	c.Trainers, c.BatchSize, c.Warmup, c.Batches = 1, 3, 0, 6
	data, err := mnist.Load(c.Data, c.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	want, test := original(t, c.Seed, data, c.BatchSize, c.Batches)
	for _, mode := range []string{remote, pull} {
		c.Mode = mode
		found, said := run(t, c)
		if math.Abs(found.TrainLoss-want[5]) > 1e-5 || math.Abs(found.Loss-test) > 1e-5 {
			t.Errorf("%s: losses %v and %v, want %v and %v", mode, found.TrainLoss, found.Loss, want[5], test)
		}
		if line := fmt.Sprintf("t0 training batch 0 loss %.4f\n", want[0]); !strings.Contains(said, line) {
			t.Errorf("%s: said %q, want %q", mode, said, line)
		}
	}
}
