package ps

import (
	"time"

	"gradbus/schema"
)

// RoundTimes is how one bucket of one batch fared on a shard: all chunks of it, of a dense bucket, or its sparse round.
type RoundTimes struct {
	Job    schema.JobName
	Shard  int
	Batch  schema.Batch
	Bucket schema.Bucket
	Sparse bool
	Bytes  int64 // of the frames that were taken

	First    time.Time     // when the first frame had arrived, from whichever trainer
	Last     time.Time     // when the last one had
	Answered time.Time     // when the last result had been handed to the network
	Average  time.Duration // spent in the shard on these frames: checking them, adding them up, dividing
}

// watch times the rounds of a worker for whoever wants to know (Options.Rounds); nil where nobody does, and where no result
// says by its batch that a round is over: rows that are applied alone have none, and a group's has each trainer's own. The
// shard knows no clock. It belongs to whoever has the turn.
type watch struct {
	tell  func(RoundTimes)
	place *schema.Placement
	shard int
	job   schema.JobName
	alone bool // rounds are one trainer's

	// open has the rounds that something has come of. At most ahead+1 batches are under way, so it is bounded by the buckets
	// here, and in async by those times the trainers.
	open map[watchKey]*watched
	done []*watched // in the step under way
}

type watchKey struct {
	batch  schema.Batch
	bucket schema.Bucket
	from   schema.Member // where rounds are one trainer's; else empty
}

type watched struct {
	RoundTimes
	left int // chunks that are not answered
}

func newWatch(c *ShardConfig, tell func(RoundTimes)) *watch {
	plan := c.Placement.Plan
	if tell == nil || plan.AsyncTables || plan.Clock == schema.ClockGrouped {
		return nil
	}
	return &watch{tell: tell, place: c.Placement, shard: c.Index, job: c.Job.Name, alone: plan.PerTrainer(),
		open: map[watchKey]*watched{}}
}

// arrived stamps a frame.
func (t *watch) arrived(it *item) {
	if t != nil {
		it.came = time.Now()
	}
}

// stepped notes a frame that was taken in a step that began at some time, and what the step has put out.
func (t *watch) stepped(it *item, began time.Time, outputs []Output) {
	if t == nil {
		return
	}
	h := it.view.Head()
	if h.Kind != schema.KindDense && h.Kind != schema.KindSparse {
		return
	}
	w := t.round(it, &h)
	w.Bytes += int64(len(it.view.Bytes()))
	w.Average += time.Since(began)
	if it.came.After(w.Last) {
		w.Last = it.came
	}
	if it.came.Before(w.First) {
		w.First = it.came
	}
	for i := range outputs { // in bounded, of later batches too, whose rounds have waited for this one
		o := &outputs[i]
		key := t.key(o.Batch, o.Bucket, it.from)
		if w := t.open[key]; w != nil && o.Kind == schema.KindMean {
			if w.left--; w.left == 0 {
				delete(t.open, key) // and the further frames of a result over rows are of no round
				t.done = append(t.done, w)
			}
		}
	}
}

func (t *watch) key(b schema.Batch, bucket schema.Bucket, from schema.Member) watchKey {
	if !t.alone {
		from = ""
	}
	return watchKey{b, bucket, from}
}

// round is the round of a frame, made anew where it is the first.
func (t *watch) round(it *item, h *schema.Head) *watched {
	key := t.key(h.Batch, h.Bucket, it.from)
	w := t.open[key]
	if w == nil {
		w = &watched{left: 1, RoundTimes: RoundTimes{Job: t.job, Shard: t.shard, Batch: h.Batch, Bucket: h.Bucket,
			Sparse: h.Kind == schema.KindSparse, First: it.came, Last: it.came}}
		if !w.Sparse {
			w.left = t.place.Chunks(h.Bucket)
		}
		t.open[key] = w
	}
	return w
}

// published tells of the rounds whose last result has been handed to the network.
func (t *watch) published() {
	if t == nil {
		return
	}
	for _, w := range t.done {
		w.Answered = time.Now()
		t.tell(w.RoundTimes)
	}
	t.done = t.done[:0]
}
