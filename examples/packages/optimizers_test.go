package packages_test

import (
	"math"
	"testing"

	"gradbus/schema"
)

// Each optimizer trains the workload, and ends with the same bits on a server and in one process, on any number of
// trainers and shards, with its state on shards or on trainers.
func TestOptimizersTrain(t *testing.T) {
	data := small(t, 300)
	for _, c := range []struct {
		optimizer, schedule, clip string
		lr                        float64
	}{
		{"sgd:nesterov,weight_decay=1e-5", "cosine:warmup=4,total=60,final=0.2", "value:0.5", 10},
		{"adagrad", "", "", 0.1},
		{"rowwise_adagrad", "", "row:0.05", 0.1},
		{"adam", "steps:steps=20+30,gamma=0.5", "", 0.05},
		{"adamw", "linear:total=100,final=0.5", "", 0.05},
		{"ftrl:l1=1e-6", "constant:warmup=3", "", 20},
	} {
		t.Run(c.optimizer, func(t *testing.T) {
			s := settings(1, 4)
			s.Optimizer, s.Schedule, s.Clip, s.LR, s.Epochs, s.Batch = c.optimizer, c.schedule, c.clip, c.lr, 6, 32
			if s.Kind() == schema.OptimizerSGD {
				s.Momentum = 0.5
			}
			if err := s.Validate(); err != nil {
				t.Fatal(err)
			}
			want := train(t, s, data, 1, "go")[0]
			loss, unlearned := lossOf(want.model, data), math.Log(float64(len(data.Classes)))
			t.Logf("loss %.3f of %.3f, accuracy %.3f of %d samples", loss, unlearned, want.accuracy, data.Test.Len())
			if loss > unlearned/2 {
				t.Errorf("a loss of %.3f, at first %.3f: it has not learned", loss, unlearned)
			}
			s.Trainers = 2
			if got := trainLocal(t, s, data, 3); got != want.digest {
				t.Errorf("two trainers and three shards in one process end with %x, one of each on a server with %x", got[:6],
					want.digest[:6])
			}
			s.Apply, s.Reduce = schema.ApplyMean, schema.ReduceTrainers
			if got := trainLocal(t, s, data, 0); got != want.digest {
				t.Errorf("trainers that keep everything end with %x, shards with %x", got[:6], want.digest[:6])
			}
		})
	}
}

// The norm of all gradients is clipped where trainers keep everything, in one way for any number of them, and it
// changes what comes out.
func TestGlobalNormIsClipped(t *testing.T) {
	data := small(t, 120)
	digests := map[string][32]byte{}
	for _, clip := range []string{"", "global:0.05"} {
		s := settings(1, 4)
		s.Apply, s.Reduce, s.Clip, s.Epochs = schema.ApplyMean, schema.ReduceTrainers, clip, 1
		one := trainLocal(t, s, data, 0)
		if s.Trainers = 2; trainLocal(t, s, data, 0) != one {
			t.Errorf("clip %q: two trainers end with other bits than one", clip)
		}
		digests[clip] = one
	}
	if digests[""] == digests["global:0.05"] {
		t.Error("nothing was clipped")
	}
}
