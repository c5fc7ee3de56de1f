package schema

import (
	"strings"
	"testing"

	"gradbus/lane"
)

// moduleSamples are frames about module 1 of a job, whose lanes are four: its input has two values a sample, its output
// one.
func moduleSamples(t testing.TB) []sample {
	context := func(values ...float32) func(*Frame) {
		return func(f *Frame) {
			copy(f.Float32s(), values)
			copy(f.Keys(), []uint64{5, 9})
		}
	}
	one := lane.Node{First: 3, Count: 1}
	return []sample{
		{"forward", build(t, Layout{Kind: KindForward, Values: 16},
			Head{Batch: 7, Bucket: 1, Chunks: 1, Node: one, Lanes: 4, Weight: 2, Sequence: 3},
			sampleValues(1, -2, 0.5, 4))},
		{"forward-evaluate", build(t, Layout{Kind: KindForward, Values: 8},
			Head{Bucket: 1, Chunks: 1, Node: one, Lanes: 4, Weight: 1, Sequence: 4, Flags: FlagEvaluate},
			sampleValues(1, -2))},
		{"backward", build(t, Layout{Kind: KindBackward, Values: 8, Keys: 1},
			Head{Bucket: 1, Chunks: 1, Lanes: 4, Sequence: 5, Flags: FlagInput}, context(0.5, -1))},
		{"backward-step", build(t, Layout{Kind: KindBackward, Values: 8, Keys: 1},
			Head{Bucket: 1, Chunks: 1, Lanes: 4, Weight: 2, Sequence: 5, Flags: FlagStep}, context(0.5, -1))},
		{"step", build(t, Layout{Kind: KindStep, Keys: 2}, Head{Bucket: 1, Chunks: 1, Lanes: 4, Weight: 64, Sequence: 6},
			context())},
		{"weights", build(t, Layout{Kind: KindWeights}, Head{Bucket: 1, Lanes: 4, Sequence: 7}, nil)},
		{"weights-gradients", build(t, Layout{Kind: KindWeights, Keys: 1},
			Head{Bucket: 1, Chunk: 3, Lanes: 4, Sequence: 8, Flags: FlagGradients}, context())},
		{"output", build(t, Layout{Kind: KindOutput, Values: 8, Keys: 1},
			Head{Batch: 12, Bucket: 1, Chunks: 1, Lanes: 4, Sequence: 3}, context(3, 4))},
		{"output-empty", build(t, Layout{Kind: KindOutput}, Head{Batch: 13, Bucket: 1, Chunks: 1, Lanes: 4, Sequence: 6},
			nil)},
	}
}

// moduleJob hosts a module of 2000 values a sample on shard 1, whose tensors take chunks of 1024.
func moduleJob() *Job {
	j := checkedJob()
	j.ChunkBytes = 4096
	j.Modules = []ModuleSpec{{Name: "a", In: []int{3}, Module: "[]", Samples: 4, Contexts: 1},
		{Name: "b", Shard: 3, In: []int{20, 100}, Module: "[]", Samples: 2, Contexts: 2}}
	return j
}

func TestCheckFrameOfModules(t *testing.T) {
	place := NewPlacement(moduleJob(), 2)
	node := lane.Node{First: 1, Count: 1}
	head := func(change func(*Head)) Head {
		h := Head{Bucket: 1, Chunks: 4, Node: node, Lanes: 4, Weight: 2, Sequence: 1}
		change(&h)
		return h
	}
	for _, c := range []struct {
		name   string
		kind   Kind
		head   Head
		values int
		owner  int
		reason Reason
		text   string
	}{
		{"first chunk", KindForward, head(func(h *Head) {}), 1024, 1, ReasonOK, ""},
		{"last chunk", KindForward, head(func(h *Head) { h.Chunk, h.Offset = 3, 3072 }), 928, 1, ReasonOK, ""},
		{"one sample", KindForward, head(func(h *Head) { h.Weight, h.Chunks = 1, 2 }), 1024, 1, ReasonOK, ""},
		{"no such module", KindForward, head(func(h *Head) { h.Bucket = 2 }), 1024, 1, ReasonUnknownModule, "the job has 2"},
		{"other shard", KindForward, head(func(h *Head) {}), 1024, 0, ReasonUnknownModule, `module "b" is on s1, not on s0`},
		{"no number", KindForward, head(func(h *Head) { h.Sequence = 0 }), 1024, 1, ReasonMalformed, "number"},
		{"no samples", KindForward, head(func(h *Head) { h.Weight = 0 }), 1024, 1, ReasonWrongWeight, "want 1 to 2"},
		{"too many samples", KindForward, head(func(h *Head) { h.Weight = 3 }), 1024, 1, ReasonWrongWeight, "want 1 to 2"},
		{"half a sample", KindForward, head(func(h *Head) { h.Weight = 1.5 }), 1024, 1, ReasonWrongWeight, "want 1 to 2"},
		{"chunks", KindForward, head(func(h *Head) { h.Chunks = 5 }), 1024, 1, ReasonWrongChunk, "want 4"},
		{"offset", KindForward, head(func(h *Head) { h.Offset = 1 }), 1024, 1, ReasonWrongShape, "want 0"},
		{"short chunk", KindForward, head(func(h *Head) {}), 1000, 1, ReasonWrongShape, "want 1024"},
		{"long last chunk", KindForward, head(func(h *Head) { h.Chunk, h.Offset = 3, 3072 }), 1024, 1, ReasonWrongShape,
			"want 928"},
		{"beyond the limit", KindBackward, head(func(h *Head) {
			h.Node, h.Chunk, h.Chunks, h.Offset = lane.Node{}, 8192, 8193, 8192*1024
		}), 1, 1, ReasonOversized, "at most"},
		{"lanes", KindForward, head(func(h *Head) { h.Lanes, h.Node = 2, lane.Node{Count: 1} }), 1024, 1, ReasonWrongNode,
			"the job has 4"},
	} {
		l := Layout{Kind: c.kind, Values: 4 * c.values, Keys: rules[c.kind].contexts.least}
		v, err := Verify(build(t, l, c.head, func(f *Frame) {
			for i := range f.Keys() {
				f.Keys()[i] = uint64(i + 1)
			}
		}), Limits{})
		check(t, err)
		err = place.CheckFrame(&v, c.owner)
		if ReasonOf(err) != c.reason || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.reason, c.text)
		}
	}
}

