package mnist

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestSettingsValidate(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for want, change := range map[string]func(s *Settings){
		`job "A b": want 1 to 63 of a-z, 0-9 and -`:                     func(s *Settings) { s.Job = "A b" },
		`trainers 0: want 1 to 4096`:                                    func(s *Settings) { s.Trainers = 0 },
		`lanes -1: want 1 to 4096`:                                      func(s *Settings) { s.Lanes = -1 },
		`trainers 3: want at most as many as lanes, 2`:                  func(s *Settings) { s.Trainers, s.Lanes = 3, 2 },
		`epochs 0: want 1 to 100000`:                                    func(s *Settings) { s.Epochs = 0 },
		`batch 0: want 1 to 65536`:                                      func(s *Settings) { s.Batch = 0 },
		`batches 1099511627777: want 0 to 1099511627776`:                func(s *Settings) { s.Batches = batchesMax + 1 },
		`lr 0: want a finite number above 0`:                            func(s *Settings) { s.LR = 0 },
		`lr NaN: want a finite number above 0`:                          func(s *Settings) { s.LR = math.NaN() },
		`momentum 1: want at least 0 and below 1`:                       func(s *Settings) { s.Momentum = 1 },
		`apply "x": want "update" or "mean"`:                            func(s *Settings) { s.Apply = "x" },
		`reduce "x": want "shards" or "trainers"`:                       func(s *Settings) { s.Reduce = "x" },
		`apply "update" with reduce "trainers": want "mean"`:            func(s *Settings) { s.Reduce = "trainers" },
		`consistency "x": want "sync", "bounded", "async" or "grouped"`: func(s *Settings) { s.Consistency = "x" },
		`staleness 0 with consistency "bounded": want 1 to 16`:          func(s *Settings) { s.Consistency = "bounded" },
		`apply "mean" with consistency "async": want "update"`: func(s *Settings) {
			s.Consistency, s.Apply = "async", "mean"
		},
		`apply "mean" with consistency "grouped": want "update"`: func(s *Settings) {
			s.Consistency, s.Apply = "grouped", "mean"
		},
		`group 3: want 0 to 2`: func(s *Settings) { s.Consistency, s.Trainers, s.Group = "grouped", 2, 3 },
		`group 1 with consistency "sync": want 0, or consistency "grouped"`: func(s *Settings) { s.Group = 1 },
		`wire "x": want "float32", "bfloat16" or "float16"`:                 func(s *Settings) { s.Wire.Gradients = "x" },
		`error feedback with wire float32: want bfloat16 or fl`:             func(s *Settings) { s.Wire.ErrorFeedback = true },
	} {
		s := Defaults()
		change(&s)
		if err := s.Validate(); !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
}

// The model is the original's: its parameters are 1,199,882, and a job of it is valid.
func TestModel(t *testing.T) {
	total := 0
	for _, p := range Model().Parameters() {
		total += p.Elements()
	}
	if total != 1_199_882 {
		t.Errorf("%d parameters, want 1,199,882", total)
	}
	job := Job(Defaults(), Synthetic(10, 10), Model(), "own")
	if err := job.Validate(); err != nil {
		t.Error(err)
	}
	if job.Settings["library"] != "own" || job.Parameters[0].Name != "0.weight" || job.Parameters[0].Init.Scale != 1.0/3 {
		t.Errorf("settings %v, first parameter %v", job.Settings, job.Parameters[0])
	}
	s := Defaults()
	if got := s.Run(Synthetic(100, 1)); got != 3*2 {
		t.Errorf("%d batches for 3 epochs of 100 samples in batches of 64, want 6", got)
	}
	if s.Batches = 7; s.Run(Synthetic(100, 1)) != 7 {
		t.Error("batches do not count")
	}
}
