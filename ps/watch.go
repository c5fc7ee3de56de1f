package ps

import (
	"maps"
	"slices"
	"sync"
	"time"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard"
)

// RoundTimes are the times of one bucket of one batch on a shard: all its chunks there, for a dense bucket, or its
// sparse round.
type RoundTimes struct {
	Job    schema.JobName
	Shard  int
	Batch  schema.Batch
	Bucket schema.Bucket
	Sparse bool
	Bytes  int64 // of the frames that were taken

	First         time.Time     // when the first frame had arrived, from whichever trainer
	FirstGradient time.Time     // when the first trainer's gradient had: all frames of all its lanes
	LastGradient  time.Time     // when the last one's had
	Answered      time.Time     // when the last result had been handed to the network
	OnArrival     time.Duration // spent in adding gradients up as they came
	// in what was left of the sum, and in the division; with the optimizer where the shard has one
	Average time.Duration
}

// Straggler is from the first gradient to the last; 0 where one trainer contributes.
func (r *RoundTimes) Straggler() time.Duration { return r.LastGradient.Sub(r.FirstGradient) }

// Turnaround is from the first gradient until all were answered.
func (r *RoundTimes) Turnaround() time.Duration { return r.Answered.Sub(r.FirstGradient) }

// watch times the rounds of a worker, and adds up the times of its buckets (bucketTimes). It does not watch rounds if
// no result names by its batch one that has closed (shard.Answers). The shard reads no clock. Except for times, the
// holder of the step lock owns it.
type watch struct {
	tell         func(RoundTimes)      // Options.Rounds; may be nil
	timed        *timedBackend         // what the shard adds up with
	chunks       map[schema.Bucket]int // of a dense bucket on this shard
	shard        int
	job          schema.JobName
	contributors int
	rows         schema.Bucket // of sparse rounds
	open         map[watchKey]*watched
	slots        schema.Batch // batches of a bucket that may be open at once
	free         []*watched
	closings     []closing // of the step under way
	times        bucketTimes
}

// watchKey is where a round is watched. A newer batch takes the place of one that no result has ended, so what is open
// is bounded by the buckets here times ahead+1, and in async by those times the trainers.
type watchKey struct {
	bucket schema.Bucket
	whose  schema.Member // a trainer, or schema.All
	slot   schema.Batch
}

// watched is a round that something has come of.
type watched struct {
	RoundTimes
	left int         // chunks that are not answered
	came []time.Time // by contributor: when its last frame had arrived; zero where none has
}

// gradients finds the first and the last gradient that is here whole: in a round that has closed all are.
func (w *watched) gradients() {
	for _, at := range w.came {
		if at.IsZero() {
			continue
		}
		if w.FirstGradient.IsZero() || at.Before(w.FirstGradient) {
			w.FirstGradient = at
		}
		if at.After(w.LastGradient) {
			w.LastGradient = at
		}
	}
}

// closing is the moment at which a shard began to close a round, as the time that its backend had spent.
type closing struct {
	key   watchKey
	batch schema.Batch
	spent time.Duration
}

func newWatch(c *shard.Config, timed *timedBackend, tell func(RoundTimes)) *watch {
	t := &watch{tell: tell, timed: timed, chunks: map[schema.Bucket]int{}, shard: c.Index, job: c.Job.Name,
		contributors: len(c.Contributors), open: map[watchKey]*watched{}, rows: c.Placement.SparseBucket(c.Index),
		slots: schema.Batch(c.Placement.Plan.Ahead) + 1}
	for _, chunk := range c.Placement.OwnedChunks(c.Index) {
		t.chunks[chunk.Bucket]++
	}
	t.times.begin(slices.Sorted(maps.Keys(t.chunks)), t.rows)
	return t
}

func (t *watch) key(b schema.Batch, bucket schema.Bucket, whose schema.Member) watchKey {
	return watchKey{bucket, whose, b % t.slots}
}

// closing is shard.Config.OnClosing.
func (t *watch) closing(whose schema.Member, b schema.Batch, bucket schema.Bucket) {
	t.closings = append(t.closings, closing{t.key(b, bucket, whose), b, t.timed.spent})
}

// begin is called before a step. It gives what the shard's backend has spent so far.
func (t *watch) begin() time.Duration {
	t.closings = t.closings[:0]
	return t.timed.spent
}

