package settings

import (
	"reflect"
	"strings"
	"testing"

	"gradbus/schema"
)

func shared() Shared {
	return Shared{Job: "j", Trainers: 1, Epochs: 1, LR: 0.5, Momentum: 0.9, Apply: schema.ApplyMean}
}

func TestOptimizerTexts(t *testing.T) {
	for _, c := range []struct {
		optimizer, schedule, clip string
		want                      schema.Optimizer
	}{
		{"", "", "", schema.Optimizer{Kind: "sgd", LR: 0.5, Momentum: 0.9}},
		{"sgd:nesterov,weight_decay=1e-4", "", "", schema.Optimizer{Kind: "sgd", LR: 0.5, Momentum: 0.9, Nesterov: true,
			WeightDecay: 1e-4}},
		{"adam:beta1=0.5,eps=1e-6", "cosine:warmup=10,total=200,final=0.1", "global:2",
			schema.Optimizer{Kind: "adam", LR: 0.001, Beta1: 0.5, Eps: 1e-6,
				Schedule: &schema.Schedule{Kind: "cosine", Warmup: 10, Total: 200, Final: 0.1},
				Clip:     &schema.Clipping{Kind: "global", Max: 2}}},
		{"ftrl:beta=2,l1=0.1,l2=0.2", "steps:steps=5+8,gamma=0.5", "value:0.25",
			schema.Optimizer{Kind: "ftrl", LR: 0.5, Beta: 2, L1: 0.1, L2: 0.2,
				Schedule: &schema.Schedule{Kind: "steps", Steps: []uint64{5, 8}, Gamma: 0.5},
				Clip:     &schema.Clipping{Kind: "value", Max: 0.25}}},
	} {
		s := shared()
		s.Optimizer, s.Schedule, s.Clip = c.optimizer, c.schedule, c.clip
		if err := s.Resolve(func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
		var check Check
		s.CheckTraining(&check)
		if err := check.Err(nil); err != nil || !reflect.DeepEqual(s.Manifest("w").Optimizer, c.want) {
			t.Errorf("%q %q %q: %+v, %v", c.optimizer, c.schedule, c.clip, s.Manifest("w").Optimizer, err)
		}
	}
}

// The norm of rows is clipped for tables alone, and what a person gives is not replaced.
func TestOptimizerOfTables(t *testing.T) {
	s := shared()
	s.Optimizer, s.Clip = "rowwise_adagrad", "row:1"
	if err := s.Resolve(func(flag string) bool { return flag == "lr" }); err != nil || s.LR != 0.5 || s.Momentum != 0 {
		t.Fatalf("lr %v, momentum %v, %v", s.LR, s.Momentum, err)
	}
	job, own := s.Manifest("w").Optimizer, s.TableOptimizer()
	if job.Clip != nil || own == nil || own.Clip.Kind != schema.ClipRow || own.LR != job.LR {
		t.Errorf("job %+v, tables %+v", job, own)
	}
	if s.Clip = ""; s.TableOptimizer() != nil {
		t.Error("tables have an optimizer of their own without need")
	}
}

func TestOptimizerTextsThatAreWrong(t *testing.T) {
	for _, c := range []struct{ optimizer, schedule, clip, want string }{
		{"rmsprop", "", "", `optimizer.kind: "rmsprop": want sgd or adagrad`},
		{"adam:beta3=1", "", "", `optimizer adam:beta3=1: "beta3": want one of beta, beta1, beta2`},
		{"adam:beta1=x", "", "", `beta1 "x": want a number`},
		{"adam:beta1=0.5,beta1=0.6", "", "", "beta1 twice"},
		{"adam:", "", "", `"": want one of`},
		{"adam:beta1=2", "", "", "optimizer.beta1: 2: want below 1"},
		{"adam:l1=2", "", "", "adam has no l1"},
		{"sgd:nesterov=1", "", "", "no value: the word alone"},
		{"", "cosine", "", "optimizer.schedule.total: 0: want the version"},
		{"", "cosine:total=1.5", "", `total "1.5": want a number of batches`},
		{"", "steps:steps=5-8,gamma=1", "", "with + between them"},
		{"", "steps:steps=8+5,gamma=1", "", "ascending"},
		{"", "step:gamma=1", "", `optimizer.schedule.kind: "step"`},
		{"", "", "norm:1", `optimizer.clip.kind: "norm"`},
		{"", "", "1", `clip "1": want value:MAX, row:MAX or global:MAX`},
		{"", "", "value:0", "optimizer.clip.max: 0: want above 0"},
	} {
		s := shared()
		s.Optimizer, s.Schedule, s.Clip = c.optimizer, c.schedule, c.clip
		if err := s.Resolve(func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
		var check Check
		s.CheckTraining(&check)
		if err := check.Err(nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %q %q: %v, want %q", c.optimizer, c.schedule, c.clip, err, c.want)
		}
	}
	s := shared()
	s.Apply, s.Clip = schema.ApplyUpdate, "global:1"
	var check Check
	if s.CheckTraining(&check); check.Err(nil) == nil ||
		!strings.Contains(check.Err(nil).Error(), "each shard steps before") {
		t.Errorf("global with update: %v", check.Err(nil))
	}
	s = shared()
	s.Optimizer = "adam"
	if err := s.Resolve(func(flag string) bool { return flag == "momentum" }); err == nil ||
		!strings.Contains(err.Error(), "it is of sgd") {
		t.Errorf("momentum with adam: %v", err)
	}
}
