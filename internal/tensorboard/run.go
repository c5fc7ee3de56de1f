package tensorboard

import (
	"strconv"
	"time"
)

// Tags of what a run tells.
const (
	TagLoss     = "loss"               // mean over the samples since the point before, of this trainer's lanes
	TagRate     = "samples_per_second" // of all trainers, since the point before
	TagNorm     = "gradient_norm"      // of the batches that it was taken of
	TagAccuracy = "accuracy"           // on the test set, at the end
	TagManifest = "manifest"           // the job's, as text
	// Seconds of a batch, on average since the point before.
	TagKeys    = "phase_seconds/keys"
	TagLookup  = "phase_seconds/lookup"
	TagCompute = "phase_seconds/compute"
	TagSend    = "phase_seconds/send"
	TagResult  = "phase_seconds/result"
)

// pointEvery is the least time between two points of a curve. TensorBoard shows a thousand points of a curve, and a
// file of a day has a million.
const pointEvery = 100 * time.Millisecond

// Batch is a completed batch, as one trainer sees it.
type Batch struct {
	Batch      uint64
	Last       bool
	Samples    int     // of this trainer
	SamplesAll float64 // of all trainers
	Loss       float64 // mean over Samples
	Elapsed    time.Duration
	// Totals is asked where a point is written.
	Totals func() Totals
}

// Totals is what a trainer has counted since it began.
type Totals struct {
	Batches                             uint64
	Keys, Lookup, Compute, Send, Result time.Duration
	Norm                                *float64 // of the gradient of batch NormBatch; nil where it is not known
	NormBatch                           uint64
}

// Run makes curves of batches. It is used by one goroutine.
type Run struct {
	writer *Writer
	begun  bool

	// Since the point before.
	at      time.Duration
	totals  Totals
	loss    float64 // sum over samples
	samples float64
	all     float64
}

// NewRun begins the curves of a run.
func NewRun(w *Writer) *Run { return &Run{writer: w} }

// Batch takes a batch, and makes a point of it and of those since the point before, where the time has come: at the
// first batch, at the last, and in between at most every pointEvery. The step of a point is the number of batches that
// are complete.
func (r *Run) Batch(b Batch) {
	if b.Samples > 0 {
		r.loss += b.Loss * float64(b.Samples)
		r.samples += float64(b.Samples)
	}
	r.all += b.SamplesAll
	if r.begun && !b.Last && b.Elapsed-r.at < pointEvery {
		return
	}
	now := b.Totals()
	var point []Scalar
	if r.samples > 0 {
		point = append(point, Scalar{TagLoss, r.loss / r.samples})
	}
	if passed := (b.Elapsed - r.at).Seconds(); passed > 0 {
		point = append(point, Scalar{TagRate, r.all / passed})
	}
	if now.Norm != nil && (r.totals.Norm == nil || now.NormBatch != r.totals.NormBatch) {
		r.writer.Scalars(now.NormBatch+1, Scalar{TagNorm, *now.Norm})
	}
	if n := float64(now.Batches) - float64(r.totals.Batches); n > 0 {
		was := r.totals
		for _, phase := range []struct {
			tag       string
			now, then time.Duration
		}{{TagKeys, now.Keys, was.Keys}, {TagLookup, now.Lookup, was.Lookup}, {TagCompute, now.Compute, was.Compute},
			{TagSend, now.Send, was.Send}, {TagResult, now.Result, was.Result}} {
			point = append(point, Scalar{phase.tag, (phase.now - phase.then).Seconds() / n})
		}
	}
	r.writer.Scalars(b.Batch+1, point...)
	*r = Run{writer: r.writer, begun: true, at: b.Elapsed, totals: now}
}

// Accuracy ends the curves of a run of so many batches.
func (r *Run) Accuracy(batches uint64, accuracy float64) {
	r.writer.Scalars(batches, Scalar{TagAccuracy, accuracy})
}

// Settings gives a manifest's settings as Writer.Start takes them: what reads as a number is one.
func Settings(of map[string]string) map[string]any {
	all := map[string]any{}
	for name, text := range of {
		if x, err := strconv.ParseFloat(text, 64); err == nil {
			all[name] = x
		} else {
			all[name] = text
		}
	}
	return all
}