// stepped notes a frame of a contribution that was taken, what the step has put out, and what the shard's backend had
// spent before. It gives the rounds that are over once that is published.
func (t *watch) stepped(it *item, contributor int, whose schema.Member, before time.Duration,
	outputs []shard.Output) (over []RoundTimes) {
	h := it.view.Head()
	w := t.round(it, &h, whose)
	w.Bytes += int64(len(it.view.Bytes()))
	if it.came.Before(w.First) {
		w.First = it.came
	}
	if it.came.After(w.came[contributor]) {
		w.came[contributor] = it.came
	}
	t.spent(w, before)
	for i := range outputs { // in bounded, of later batches too, whose rounds have waited for this one
		if o := &outputs[i]; o.Kind == schema.KindMean {
			over = t.closed(over, t.key(o.Batch, o.Bucket, whose), o.Batch)
		}
	}
	return over
}

// spent deals what the backend has spent in a step to the rounds that it was for.
func (t *watch) spent(w *watched, before time.Duration) {
	for i := range t.closings {
		c, end := &t.closings[i], t.timed.spent
		if i+1 < len(t.closings) {
			end = t.closings[i+1].spent
		}
		if i == 0 {
			w.OnArrival += c.spent - before
		}
		if of := t.open[c.key]; of != nil && of.Batch == c.batch {
			of.Average += end - c.spent
		}
	}
	if len(t.closings) == 0 {
		w.OnArrival += t.timed.spent - before
	}
}

// answered notes the answer to a parked lookup, which says in place of a result that a round over rows is over.
func (t *watch) answered(o *shard.Output, whose schema.Member) (over []RoundTimes) {
	v := o.Built.View()
	h := v.Head()
	b := h.Batch - schema.Batch(h.Offset) - 1
	return t.closed(nil, t.key(b, t.rows, whose), b)
}

// closed notes a result of a round, and appends that round where it is the last one.
func (t *watch) closed(over []RoundTimes, key watchKey, b schema.Batch) []RoundTimes {
	w := t.open[key]
	if w == nil || w.Batch != b {
		return over
	}
	if w.left--; w.left == 0 {
		delete(t.open, key) // and the further frames of a result over rows are of no round
		t.free = append(t.free, w)
		w.gradients()
		over = append(over, w.RoundTimes)
	}
	return over
}

// round is the round of a frame, made anew where it is the first.
func (t *watch) round(it *item, h *schema.Head, whose schema.Member) *watched {
	key := t.key(h.Batch, h.Bucket, whose)
	w := t.open[key]
	if w != nil && w.Batch == h.Batch {
		return w
	}
	if last := len(t.free) - 1; w == nil && last >= 0 {
		w, t.free = t.free[last], t.free[:last]
	}
	if w == nil {
		w = &watched{came: make([]time.Time, t.contributors)}
	}
	w.RoundTimes = RoundTimes{Job: t.job, Shard: t.shard, Batch: h.Batch, Bucket: h.Bucket,
		Sparse: h.Kind == schema.KindSparse, First: it.came}
	w.left = 1
	if !w.Sparse {
		w.left = t.chunks[h.Bucket]
	}
	clear(w.came)
	t.open[key] = w
	return w
}

// published tells of rounds whose last result has been handed to the network. It is called by who publishes.
func (t *watch) published(over []RoundTimes) {
	for i := range over {
		over[i].Answered = time.Now()
		t.times.add(&over[i])
		if t.tell != nil {
			t.tell(over[i])
		}
	}
}

// bucketTimes are the times of the rounds of each bucket: the first buckets of a shard, and its rows.
type bucketTimes struct {
	mu sync.Mutex // a leaf
	of []schema.BucketReport
}

func (s *bucketTimes) begin(dense []schema.Bucket, rows schema.Bucket) {
	for _, b := range dense[:min(len(dense), schema.TelemetryBucketsMax-1)] {
		s.of = append(s.of, schema.BucketReport{Bucket: b})
	}
	s.of = append(s.of, schema.BucketReport{Bucket: rows, Sparse: true})
}

func (s *bucketTimes) add(r *RoundTimes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.of, func(b schema.BucketReport) bool { return b.Bucket == r.Bucket })
	if at < 0 {
		return
	}
	b := &s.of[at]
	for _, of := range []struct {
		took                      time.Duration
		sum, least, most, squares *schema.Real
	}{
		{r.Straggler(), &b.StragglerSeconds, &b.StragglerMinSeconds, &b.StragglerMaxSeconds, &b.StragglerSquaredSeconds},
		{r.Turnaround(), &b.BatchSeconds, &b.BatchMinSeconds, &b.BatchMaxSeconds, &b.BatchSquaredSeconds},
		{r.Average, &b.AverageSeconds, &b.AverageMinSeconds, &b.AverageMaxSeconds, &b.AverageSquaredSeconds},
	} {
		took := schema.Real(of.took.Seconds())
		if b.Rounds == 0 {
			*of.least = took
		}
		*of.sum, *of.least, *of.most = *of.sum+took, min(*of.least, took), max(*of.most, took)
		*of.squares += took * took
	}
	b.ArrivalSeconds += schema.Real(r.OnArrival.Seconds())
	b.Rounds++
}

