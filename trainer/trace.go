package trainer

import (
	"slices"
	"sync"
	"time"

	"gradbus/schema"
)

// BucketTimes are the times of the gradient of one bucket of one batch, as seen by this trainer: all chunks of a dense
// bucket, or the rows that one owner aggregates. Begun to Complete is the time of a communication hook.
type BucketTimes struct {
	Bucket schema.Bucket
	Sparse bool
	Reduce schema.Party // who adds it up

	Begun    time.Time // when its first chunk was complete here and began to leave
	Sent     time.Time // when its last chunk had left
	Complete time.Time // when its last result was in place, with what the optimizer makes of it
	Bytes    int64     // of the frames that left for others, each counted once
}

// bucketTrace notes the times of one batch's buckets; nil if not asked for (Config.Timeline). Jobs in which
// several batches are open have one for each.
type bucketTrace struct {
	mu   sync.Mutex // a leaf
	of   []BucketTimes
	left []int         // rounds of each bucket whose result is missing
	all  []int         // rounds of each bucket
	at   []int         // [known bucket] index in of, or -1
	told []BucketTimes // copied for the report
}

func newBucketTrace(place *schema.Placement, sparse []rowOwner) *bucketTrace {
	t := &bucketTrace{at: make([]int, len(place.Buckets)+place.Owners())}
	for i := range t.at {
		t.at[i] = -1
	}
	add := func(b schema.Bucket, isSparse bool, reduce schema.Party, rounds int) {
		t.at[b] = len(t.of)
		t.of, t.all = append(t.of, BucketTimes{Bucket: b, Sparse: isSparse, Reduce: reduce}), append(t.all, rounds)
	}
	for _, b := range place.Buckets {
		add(b.ID, false, place.Plan.Reducer, place.Chunks(b.ID))
	}
	for _, o := range sparse {
		reduce := schema.ByShards
		if o.owner >= place.Shards {
			reduce = schema.ByTrainers
		}
		add(o.bucket, true, reduce, 1)
	}
	t.left = slices.Clone(t.all)
	return t
}

// reset starts a batch.
func (t *bucketTrace) reset() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	copy(t.left, t.all)
	for i := range t.of {
		o := &t.of[i]
		o.Begun, o.Sent, o.Complete, o.Bytes = time.Time{}, time.Time{}, time.Time{}, 0
	}
}

// begin notes that a bucket begins to leave.
func (t *bucketTrace) begin(b schema.Bucket) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := &t.of[t.at[b]]; o.Begun.IsZero() {
		o.Begun = time.Now()
	}
}

// sent notes that some of a bucket has left: bytes of frames, 0 for what stays here.
func (t *bucketTrace) sent(b schema.Bucket, bytes int) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := &t.of[t.at[b]]
	o.Sent, o.Bytes = time.Now(), o.Bytes+int64(bytes)
}

// came notes that the result of one of a bucket's rounds is in place.
func (t *bucketTrace) came(b schema.Bucket) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.at[b]
	if t.left[at]--; t.left[at] == 0 {
		t.of[at].Complete = time.Now()
	}
}

// report gives the times of a batch that is complete, valid until the next call.
func (t *bucketTrace) report() []BucketTimes {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = append(t.told[:0], t.of...)
	return t.told
}
