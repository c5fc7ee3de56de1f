package average

import (
	"fmt"

	"gradbus/schema"
	"gradbus/trainer"
)

// recorder is a workload of one run, with what is measured of it.
type recorder struct {
	*workload
	hook  func(b *trainer.BucketTimes) string
	spans bool
	found trainerRun
}

// hookMetrics names the metric of a bucket by who averages it. The second group of the hybrid hook has its own.
func hookMetrics(hook string) func(b *trainer.BucketTimes) string {
	return func(b *trainer.BucketTimes) string {
		kind := "dense"
		if b.Sparse {
			kind = "sparse"
		}
		switch {
		case b.Reduce == schema.ByShards:
			return hookFuture + "rpc_" + kind
		case hook == "hybrid" && b.Sparse:
			return hookC10D + transport + "_sparse_allreduce"
		}
		return hookFuture + transport + "_" + kind + "_allreduce"
	}
}

// record takes what is known of a batch when it is complete. A batch in which this trainer has no samples is none of
// its own.
func (r *recorder) record(p *trainer.Progress) {
	if p.Samples == 0 {
		return
	}
	began, now := p.Began, p.Began.Add(p.BatchTime)
	f, t := &r.found, &r.times
	f.Metrics.add(metricBatch, p.BatchTime)
	f.Metrics.add(metricForward, t.forward.Sub(t.begun))
	f.Metrics.add(metricBackward, now.Sub(t.forward))
	if f.Batches == 0 {
		f.LossFirst = p.Loss
	}
	f.Batches, f.Samples, f.LossLast = f.Batches+1, f.Samples+uint64(p.Samples), p.Loss
	if r.spans {
		b := uint64(p.Batch)
		f.Spans = append(f.Spans, span("compute", "batch_all", b, began, now, 0),
			span("compute", "forward_pass", b, t.begun, t.forward, 0),
			span("compute", "backward", b, t.forward, now, 0), span("compute", "backward pass", b, t.forward, t.backward, 0))
	}
	for i := range p.Buckets {
		k := &p.Buckets[i]
		name := r.hook(k)
		f.Metrics.add(name, k.Complete.Sub(k.Begun))
		if r.spans {
			track := fmt.Sprintf("bucket %d", k.Bucket)
			f.Spans = append(f.Spans, span(track, name, uint64(p.Batch), k.Begun, k.Complete, k.Bytes),
				span(track, "send", uint64(p.Batch), k.Begun, k.Sent, k.Bytes))
		}
	}
}
