package average

import (
	"time"

	"gradbus/trainer"
)

// recorder is a workload of one run, with what is measured of it.
type recorder struct {
	*workload
	system *system
	rank   int
	spans  bool
	found  trainerRun
}

// record takes what is known of a batch when it is complete. A batch in which this trainer has no samples is none of its own.
func (r *recorder) record(p *trainer.Progress) {
	if p.Samples == 0 {
		return
	}
	now := time.Now()
	began := now.Add(-p.BatchTime)
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
		f.Spans = append(f.Spans, span("compute", "batch_all", b, began, now, 0), span("compute", "forward_pass", b, t.begun, t.forward, 0),
			span("compute", "backward", b, t.forward, now, 0), span("compute", "backward pass", b, t.forward, t.backward, 0))
	}
}
