package module

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/shardtest"
)

// The memory of modules follows from the formula, and the largest job's does not overflow.
func TestBytes(t *testing.T) {
	// A module of 6 values, padded to 32, on 3 samples of 2 values that give 2; contexts 2*2.
	job := testJob()
	job.Optimizer.Momentum = 0.9
	job.Modules = []schema.ModuleSpec{{Name: "m", In: []int{2}, Samples: 3, Contexts: 2,
		Module: `[{"linear":{"in":2,"out":2}}]`}}
	module, _, err := buildModule(&job.Modules[0])
	must(t, err)
	net := 3 * int64(netBytes(module, job.Modules[0].In))
	if got, want := (&Sizes{}).Bytes(job), (4+4+3+2)*32*4+(4+2)*net+(4+8)*(24+shard.FrameBytesOver)*17/16; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	job.Modules[0].Samples, job.Modules[0].Contexts, job.Trainers = 1<<16, 64, 4096
	job.Modules[0].Module = `[{"linear":{"in":2,"out":128}},` + strings.Repeat(`{"linear":{"in":128,"out":128}},`, 1000) +
		`{"relu":{}}]`
	if got := (&Sizes{}).Bytes(job); got < 1<<50 {
		t.Errorf("the largest of modules: %d bytes", got)
	}
}

// Making a module, of two parameters, ends with its context.
func TestMakingEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	ctx := &shardtest.Fading{Context: context.Background()}
	ctx.Looks.Store(1)
	if _, err := newHosted(ctx, b.Set, 0); err == nil {
		t.Error("a module was made whose context had ended")
	}
}

// The size of a module is measured once per configuration, and the cache stays within its bound.
func TestSizesAreRemembered(t *testing.T) {
	s := &Sizes{}
	job := testJob()
	spec := func(out int) schema.ModuleSpec {
		return schema.ModuleSpec{Name: "m", In: []int{2}, Samples: 3, Contexts: 2,
			Module: fmt.Sprintf(`[{"linear":{"in":2,"out":%d}}]`, out)}
	}
	job.Modules = []schema.ModuleSpec{spec(2), spec(3), spec(2)}
	for range 3 {
		if r := s.Check(job); r != nil {
			t.Fatal(r.Text)
		}
		if got, want := s.Bytes(job), (*Sizes)(nil).Bytes(job); got != want {
			t.Errorf("%d bytes are remembered, want %d", got, want)
		}
	}
	if s.builds != 2 {
		t.Errorf("%d modules were built, want 2", s.builds)
	}
	job.Modules = []schema.ModuleSpec{spec(2)}
	for i := range 100 {
		job.Modules[0].Module = strings.Repeat(" ", schema.ModuleConfigBytes-i)
		if s.Check(job) == nil {
			t.Error("blanks are a module")
		}
	}
	if s.bytes > sizesBytesMax || len(s.all) > 100 {
		t.Errorf("%d bytes of %d configurations are kept", s.bytes, len(s.all))
	}
}
