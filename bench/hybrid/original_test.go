package hybrid

import (
	"math"
	"reflect"
	"testing"

	"gradbus/bench/referencetest"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
)

// What runs by default has the constants of benchmark_ddp_rpc.py.
func TestConstantsOfTheOriginal(t *testing.T) {
	c := DefaultConfig()
	job := c.job()
	for _, x := range []struct {
		what       string
		have, want any
	}{
		{"trainers", job.Trainers, 8},
		{"servers", c.Servers, 8},
		{"rows of the embedding", job.Tables[0].Rows, uint64(300)},
		{"columns on all servers", job.Tables[0].Dim, 8 * 64},
		{"initial rows", job.Tables[0].Init, schema.Init{Kind: "normal", Scale: 1}},
		{"pooling", job.Tables[0].Pooling, "sum"},
		{"gradients of the embedding", job.TableConsistency, "async"},
		{"optimizer", job.Optimizer, schema.Optimizer{Kind: "sgd", LR: 0.05}},
		{"optimizer of the embedding", job.Tables[0].Optimizer, (*schema.Optimizer)(nil)},
		{"gradients of the dense part", job.Reduce, "trainers"},
		{"batches of an epoch", c.Batches, 10},
		{"epochs of warm-up", c.Warmup, 5},
		{"measured epochs", c.Epochs, 100},
		{"ids, and the largest bag", [3]int{idsMin, idsMax, bagMax}, [3]int{20, 50, 10}},
		{"dense part", string(nn.Config(c.model())), `[{"linear":{"in":512,"out":256}},{"linear":{"in":256,"out":128}},` +
			`{"relu":{}},{"linear":{"in":128,"out":64}},{"linear":{"in":64,"out":32}},{"linear":{"in":32,"out":8}}]`},
	} {
		if !reflect.DeepEqual(x.have, x.want) {
			t.Errorf("%s: %v, want %v", x.what, x.have, x.want)
		}
	}
}

// original is the run of the original in one process, where every batch sees all steps before it: the mean losses of
// the epochs, over all trainers.
func original(seed uint64, trainers, epochs int) (losses []float64) {
	const rows, dim, lr, batches = 300, 512, 0.05, 10
	embedding, gradient := make([][]float64, rows), make([][]float64, rows)
	for key := range embedding {
		row := make([]float32, dim)
		if err := philox.FillRow(row, philox.Normal, 1, seed, "embedding", uint64(key)); err != nil {
			panic(err) // the kind is a constant
		}
		embedding[key] = referencetest.Wide(row)
	}
	dense := referencetest.New(seed, referencetest.Numbered, &referencetest.Linear{In: dim, Out: 256},
		&referencetest.Linear{In: 256, Out: 128}, &referencetest.ReLU{}, &referencetest.Linear{In: 128, Out: 64},
		&referencetest.Linear{In: 64, Out: 32}, &referencetest.Linear{In: 32, Out: 8}, &referencetest.Softmax{})
	for epoch := range epochs {
		sums, samples := make([]float64, trainers), make([]float64, trainers)
		for b := range batches {
			for key := range gradient {
				gradient[key] = make([]float64, dim)
			}
			count := 0.0
			for l := range trainers {
				var x batch
				x.draw(seed, uint64(epoch*batches+b), uint64(l), rows)
				for i, target := range x.targets {
					bag, pooled := x.ids[x.offsets[i]:x.offsets[i+1]], make([]float64, dim)
					for _, id := range bag {
						for j, v := range embedding[id] {
							pooled[j] += v
						}
					}
					loss, grad := referencetest.NegativeLog(dense.Forward(pooled), int(target))
					sums[l] += loss
					grad = dense.Backward(grad)
					for _, id := range bag {
						for j, g := range grad {
							gradient[id][j] += g
						}
					}
				}
				samples[l] += float64(len(x.targets))
				count += float64(len(x.targets))
			}
			dense.Step(count, lr, 0)
			for key := range embedding {
				for j, g := range gradient[key] {
					embedding[key][j] -= lr * g / count
				}
			}
		}
		mean := 0.0
		for l := range sums {
			mean += sums[l] / samples[l] / float64(trainers)
		}
		losses = append(losses, mean)
	}
	return losses
}

// The losses of the original's run, with its constants written out in original: of one trainer, whose rows are applied
// as they come and which sees its own, and of three that wait for each other. float32 shows by less than 1e-7 after
// twenty steps, each constant by more than 1e-3.
func TestLossesOfTheOriginal(t *testing.T) {
	for trainers, mode := range map[int]string{1: modeAsync, 3: modeSync} {
		want := original(DefaultConfig().Seed, trainers, 2)
		for epoch := range want {
			c := DefaultConfig()
			c.Trainers, c.Mode, c.Warmup, c.Epochs, c.InProcess = trainers, mode, epoch, 1, true
			if found := run(t, c); math.Abs(found.Loss-want[epoch]) > 1e-6 {
				t.Errorf("%d trainers, epoch %d: loss %v, want %v", trainers, epoch, found.Loss, want[epoch])
			}
		}
	}
}
