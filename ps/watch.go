package ps

import (
	"time"

	"gradbus/schema"
	"gradbus/shard"
)

// RoundTimes is how one bucket of one batch fared on a shard: all chunks of it there, of a dense bucket, or its sparse
// round.
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

// watch times the rounds of a worker for whoever wants to know (Options.Rounds); nil where nobody does. Rounds are
// not watched where no result says by its batch that one is over (shard.Answers): they would never be forgotten. The
// shard reads no time. It belongs to whoever holds the step lock.
type watch struct {
	tell   func(RoundTimes)
	chunks map[schema.Bucket]int // of a dense bucket on this shard
	shard  int
	job    schema.JobName

	rows schema.Bucket // of sparse rounds

	// open has the rounds that something has come of. At most ahead+1 batches are under way, so it is bounded by the
	// buckets here, and in async by those times the trainers.
	open map[watchKey]*watched
}

type watchKey struct {
	batch  schema.Batch
	bucket schema.Bucket
	whose  schema.Member // a trainer, or schema.All
}

type watched struct {
	RoundTimes
	left int // chunks that are not answered
}

func newWatch(c *shard.Config, tell func(RoundTimes)) *watch {
	if tell == nil {
		return nil
	}
	t := &watch{tell: tell, chunks: map[schema.Bucket]int{}, shard: c.Index, job: c.Job.Name,
		open: map[watchKey]*watched{},
		rows: c.Placement.SparseBucket(c.Index)}
	for _, chunk := range c.Placement.OwnedChunks(c.Index) {
		t.chunks[chunk.Bucket]++
	}
	return t
}

// arrived stamps a frame.
func (t *watch) arrived(it *item) {
	if t != nil {
		it.came = time.Now()
	}
}

// stepped notes a frame of a contribution that was taken in a step that began at some time, and what the step has put
// out. It gives the rounds that are over once that is published.
func (t *watch) stepped(it *item, whose schema.Member, began time.Time, outputs []shard.Output) (over []RoundTimes) {
	h := it.view.Head()
	w := t.round(it, &h, whose)
	w.Bytes += int64(len(it.view.Bytes()))
	w.Average += time.Since(began)
	if it.came.After(w.Last) {
		w.Last = it.came
	}
	if it.came.Before(w.First) {
		w.First = it.came
	}
	for i := range outputs { // in bounded, of later batches too, whose rounds have waited for this one
		if o := &outputs[i]; o.Kind == schema.KindMean {
			over = t.closed(over, watchKey{o.Batch, o.Bucket, whose})
		}
	}
	return over
}

// answered notes the answer to a parked lookup, which says in place of a result that a round over rows is over.
func (t *watch) answered(o *shard.Output, whose schema.Member) (over []RoundTimes) {
	v := o.Built.View()
	h := v.Head()
	return t.closed(nil, watchKey{h.Batch - schema.Batch(h.Offset) - 1, t.rows, whose})
}

// closed notes a result of a round, and appends that round where it is the last one.
func (t *watch) closed(over []RoundTimes, key watchKey) []RoundTimes {
	w := t.open[key]
	if w == nil {
		return over
	}
	if w.left--; w.left == 0 {
		delete(t.open, key) // and the further frames of a result over rows are of no round
		over = append(over, w.RoundTimes)
	}
	return over
}

// round is the round of a frame, made anew where it is the first.
func (t *watch) round(it *item, h *schema.Head, whose schema.Member) *watched {
	key := watchKey{h.Batch, h.Bucket, whose}
	w := t.open[key]
	if w == nil {
		w = &watched{left: 1, RoundTimes: RoundTimes{Job: t.job, Shard: t.shard, Batch: h.Batch, Bucket: h.Bucket,
			Sparse: h.Kind == schema.KindSparse, First: it.came, Last: it.came}}
		if !w.Sparse {
			w.left = t.chunks[h.Bucket]
		}
		t.open[key] = w
	}
	return w
}

// published tells of rounds whose last result has been handed to the network. It is called by who publishes.
func (t *watch) published(over []RoundTimes) {
	for i := range over {
		over[i].Answered = time.Now()
		t.tell(over[i])
	}
}