func TestVerifyCountsContexts(t *testing.T) {
	for _, c := range []struct {
		kind   Kind
		keys   []uint64
		reason Reason
	}{
		{KindForward, nil, ReasonOK}, {KindBackward, nil, ReasonWrongShape}, {KindBackward, []uint64{1}, ReasonOK},
		{KindBackward, []uint64{0}, ReasonUnsortedKeys}, {KindBackward, []uint64{1, 2}, ReasonWrongShape},
		{KindStep, nil, ReasonWrongShape}, {KindStep, []uint64{1, 2}, ReasonOK},
		{KindStep, []uint64{2, 2}, ReasonUnsortedKeys},
		{KindStep, make([]uint64, 65), ReasonWrongShape}, {KindOutput, []uint64{3, 4}, ReasonWrongShape},
		{KindWeights, []uint64{3}, ReasonOK},
	} {
		f, err := NewFrame(Layout{Kind: c.kind, Keys: len(c.keys)})
		check(t, err)
		f.SetHead(Head{Chunks: 1, Node: map[bool]lane.Node{true: {Count: 1}}[c.kind == KindForward], Lanes: 1})
		copy(f.Keys(), c.keys)
		if _, err := Verify(f.Seal(), Limits{}); ReasonOf(err) != c.reason {
			t.Errorf("%v with contexts %v: %v, want %v", c.kind, c.keys, err, c.reason)
		}
	}
	if _, err := NewFrame(Layout{Kind: KindForward, Keys: 1}); err == nil {
		t.Error("a forward frame with a context is laid out")
	}
}

func TestValidateModules(t *testing.T) {
	if err := moduleJob().Validate(); err != nil {
		t.Fatal(err)
	}
	alone := moduleJob()
	alone.Parameters, alone.Tables = nil, nil
	if err := alone.Validate(); err != nil {
		t.Errorf("modules alone: %v", err)
	}
	for field, change := range map[string]func(m *ModuleSpec){
		"modules[1].name: \"B\"":   func(m *ModuleSpec) { m.Name = "B" },
		"modules[1].name: \"a\"":   func(m *ModuleSpec) { m.Name = "a" },
		"modules[1].shard: -1":     func(m *ModuleSpec) { m.Shard = -1 },
		"modules[1].in: []":        func(m *ModuleSpec) { m.In = nil },
		"modules[1].in: [0]":       func(m *ModuleSpec) { m.In = []int{0} },
		"modules[1].samples: 5000": func(m *ModuleSpec) { m.Samples = 5000 },
		"modules[1].samples: 0":    func(m *ModuleSpec) { m.Samples = 0 },
		"modules[1].module: 0":     func(m *ModuleSpec) { m.Module = "" },
		"modules[1].contexts: 65":  func(m *ModuleSpec) { m.Contexts = 65 },
	} {
		j := moduleJob()
		change(&j.Modules[1])
		if err := j.Validate(); err == nil || !strings.Contains(err.Error(), field+": want") {
			t.Errorf("%v, want %s", err, field)
		}
	}
	named := moduleJob()
	named.Parameters[0].Name = "movie: title" // as a PyTorch program may have it
	if err := named.Validate(); err != nil {
		t.Error(err)
	}
	named.Parameters[0].Name = named.Modules[1].TensorName("0.weight")
	if err := named.Validate(); err == nil || !strings.Contains(err.Error(), "does not begin with") {
		t.Errorf("a parameter has the name of one of a module's: %v", err)
	}
	a, b := moduleJob(), moduleJob()
	b.Modules[1].In[1] = 101
	if field, have, want, _ := a.Diff(b); field != "modules[1].in[1]" || have != "100" || want != "101" {
		t.Errorf("difference in %s: %s and %s", field, have, want)
	}
}
