package trainer

import (
	"slices"
	"sync"
	"time"

	"gradbus/schema"
)

// BucketTimes has the times of one bucket's gradient in one batch, as this trainer sees it. A bucket is all chunks of a
// dense bucket, or the rows that one owner aggregates. Begun to Complete corresponds to a communication hook of PyTorch
// DDP.
type BucketTimes struct {
	Bucket schema.Bucket
	Sparse bool         // rows of tables, not dense values
	Reduce schema.Party // party that sums the gradients

	Begun    time.Time // time when its first chunk was complete and began to be sent
	Sent     time.Time // time when its last chunk was sent
	Complete time.Time // time when its last result was in place, optimizer step included
	Bytes    int64     // bytes of frames sent to other members, each counted once
}

// bucketTrace records the times of one batch's buckets; nil without Config.Timeline. A job with several open batches
// has one trace for each.
type bucketTrace struct {
	mu       sync.Mutex // a leaf
	of       []BucketTimes
	left     []int         // number of each bucket's missing results
	all      []int         // number of each bucket's rounds
	at       []int         // [known bucket] index in of, or -1
	reported []BucketTimes // copy for the report
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

// begin records that a bucket begins to be sent.
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

// sent records that a part of a bucket was sent. bytes counts frames, 0 for a part that stays here.
func (t *bucketTrace) sent(b schema.Bucket, bytes int) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := &t.of[t.at[b]]
	o.Sent, o.Bytes = time.Now(), o.Bytes+int64(bytes)
}

// came records that the result of one of a bucket's rounds is in place.
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

// report returns the times of a complete batch, valid until the next call.
func (t *bucketTrace) report() []BucketTimes {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reported = append(t.reported[:0], t.of...)
	return t.reported
}
