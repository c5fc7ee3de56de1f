package ps

import (
	"strings"
	"testing"

	"gradbus/checkpoint"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/shardtest"
	"gradbus/shard/state"
)

func gatheredJob(t *testing.T) *schema.Job {
	job := (&schema.Job{Name: "gathered", Trainers: 2, Lanes: 2, Apply: schema.ApplyMean, ChunkBytes: schema.ChunkBytesMin,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1, Momentum: 0.9},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{700}, Init: schema.Zeros()}}}).WithDefaults()
	must(t, job.Validate())
	return job
}

// gatherer is a worker with no more than what gathering asks of it.
func gatherer(job *schema.Job) *worker {
	return &worker{config: shard.Config{Placement: schema.NewPlacement(job, 1)}}
}

// What is asked for is written once, whatever else comes; and what cannot be the answer ends the version, by name.
func TestGatheredAnswers(t *testing.T) {
	job := gatheredJob(t)
	const version = 3
	tensor := state.Tensor{Name: "w", Values: make([]float32, 700), Version: version, Steps: version,
		Slots: []state.Slot{{Name: "momentum", Values: make([]float32, 700)}}}
	told := func(change func(*schema.Head), tensors ...state.Tensor) (items []item) {
		h := schema.Head{Job: shardtest.RunID, Batch: version}
		frames, err := shard.NewPieces(job).Answer(h, &state.CopyPiece{Tensors: tensors})
		must(t, err)
		for _, f := range frames {
			v := f.View()
			h := v.Head()
			change(&h)
			f.SetHead(h)
			items = append(items, item{from: "t1", view: f.View()})
		}
		return items
	}
	same := func(*schema.Head) {}
	right := told(same, tensor)
	if len(right) < 2 {
		t.Fatalf("one chunk with its slots goes in %d frames, want several", len(right))
	}
	other := told(func(h *schema.Head) { h.Batch++ }, tensor)
	stranger := told(same, tensor)
	for i := range stranger {
		stranger[i].from = "t0"
	}
	fewer := told(func(h *schema.Head) { h.Chunk, h.Chunks = 0, 1 }, tensor)[:1]
	for name, c := range map[string]struct {
		items []item
		says  string // what ends the version; empty: it is whole
	}{
		"alone":                   {items: right},
		"twice":                   {items: append(append([]item{right[0]}, right...), right...)},
		"after another version":   {items: append(other, right...)},
		"after another trainer's": {items: append(stranger, right...)},
		"with another number":     {items: append(append([]item{right[0]}, fewer...), right[1:]...)},
		"nothing any more":        {told(same), "trainer t1 has nothing of version 3 any more"},
		"after other steps": {append(right[:1:1], told(func(h *schema.Head) { h.Weight++ }, tensor)[1]),
			"want as many"},
		"another parameter": {told(func(h *schema.Head) { h.Bucket++ }, tensor), "parameter 1 of 1"},
		"beyond the end":    {told(func(h *schema.Head) { h.Offset += 300 }, tensor), "which has 700"},
	} {
		t.Run(name, func(t *testing.T) {
			id := checkpoint.ID{Epoch: 1, Run: shardtest.RunID, Version: version}
			part, err := checkpoint.NewPart(t.TempDir(), job, id, 1, 0)
			must(t, err)
			defer part.Discard()
			a := answer{version: version, from: "t1", to: part, pieces: shard.NewPieces(job)}
			for i := range c.items {
				if err = a.take(gatherer(job), &c.items[i]); err != nil {
					break
				}
			}
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "t1") {
					t.Errorf("%v, want an error that says %q and names t1", err, c.says)
				}
				return
			}
			must(t, err)
			if !a.whole() {
				t.Error("it is not whole")
			}
			_, err = part.Commit()
			must(t, err)
		})
	}
}

// Of frames of state those are kept that answer the question that is open; under number 0 the ps asks nothing.
func TestGatheringTakesItsOwn(t *testing.T) {
	for _, c := range []struct {
		open   uint64
		number schema.Sequence
		kept   int
	}{{5, 5, 1}, {5, 4, 0}, {0, 0, 0}} {
		w := &worker{gathered: &gathering{came: newQueue(gatheredBytesMax)}}
		w.gathered.asked.Store(c.open)
		f := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindState, Values: 4})
		f.SetHead(schema.Head{Flags: schema.FlagParameters, Sequence: c.number})
		w.gathers(&item{view: f.View()})
		if kept := len(w.gathered.came.swap(nil)); kept != c.kept {
			t.Errorf("number %d, while %d is open: %d are kept, want %d", c.number, c.open, kept, c.kept)
		}
	}
}
