package packages

import (
	"errors"
	"math"
	"strings"
	"testing"

	"gradbus/examples/packages/corpus"
	"gradbus/schema"
)

// handMade is a data set whose examples have as many keys as their index says, modulo 4.
func handMade(train, test, classes int) *corpus.Data {
	d := &corpus.Data{Source: "hand-made", Digest: [32]byte{1, 2}}
	for c := range classes {
		d.Classes = append(d.Classes, string(rune('a'+c)))
	}
	for _, c := range []struct {
		to *corpus.Examples
		n  int
	}{{&d.Train, train}, {&d.Test, test}} {
		c.to.Offsets = []int64{0}
		for i := range c.n {
			for k := range i % 4 {
				c.to.Keys = append(c.to.Keys, uint64(i*10+k))
			}
			c.to.Offsets = append(c.to.Offsets, int64(len(c.to.Keys)))
			c.to.Labels = append(c.to.Labels, int32(i%classes))
		}
	}
	return d
}

func TestSettingsValidate(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for want, change := range map[string]func(s *Settings){
		`job "A b": want 1 to 63 of a-z, 0-9 and -`:    func(s *Settings) { s.Job = "A b" },
		`trainers 0: want 1 to 4096`:                   func(s *Settings) { s.Trainers = 0 },
		`lanes -1: want 1 to 4096`:                     func(s *Settings) { s.Lanes = -1 },
		`lanes 4097: want 1 to 4096`:                   func(s *Settings) { s.Lanes = 4097 },
		`trainers 3: want at most as many as lanes, 2`: func(s *Settings) { s.Trainers, s.Lanes = 3, 2 },
		`epochs 0: want 1 to 100000`:                   func(s *Settings) { s.Epochs = 0 },
		`batch 0: want 1 to 1048576`:                   func(s *Settings) { s.Batch = 0 },
		`dim 4097: want 1 to 4096`:                     func(s *Settings) { s.Dim = 4097 },
		`lr 0: want a finite number above 0`:           func(s *Settings) { s.LR = 0 },
		`lr NaN: want a finite number above 0`:         func(s *Settings) { s.LR = math.NaN() },
		`lr 1e+60: want a finite number above 0`:       func(s *Settings) { s.LR = 1e60 }, // no float32
		`momentum 1: want at least 0 and below 1`:      func(s *Settings) { s.Momentum = 1 },
		`momentum -0.1: want at least 0 and below 1`:   func(s *Settings) { s.Momentum = -0.1 },
		`apply "both": want "update" or "mean"`:        func(s *Settings) { s.Apply = "both" },

		`consistency "lazy": want "sync", "bounded", "async" or "grouped"`: func(s *Settings) { s.Consistency = "lazy" },
		`staleness 1 with consistency "sync": want 0 to 0`:                 func(s *Settings) { s.Staleness = 1 },
		`staleness 0 with consistency "bounded": want 1 to 16`:             func(s *Settings) { s.Consistency = "bounded" },
		`apply "mean" with consistency "async": want "update"`: func(s *Settings) {
			s.Consistency, s.Apply = "async", "mean"
		},

		`consistency "grouped": want "sync", "bounded" or "async", since this workload has tables, and groups update dense parameters alone`: func(s *Settings) {
			s.Consistency = "grouped"
		},
		`group 2 with consistency "sync": want 0, or consistency "grouped"`: func(s *Settings) { s.Group = 2 },

		`wire "int8": want "float32", "bfloat16" or "float16"`:       func(s *Settings) { s.Wire.Gradients = "int8" },
		`error feedback with wire float32: want bfloat16 or float16`: func(s *Settings) { s.Wire.ErrorFeedback = true },

		`placement "host": want "columns", "tables" or "rows"`: func(s *Settings) { s.Placement = "host" },
		`placement "tables" with consistency "async" and reduce "": want "rows", or consistency "sync" and reduce "shards"`: func(s *Settings) {
			s.Placement, s.Consistency = "tables", "async"
		},
	} {
		s := Defaults()
		change(&s)
		err := s.Validate()
		if !errors.Is(err, ErrSettings) || !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	all := Settings{}.Validate()
	for _, field := range []string{"job", "trainers", "epochs", "batch", "dim", "lr", "apply"} {
		if !strings.Contains(all.Error(), field+" ") {
			t.Errorf("nothing about %s in %v", field, all)
		}
	}
}

func TestJob(t *testing.T) {
	data := handMade(10, 2, 3)
	s := Defaults()
	s.Trainers, s.LR, s.Momentum, s.Seed = 2, 0.1, 0.5, 9
	j := Job(s, data)
	if err := j.Validate(); err != nil {
		t.Fatal(err)
	}
	if j.Lanes != 8 || j.Trainers != 2 || j.Seed != 9 || j.Workload != Name || j.Optimizer.LR != 0.1 ||
		j.Optimizer.Momentum != 0.5 {
		t.Errorf("job %+v", j)
	}
	if p := j.Parameters; len(p) != 2 || p[0].Elements() != 3*64 || p[1].Elements() != 3 || p[0].Init.Scale != 0.125 {
		t.Errorf("parameters %+v", p)
	}
	if want := "0102" + strings.Repeat("00", 30); j.Settings["data"] != want {
		t.Errorf("data %q, want %q", j.Settings["data"], want)
	}
	if table := j.Tables[0]; table.Placement != schema.PlacementTables || table.Pooling != schema.PoolingMean {
		t.Errorf("table %+v: want shards to pool it", table)
	}
	// Whatever trainers must agree on is part of the manifest.
	for name, change := range map[string]func(s *Settings, d *corpus.Data){
		"trainers":            func(s *Settings, _ *corpus.Data) { s.Trainers, s.Lanes = 1, 2 },
		"lanes":               func(s *Settings, _ *corpus.Data) { s.Lanes = 3 },
		"settings.epochs":     func(s *Settings, _ *corpus.Data) { s.Epochs = 1 },
		"settings.batch":      func(s *Settings, _ *corpus.Data) { s.Batch = 3 },
		"tables[0].dim":       func(s *Settings, _ *corpus.Data) { s.Dim = 8 },
		"optimizer.lr":        func(s *Settings, _ *corpus.Data) { s.LR = 1 },
		"wire.gradients":      func(s *Settings, _ *corpus.Data) { s.Wire.Gradients = schema.GradientsBFloat16 },
		"tables[0].placement": func(s *Settings, _ *corpus.Data) { s.Placement = schema.PlacementColumns },
		"seed":                func(s *Settings, _ *corpus.Data) { s.Seed = 8 },
		"apply":               func(s *Settings, _ *corpus.Data) { s.Apply = schema.ApplyMean },
		"settings.data":       func(_ *Settings, d *corpus.Data) { d.Digest[5] = 1 },
	} {
		s2, d2 := s, *data
		change(&s2, &d2)
		field, have, want, differs := j.Diff(Job(s2, &d2))
		if !differs || have == want || field != name && name != "tables[0].dim" {
			t.Errorf("%s changed: differs %v in %q: %s, %s", name, differs, field, have, want)
		}
	}
}

// Jobs that cannot have the table pooled on shards have it cut by rows, without anybody asking for it.
func TestJobOfEveryModeIsValid(t *testing.T) {
	for _, change := range []func(s *Settings){
		func(s *Settings) {},
		func(s *Settings) { s.Consistency, s.Staleness = schema.ConsistencyBounded, 1 },
		func(s *Settings) { s.Consistency = schema.ConsistencyAsync },
		func(s *Settings) { s.Apply, s.Reduce = schema.ApplyMean, schema.ReduceTrainers },
		func(s *Settings) { s.Placement = schema.PlacementColumns },
	} {
		s := Defaults()
		change(&s)
		j := Job(s, handMade(10, 2, 3))
		if err := errors.Join(s.Validate(), j.Validate()); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		if pooled := j.Tables[0].Cut().PooledByShards(); pooled != (j.Consistency == schema.ConsistencySync &&
			!j.Tables[0].Replicated) {
			t.Errorf("%+v: table %+v", s, j.Tables[0])
		}
	}
}
