package trainer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"gradbus/internal/planted"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/trainer/internal/exchange"
)

// results stores the owners' results: every dense chunk, which goes into the next version of the parameters as it
// arrives, and the end of every sparse round. The exchange tracks which results are missing. Batches complete in order,
// since the results of each round are taken in order.
type results struct {
	*exchanging
	flat          *flatSpace
	params        *parameters
	average       bool               // results are mean gradients, and the trainers run the optimizer
	shared        bool               // results are for all trainers; else for this one only
	grouped       bool               // results are numbered by updates
	sparse        []rowOwner         // owners of sparse rounds; empty if the job has no tables
	rounds        [][]exchange.Round // [owner] rounds in the order in which they are sent
	at            []int              // [dense chunk] index among its owner's rounds
	rowsInResults bool               // shards end rounds over rows only by results, which contain rows
	times         []*bucketTrace     // of batch b at b % len; ahead+1 entries, nil without traces

	copied   atomic.Uint64 // version that was last marked to be stored; 0: none
	replicas *replicas     // receives results over rows
	clipped  *clipped      // gradients that are stepped when their whole batch is here; nil for none
	first    schema.Batch  // first batch of this trainer; the outcome of earlier ones is given
}

// rowOwner is an owner with a sparse round in every batch.
type rowOwner struct {
	owner  int
	bucket schema.Bucket
}

func rowOwners(place *schema.Placement) []rowOwner {
	var all []rowOwner
	for i := range place.Owners() {
		if place.HasRows(i) {
			all = append(all, rowOwner{i, place.SparseBucket(i)})
		}
	}
	return all
}

func newResults(flat *flatSpace, params *parameters, job *schema.Job, sparse []rowOwner,
	retryAfter time.Duration) *results {
	plan, owners := flat.place.Plan, flat.place.Owners()
	r := &results{flat: flat, params: params, average: plan.Owner == schema.ByTrainers, shared: plan.Clock.Common(),
		grouped: plan.Clock.Renumbers(), sparse: sparse, rounds: make([][]exchange.Round, owners),
		rowsInResults: len(round.Replicated(job, plan, schema.ByShards)) > 0, at: make([]int, len(flat.rounds)),
		times: make([]*bucketTrace, job.Ahead+1)}
	for i := range flat.rounds {
		d := &flat.rounds[i]
		r.at[i] = len(r.rounds[d.owner])
		r.rounds[d.owner] = append(r.rounds[d.owner], exchange.Round{Bucket: d.bucket, Chunk: d.chunk})
	}
	hasRows := make([]bool, owners)
	for _, s := range sparse {
		r.rounds[s.owner], hasRows[s.owner] = append(r.rounds[s.owner], exchange.Round{Bucket: s.bucket}), true
	}
	r.exchanging = newExchanging(exchange.Config{Rounds: r.rounds, HasRows: hasRows, Open: job.Ahead + 1, Shared: r.shared,
		AnyWeight: r.grouped, OwnRows: plan.Reducer == schema.ByTrainers && !plan.ClockOf(schema.ByShards).Common(),
		Askers: int(askers), Modules: len(job.Modules), RetryAfter: retryAfter})
	return r
}

// timesOf returns the trace of a batch.
func (r *results) timesOf(b schema.Batch) *bucketTrace { return r.times[b%schema.Batch(len(r.times))] }

// begin starts to wait for the results of batch b, the one after the batch begun last. The batch ahead+1 before it is
// complete.
func (r *results) begin(b schema.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timesOf(b).reset()
	r.x.Begin(b)
	_ = r.finish() // rounds without a contribution have nothing to step
}

// finish ends the batches whose results are all here, and steps what waited for all of them. The caller holds mu, which
// is released during a step: one goroutine steps at a time, and sees what others have stored.
func (r *results) finish() error {
	for b, weight, full := r.x.Full(); full; b, weight, full = r.x.Full() {
		if b >= r.first { // else its outcome was given to this trainer
			if err := r.unlocked(func() error { return r.clipped.step(b, weight) }); err != nil {
				return fmt.Errorf("step batch %d: %w", b, err)
			}
		}
		r.x.Finish()
	}
	r.wakeWaiter()
	return nil
}

// take stores a result, and returns the results that must have been lost. pulled: the result is the answer to a pull. b
// is the batch of this trainer, which differs from the frame's only in grouped. It fails on a result that no correct
// owner sends.
func (r *results) take(owner int, pulled bool, b schema.Batch, v *schema.View) (lost []exchange.Pull, err error) {
	h := v.Head()
	c := exchange.Result{Owner: owner, Batch: b, Version: h.Batch + 1, Weight: h.Weight, Pulled: pulled}
	h.Batch = b
	r.noteCopy(h.Flags, schema.Version(b)+1)
	chunk := r.find(&h, &c)
	lost, err = r.put(&c, h.Bucket, func() error { return r.apply(owner, chunk, &h, v) })
	if err != nil {
		err = fmt.Errorf("result of batch %d bucket %d chunk %d from %s: %w", b, h.Bucket, h.Chunk,
			r.flat.place.Owner(owner), err)
	}
	return lost, err
}

