package trainer

import (
	"fmt"
	"sync"

	"gradbus/schema"
)

// results gathers what the shards answer to a batch: every dense chunk, which goes into the next version of the
// parameters as it arrives, and the close of every sparse round. The batch is complete when all are there.
type results struct {
	flat    *flatSpace
	params  *parameters
	average bool            // answers are mean gradients and the trainers run the optimizer
	sparse  []schema.Bucket // [shard] sparse bucket; empty where the job has no tables

	// mu guards what follows, and the next version of params while open > 0.
	mu       sync.Mutex
	batch    schema.Batch
	chunks   []bool // [dense chunk] is there
	closes   []bool // [shard] its sparse round has closed
	open     int
	weighed  bool
	weight   float64       // of the batch over all lanes, once weighed
	ready    chan struct{} // gets a value when open falls to 0
	taken    uint64        // answers since the session began
	repeated uint64        // answers that were there already, or of a batch that is over
}

func newResults(flat *flatSpace, params *parameters, average bool, sparse []schema.Bucket) *results {
	return &results{flat: flat, params: params, average: average, sparse: sparse,
		chunks: make([]bool, len(flat.chunks)), closes: make([]bool, len(sparse)), ready: make(chan struct{}, 1)}
}

// begin waits for the results of a batch. Those of the one before are complete.
func (r *results) begin(b schema.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.chunks)
	clear(r.closes)
	r.batch, r.open, r.weighed, r.weight = b, len(r.chunks)+len(r.closes), false, 0
	select {
	case <-r.ready:
	default:
	}
	if r.open == 0 {
		r.ready <- struct{}{}
	}
}

// take puts a result in place. It fails on one that a correct shard cannot have sent.
func (r *results) take(shard int, v *schema.View) error {
	h := v.Head()
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.Batch != r.batch || r.open == 0 {
		r.repeated++
		return nil
	}
	if r.weighed && r.weight != h.Weight {
		return fmt.Errorf("result of batch %d bucket %d from %s is over %v samples: other rounds of the batch are over %v",
			h.Batch, h.Bucket, schema.ShardMember(shard), h.Weight, r.weight)
	}
	fresh, err := r.place(shard, &h, v)
	if err != nil {
		return fmt.Errorf("result of batch %d bucket %d chunk %d from %s: %w", h.Batch, h.Bucket, h.Chunk, schema.ShardMember(shard), err)
	}
	if !fresh {
		r.repeated++
		return nil
	}
	r.taken++
	r.weighed, r.weight = true, h.Weight
	if r.open--; r.open == 0 {
		r.ready <- struct{}{}
	}
	return nil
}

func (r *results) place(shard int, h *schema.Head, v *schema.View) (fresh bool, err error) {
	if shard < len(r.sparse) && h.Bucket == r.sparse[shard] {
		fresh = !r.closes[shard]
		r.closes[shard] = true
		return fresh, nil
	}
	at, ok := r.flat.find(h.Bucket, h.Chunk)
	if !ok || r.flat.rounds[at].shard != shard {
		return false, fmt.Errorf("no such round on this shard")
	}
	if r.chunks[at] {
		return false, nil
	}
	r.chunks[at] = true
	to, values := r.flat.chunks[at], v.Float32s()
	if h.Weight == 0 { // nobody had a sample: nothing changes, and the frame need not say so again
		r.params.keep(to)
		return true, nil
	}
	if len(values) != to.hi-to.lo || h.Offset != r.flat.rounds[at].offset {
		return false, fmt.Errorf("%d values at element %d: want %d at %d", len(values), h.Offset, to.hi-to.lo, r.flat.rounds[at].offset)
	}
	if !r.average {
		r.params.set(to, values)
		return true, nil
	}
	return true, r.params.apply(to, values)
}

// missing calls ask for each round that has no result yet.
func (r *results) missing(ask func(shard int, bucket schema.Bucket, chunk schema.Chunk) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, there := range r.chunks {
		if d := &r.flat.rounds[i]; !there {
			if err := ask(d.shard, d.bucket, d.chunk); err != nil {
				return err
			}
		}
	}
	for shard, there := range r.closes {
		if !there {
			if err := ask(shard, r.sparse[shard], 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// weightOf is the number of samples of the complete batch, over all trainers.
func (r *results) weightOf() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.weight
}

// counts are how many answers were taken, and how many were there already.
func (r *results) counts() (taken, repeated uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken, r.repeated
}
