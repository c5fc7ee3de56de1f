package trainer

import (
	"fmt"
	"slices"
	"sync"

	"gradbus/schema"
)

// results gathers what the owners answer to a batch: every dense chunk, which goes into the next version of the
// parameters as it arrives, and the close of every sparse round. The batch is complete when all are there.
type results struct {
	flat    *flatSpace
	params  *parameters
	average bool       // answers are mean gradients and the trainers run the optimizer
	sparse  []rowOwner // who has a sparse round; empty where the job has no tables
	at      []int      // [dense chunk] which of its owner's rounds it is

	// mu guards what follows, and the next version of params while open > 0.
	mu       sync.Mutex
	batch    schema.Batch
	begun    bool   // batch has begun here
	gaps     []gaps // [owner] which rounds are there
	open     int
	weighed  bool
	weight   float64       // of the batch over all lanes, once weighed
	ready    chan struct{} // gets a value when open falls to 0
	taken    uint64        // answers since the session began
	seen     uint64        // of these, when late was called last
	repeated uint64        // answers that were there already, or of a batch that is over
}

// rowOwner is an owner who has a sparse round in every batch.
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

func newResults(flat *flatSpace, params *parameters, average bool, sparse []rowOwner) *results {
	r := &results{flat: flat, params: params, average: average, sparse: sparse, ready: make(chan struct{}, 1)}
	r.gaps, r.at = newGaps(flat, sparse)
	return r
}

// begin waits for the results of a batch. Those of the one before are complete.
func (r *results) begin(b schema.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batch, r.begun, r.open, r.weighed, r.weight = b, true, 0, false, 0
	for i := range r.gaps {
		r.gaps[i].reset()
		r.open += len(r.gaps[i].rounds)
	}
	select {
	case <-r.ready:
	default:
	}
	if r.open == 0 {
		r.ready <- struct{}{}
	}
}

// take puts a result in place, and names those that must have been lost on their way. pulled says that it is the answer to
// a pull. It fails on one that a correct owner cannot have sent.
func (r *results) take(owner int, pulled bool, v *schema.View) (lost []roundName, err error) {
	h := v.Head()
	return r.put(owner, pulled, &h, v.Float32s())
}

// put is take for a result that need not have come in a frame.
func (r *results) put(owner int, pulled bool, h *schema.Head, values []float32) (lost []roundName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.Batch != r.batch || r.open == 0 {
		r.repeated++
		return nil, nil
	}
	if r.weighed && r.weight != h.Weight {
		return nil, fmt.Errorf("result of batch %d bucket %d from %s is over %v samples: other rounds of the batch are over %v",
			h.Batch, h.Bucket, r.flat.place.Owner(owner), h.Weight, r.weight)
	}
	round, fresh, err := r.place(owner, h, values)
	if err != nil {
		return nil, fmt.Errorf("result of batch %d bucket %d chunk %d from %s: %w", h.Batch, h.Bucket, h.Chunk, r.flat.place.Owner(owner), err)
	}
	if !fresh {
		r.repeated++
		return nil, nil
	}
	r.taken++
	r.weighed, r.weight = true, h.Weight
	if r.open--; r.open == 0 {
		r.ready <- struct{}{}
	}
	return r.gaps[owner].came(round, pulled), nil
}

func (r *results) place(owner int, h *schema.Head, values []float32) (round int, fresh bool, err error) {
	if owner >= len(r.gaps) {
		return 0, false, fmt.Errorf("no such round there")
	}
	g := &r.gaps[owner]
	if slices.Contains(r.sparse, rowOwner{owner, h.Bucket}) {
		round = len(g.rounds) - 1
		return round, !g.there[round], nil
	}
	at, ok := r.flat.find(h.Bucket, h.Chunk)
	if !ok || r.flat.rounds[at].owner != owner {
		return 0, false, fmt.Errorf("no such round there")
	}
	round = r.at[at]
	if g.there[round] {
		return round, false, nil
	}
	to := r.flat.chunks[at]
	if h.Weight == 0 { // nobody had a sample: nothing changes, and the frame need not say so again
		r.params.keep(to)
		return round, true, nil
	}
	if len(values) != to.hi-to.lo || h.Offset != r.flat.rounds[at].offset {
		return 0, false, fmt.Errorf("%d values at element %d: want %d at %d", len(values), h.Offset, to.hi-to.lo, r.flat.rounds[at].offset)
	}
	if !r.average {
		r.params.set(to, values)
		return round, true, nil
	}
	return round, true, r.params.apply(to, values)
}

// late names what to ask each owner for. moved says that results have come since it was called last: then there is
// nothing to ask for yet, unless the connection was lost.
func (r *results) late(lost bool) (moved bool, of [][]roundName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if moved = r.taken != r.seen; moved && !lost {
		r.seen = r.taken
		return moved, nil
	}
	r.seen = r.taken
	for i := range r.gaps {
		of = append(of, r.gaps[i].probe(lost))
	}
	return moved, of
}

// weightOf is the number of samples of the complete batch, over all trainers.
func (r *results) weightOf() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.weight
}

// began says that b is the batch that was begun last.
func (r *results) began(b schema.Batch) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun && r.batch == b
}

// counts are how many answers were taken, and how many were there already.
func (r *results) counts() (taken, repeated uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken, r.repeated
}
