package shard

import (
	"context"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// Gradients of another type or form than the job's are refused, and so are bags whose rows would not fit the sender's
// share, before anything is made of them. What is refused changes nothing: the right frame is taken afterwards.
func TestShardRefusesOtherWireForms(t *testing.T) {
	job := shardtest.SmallJob("wire", 1, 2)
	job.Parameters = job.Parameters[1:]
	job.Wire = schema.Wire{Gradients: schema.GradientsBFloat16}
	frame := func(l schema.Layout, bucket schema.Bucket, fill func(f *schema.Frame)) *schema.View {
		f := shardtest.NewFrame(t, l)
		f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Bucket: bucket, Chunks: 1,
			Node: lane.Node{Count: 2}, Lanes: 2, Weight: 2})
		fill(f)
		v, err := schema.Verify(f.Seal(), schema.Limits{})
		must(t, err)
		return &v
	}
	nothing := func(*schema.Frame) {}
	// Bags of 400 keys, all of which the table has, in a share that their 400 rows of 5 float32 and a key do not fit.
	bags := func(f *schema.Frame) {
		f.SetSection(0, schema.Section{Table: 0, Dim: 5, Count: 400})
		f.Bags()[0].Count = 1
		for i := range f.Keys() {
			f.Keys()[i] = uint64(i)
		}
	}
	const share = 400*(8+4*5) - 1
	half, bagged := schema.DTypeBFloat16, schema.Layout{Kind: schema.KindSparse, DType: schema.DTypeBFloat16, Sections: 1,
		Keys: 400, Bags: 1, Values: 10}
	for _, c := range []struct {
		name   string
		view   *schema.View
		share  int64
		reason schema.Reason
		text   string
	}{
		{"dense float32", frame(schema.Layout{Kind: schema.KindDense, Values: 12}, 0, nothing), share,
			schema.ReasonWrongDType, "travel as bfloat16"},
		{"dense float16", frame(schema.Layout{Kind: schema.KindDense, DType: schema.DTypeFloat16, Values: 6}, 0, nothing),
			share, schema.ReasonWrongDType, "float16 values"},
		{"dense", frame(schema.Layout{Kind: schema.KindDense, DType: half, Values: 6}, 0, nothing), share,
			schema.ReasonOK, ""},
		{"sparse float32", frame(schema.Layout{Kind: schema.KindSparse}, 1, nothing), share, schema.ReasonWrongDType,
			"travel as bfloat16"},
		{"bags beyond the share", frame(bagged, 1, bags), share, schema.ReasonOverBudget, "11200 bytes"},
		{"bags within it", frame(bagged, 1, bags), share + 1, schema.ReasonOK, ""},
		{"sparse", frame(schema.Layout{Kind: schema.KindSparse, DType: half}, 1, nothing), share, schema.ReasonOK, ""},
	} {
		s, err := New(context.Background(), Config{Job: job, Placement: schema.NewPlacement(job, 1), RunID: shardtest.RunID,
			Generation: shardtest.Generation, Backend: shardtest.New(t, job).Backend, Contributors: round.ContributorsOf(job),
			StagedBytesMax: c.share})
		must(t, err)
		outputs, reason, err := s.Step("t0", c.view, nil)
		must(t, err)
		if reason != c.reason || c.text != "" && (len(outputs) != 1 || !strings.Contains(outputs[0].Text, c.text)) {
			t.Errorf("%s: %v with %d outputs, want %v saying %q", c.name, reason, len(outputs), c.reason, c.text)
			for _, o := range outputs {
				t.Log(o.Text)
			}
		}
		s.Close()
	}
}

// The first frame of a batch is held to the share as well.
func TestShareHoldsForTheFirstFrameOfABatch(t *testing.T) {
	job := shardtest.SmallJob("share", 1, 1)
	job.Parameters, job.Tables = nil, job.Tables[:1]
	must(t, job.Validate())
	const share = 400*(8+4*5) - 1
	s, err := New(context.Background(), Config{Job: job, Placement: schema.NewPlacement(job, 1), RunID: shardtest.RunID,
		Generation: shardtest.Generation, Backend: shardtest.New(t, job).Backend, Contributors: round.ContributorsOf(job),
		StagedBytesMax: share})
	must(t, err)
	defer s.Close()
	h := schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Chunks: 1, Node: lane.Node{Count: 1},
		Lanes: 1, Weight: 1}
	for batch, want := range []schema.Reason{schema.ReasonOK, schema.ReasonOverBudget} {
		f := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindSparse, Sections: batch, Keys: 400 * batch, Bags: batch,
			Values: 20 * batch})
		h.Batch = schema.Batch(batch)
		f.SetHead(h)
		if batch > 0 {
			f.SetSection(0, schema.Section{Dim: 5, Count: 400})
			f.Bags()[0].Count = 1
			for i := range f.Keys() {
				f.Keys()[i] = uint64(i)
			}
		}
		v, err := schema.Verify(f.Seal(), schema.Limits{})
		must(t, err)
		_, reason, err := s.Step("t0", &v, nil)
		must(t, err)
		if reason != want {
			t.Errorf("batch %d: %v, want %v", batch, reason, want)
		}
	}
}