// noteCopy records that version v will be stored, if flags have FlagCopy.
func (r *results) noteCopy(flags uint32, v schema.Version) {
	if flags&schema.FlagCopy != 0 {
		r.copied.Store(uint64(v))
	}
}

// put claims a result, applies it without the lock, and records that it is in place.
func (r *results) put(c *exchange.Result, bucket schema.Bucket, apply func() error) (lost []exchange.Pull, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh, err := r.x.Claim(*c)
	if err != nil || !fresh {
		return nil, err
	}
	if err := r.unlocked(apply); err != nil {
		return nil, err
	}
	whole, lost := r.x.Place(*c)
	if whole {
		r.timesOf(c.Batch).came(bucket)
	}
	return lost, r.finish()
}

// unlocked calls do without the lock, which the caller holds before and after, even after a panic.
func (r *results) unlocked(do func() error) error {
	r.mu.Unlock()
	defer r.mu.Lock()
	return do()
}

// overRows is the dense chunk number of a result over rows.
const overRows = -1

// find sets the round of a result, and the part if rows arrive in several frames, and returns its dense chunk.
func (r *results) find(h *schema.Head, c *exchange.Result) (chunk int) {
	c.Round, c.Parts = -1, 1
	if slices.Contains(r.sparse, rowOwner{c.Owner, h.Bucket}) {
		c.Round = len(r.rounds[c.Owner]) - 1
		if r.keepsRows() {
			c.Part, c.Parts = int(h.Chunk), int(h.Chunks)
		}
		return overRows
	}
	chunk, ok := r.flat.find(h.Bucket, h.Chunk)
	if ok && r.flat.rounds[chunk].owner == c.Owner {
		c.Round = r.at[chunk]
	}
	return chunk
}

// over records that a shard's round over rows is over, which the rows that it made prove instead of a result.
func (r *results) over(shard int, b schema.Batch, weight float64) error {
	bucket := r.flat.place.SparseBucket(shard)
	if r.rowsInResults || !slices.Contains(r.sparse, rowOwner{shard, bucket}) {
		return nil
	}
	c := exchange.Result{Owner: shard, Round: len(r.rounds[shard]) - 1, Batch: b, Version: b + 1, Weight: weight, Parts: 1,
		ByRows: true}
	_, err := r.put(&c, bucket, func() error { return nil })
	if err != nil {
		err = fmt.Errorf("rows after batch %d from %s: %w", b, schema.ShardMember(shard), err)
	}
	return err
}

func (r *results) keepsRows() bool {
	return r.replicas != nil && slices.Contains(r.replicas.replicated(), true)
}

// apply stores a claimed result. Only the goroutine with the claim touches the next version of its chunk; tables have
// locks of their own.
func (r *results) apply(owner, chunk int, h *schema.Head, v *schema.View) error {
	if chunk == overRows {
		if r.keepsRows() {
			return r.applyRows(owner, v)
		}
		return nil
	}
	values, clipped := v.Float32s(), r.clipped.takes(chunk)
	at, offset := r.flat.chunks[chunk], r.flat.rounds[chunk].offset
	// If no lane had a sample nothing changes. But a trainer that begins with the version after this batch has no version
	// before it, and takes the values.
	if h.Weight == 0 && r.shared && (r.average || len(values) == 0 || planted.Is(planted.SkipEmptyBatch)) {
		if !clipped {
			r.params.keep(chunk)
		}
		return nil
	}
	switch {
	case len(values) != at.hi-at.lo || h.Offset != offset:
		return fmt.Errorf("%d values at element %d: want %d at %d", len(values), h.Offset, at.hi-at.lo, offset)
	case !r.average:
		r.params.state.Set(chunk, values)
	case clipped:
		r.clipped.hold(h.Batch, chunk, values)
	default:
		return r.params.step(chunk, values, 1)
	}
	return nil
}

// applyRows applies a part of a result over rows to the tables stored here.
func (r *results) applyRows(owner int, v *schema.View) error {
	if err := r.flat.place.CheckFrame(v, owner); err != nil {
		return err
	}
	for _, part := range v.Parts() {
		if r.clipped.holdRows(part.Table, part.Keys, part.Rows) {
			continue
		}
		if err := r.replicas.applyRows(part.Table, part.Keys, part.Rows, 1); err != nil {
			return err
		}
	}
	return nil
}

// roundOver records what rows imply: the shard's round that made their version is over.
func (r *results) roundOver(shard int, h *schema.Head) error {
	r.noteCopy(h.Flags, schema.Version(h.Batch))
	if version := h.Batch - min(h.Batch, schema.Batch(h.Offset)); version > 0 {
		return r.over(shard, version-1, h.Weight)
	}
	return nil
}