// report lists the buckets that have had a round.
func (s *bucketTimes) report() []schema.BucketReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.of), func(b schema.BucketReport) bool { return b.Rounds == 0 })
}

// timedBackend times a shard's backend calls on gradients and parameters: sums, merges and optimizers. The step lock of
// the shard's worker guards it. It does not include answers to lookups, or the work of hosted modules.
type timedBackend struct {
	cuda.Backend
	spent time.Duration
	bytes uint64 // read and written, as the operations' arguments say
}

// took notes a call that began at some time, with what it has touched.
func (b *timedBackend) took(began time.Time, touched int) {
	b.spent += time.Since(began)
	b.bytes += uint64(touched)
}

func sizeOf(vectors ...cuda.Vector) (bytes int) {
	for i := range vectors {
		bytes += vectors[i].Len() * vectors[i].DType().Bytes()
	}
	return bytes
}

func sizeOfTerms(terms []cuda.Term) (bytes int) {
	for i := range terms {
		bytes += sizeOf(terms[i].Values)
	}
	return bytes
}

func sizeOfSlots(slots []cuda.Slot) (bytes int) {
	for i := range slots {
		bytes += 2 * sizeOf(slots[i].After) // of a table, Before is all of it, of which as much is read
	}
	return bytes
}

// BagBackward implements cuda.Backend.
func (b *timedBackend) BagBackward(a cuda.BagBackward) (int, error) {
	began := time.Now()
	n, err := b.Backend.BagBackward(a)
	b.took(began, sizeOf(a.IDs, a.GradOut)+4*a.Dim*n)
	return n, err
}

// Coalesce implements cuda.Backend.
func (b *timedBackend) Coalesce(a cuda.Coalesce) (int, error) {
	began := time.Now()
	n, err := b.Backend.Coalesce(a)
	b.took(began, sizeOf(a.Keys, a.Rows)+4*a.Dim*n)
	return n, err
}

// Merge implements cuda.Backend.
func (b *timedBackend) Merge(a cuda.Merge) (int, error) {
	began := time.Now()
	n, err := b.Backend.Merge(a)
	touched := 4 * a.Dim * n
	for i := range a.Terms {
		touched += sizeOf(a.Terms[i].Keys, a.Terms[i].Rows)
	}
	b.took(began, touched)
	return n, err
}

// ApplyRows implements cuda.Backend.
func (b *timedBackend) ApplyRows(a cuda.ApplyRows) error {
	began := time.Now()
	err := b.Backend.ApplyRows(a)
	b.took(began, sizeOf(a.Index, a.Grad, a.Out)+sizeOf(a.Out)+sizeOfSlots(a.Slots))
	return err
}

// CoalesceApply implements cuda.Backend.
func (b *timedBackend) CoalesceApply(a cuda.CoalesceApply) (int, error) {
	began := time.Now()
	n, err := b.Backend.CoalesceApply(a)
	b.took(began, sizeOf(a.Keys, a.Rows)+2*4*a.Dim*n*(1+len(a.Slots)))
	return n, err
}

// ApplyDense implements cuda.Backend.
func (b *timedBackend) ApplyDense(a cuda.ApplyDense) error {
	began := time.Now()
	err := b.Backend.ApplyDense(a)
	b.took(began, sizeOf(a.Param, a.Grad, a.Out)+sizeOfSlots(a.Slots))
	return err
}

// Average implements cuda.Backend.
func (b *timedBackend) Average(a cuda.Average) error {
	began := time.Now()
	err := b.Backend.Average(a)
	b.took(began, sizeOfTerms(a.Terms)+sizeOf(a.Out))
	return err
}

// AverageApply implements cuda.Backend.
func (b *timedBackend) AverageApply(a cuda.AverageApply) error {
	began := time.Now()
	err := b.Backend.AverageApply(a)
	b.took(began, sizeOfTerms(a.Terms)+sizeOf(a.Param, a.Out)+sizeOfSlots(a.Slots))
	return err
}
