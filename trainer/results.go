package trainer

import (
	"fmt"
	"slices"
	"sync"

	"gradbus/schema"
)

// results gathers what the owners answer: every dense chunk, which goes into the next version of the parameters as it
// arrives, and the close of every sparse round. A batch is complete when all are there. Batches are complete in their order,
// since each round's results are taken in it; ahead+1 of them may be open.
type results struct {
	flat    *flatSpace
	params  *parameters
	average bool       // answers are mean gradients and the trainers run the optimizer
	alone   bool       // answers are for this trainer, and not in the order in which all send
	grouped bool       // answers are numbered by updates, and rounds of a batch may differ in weight
	sparse  []rowOwner // who has a sparse round; empty where the job has no tables
	at      []int      // [dense chunk] which of its owner's rounds it is

	replicas *replicas  // where results over rows go
	clipped  *clipped   // what of a batch is stepped when all of it is there; nil for nothing
	parts    []rowParts // [of sparse] what is there of the result of its round; guarded by mu

	// mu guards what follows, and the versions of params that are not complete.
	mu       sync.Mutex
	open     []batchResults // of batch b at b % len: ahead+1
	complete schema.Batch   // batches before this one are
	begun    schema.Batch   // batches before this one have begun here
	ready    chan struct{}  // gets a value when another batch is complete
	taken    uint64         // answers since the session began
	seen     uint64         // of these, when late was called last
	repeated uint64         // answers that were there already, of a batch that is over, or before their turn
}

// batchResults is what has come of one batch.
type batchResults struct {
	batch   schema.Batch
	gaps    []gaps    // [owner] which rounds are there
	open    int       // rounds that are not
	times   *timeline // nil where nobody wants to know
	weighed bool
	weight  float64        // of the batch over all lanes, once weighed
	version schema.Version // that the shards call what came of it
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

func newResults(flat *flatSpace, params *parameters, job *schema.Job, sparse []rowOwner) *results {
	plan := flat.place.Plan
	r := &results{flat: flat, params: params, average: plan.Owner == schema.ByTrainers,
		alone: plan.Clock != schema.ClockBounded, grouped: plan.Clock == schema.ClockGrouped,
		sparse: sparse, open: make([]batchResults, job.Ahead+1), ready: make(chan struct{}, 1)}
	r.parts = make([]rowParts, len(sparse))
	for i := range r.open {
		r.open[i].gaps, r.at = newGaps(flat, sparse)
	}
	return r
}

func (r *results) of(b schema.Batch) *batchResults { return &r.open[b%schema.Batch(len(r.open))] }

// begin waits for the results of a batch, the one after that which was begun last. The one that was ahead+1 before it is
// complete.
func (r *results) begin(b schema.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.of(b)
	o.batch, o.open, o.weighed, o.weight, o.version = b, 0, false, 0, 0
	o.times.reset()
	for i := range o.gaps {
		o.gaps[i].reset()
		o.open += len(o.gaps[i].rounds)
	}
	for i := range r.parts {
		r.parts[i].chunks = 0
	}
	if b > r.begun { // none before it was begun here
		r.complete = b
	}
	r.begun = b + 1
	_ = r.settle() // of rounds that nobody has there is nothing to step
}

// settle finds the batches that are complete, and steps what waited for all of their results.
func (r *results) settle() error {
	was := r.complete
	for r.complete < r.begun && r.of(r.complete).open == 0 {
		if err := r.clipped.step(r.complete, r.of(r.complete).weight); err != nil {
			return fmt.Errorf("step batch %d: %w", r.complete, err)
		}
		r.complete++
	}
	if r.complete == was {
		return nil
	}
	select {
	case r.ready <- struct{}{}:
	default: // somebody has yet to look
	}
	return nil
}

// take puts a result in place, and names those that must have been lost on their way. pulled says that it is the answer to a
// pull, b which batch of this trainer's it is of: the frame's own but in grouped. It fails on one that a correct owner cannot have
// sent.
func (r *results) take(owner int, pulled bool, b schema.Batch, v *schema.View) (lost []roundName, err error) {
	h := v.Head()
	version := h.Batch + 1
	h.Batch = b
	return r.put(owner, pulled, &h, version, v.Float32s(), v)
}

// put is take for a result that need not have come in a frame, if it is over a dense chunk: then v may be nil. version is what the
// owners call what came of it.
func (r *results) put(owner int, pulled bool, h *schema.Head, version schema.Version, values []float32, v *schema.View) (lost []roundName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.Batch < r.complete || h.Batch >= r.begun {
		r.repeated++
		return nil, nil
	}
	o := r.of(h.Batch)
	if o.weighed && o.weight != h.Weight && !r.grouped {
		return nil, fmt.Errorf("result of batch %d bucket %d from %s is over %v samples: other rounds of the batch are over %v",
			h.Batch, h.Bucket, r.flat.place.Owner(owner), h.Weight, o.weight)
	}
	round, fresh, err := r.place(o, owner, h, values, v)
	if err != nil {
		return nil, fmt.Errorf("result of batch %d bucket %d chunk %d from %s: %w", h.Batch, h.Bucket, h.Chunk, r.flat.place.Owner(owner), err)
	}
	if !fresh {
		r.repeated++
		return nil, nil
	}
	r.taken++
	o.weighed, o.weight, o.version = true, h.Weight, max(o.version, version)
	if round == inParts {
		return nil, nil
	}
	o.open--
	o.times.came(h.Bucket)
	lost = o.gaps[owner].came(round, pulled && !r.alone)
	return lost, r.settle()
}

// inParts is in place of a round of whose result more has to come.
const inParts = -1

func (r *results) place(o *batchResults, owner int, h *schema.Head, values []float32, v *schema.View) (round int, fresh bool, err error) {
	if owner >= len(o.gaps) {
		return 0, false, fmt.Errorf("no such round there")
	}
	g := &o.gaps[owner]
	if i := slices.Index(r.sparse, rowOwner{owner, h.Bucket}); i >= 0 && v != nil {
		round = len(g.rounds) - 1
		if g.there[round] {
			return round, false, nil
		}
		whole, fresh, err := r.placeRows(owner, &r.parts[i], h, v)
		if !whole {
			round = inParts
		}
		return round, fresh, err
	}
	at, ok := r.flat.find(h.Bucket, h.Chunk)
	if !ok || r.flat.rounds[at].owner != owner {
		return 0, false, fmt.Errorf("no such round there")
	}
	round = r.at[at]
	if g.there[round] || h.Batch > r.complete && !r.of(h.Batch - 1).gaps[owner].there[round] {
		return round, false, nil // there already, or the result of the batch before was lost: both are asked for again
	}
	to := r.flat.chunks[at]
	held := r.clipped.takes(at)
	if h.Weight == 0 && !r.alone { // nobody had a sample: nothing changes, and the frame need not say so again
		if !held {
			r.params.state.Keep(at)
		}
		return round, true, nil
	}
	if len(values) != to.hi-to.lo || h.Offset != r.flat.rounds[at].offset {
		return 0, false, fmt.Errorf("%d values at element %d: want %d at %d", len(values), h.Offset, to.hi-to.lo, r.flat.rounds[at].offset)
	}
	if !r.average {
		r.params.state.Set(at, values)
		return round, true, nil
	}
	if held {
		r.clipped.hold(h.Batch, at, values)
		return round, true, nil
	}
	return round, true, r.params.step(at, values, 1)
}

// rowParts is what is there of one result over rows, which comes in as many frames as its rows need.
type rowParts struct {
	chunks int // how many; 0 before the first has come
	left   int
	there  []bool
}

// placeRows applies a part of a result over rows to the tables that are kept here. It reports whether that was the last.
func (r *results) placeRows(owner int, p *rowParts, h *schema.Head, v *schema.View) (whole, fresh bool, err error) {
	if r.replicas == nil || !slices.Contains(r.replicas.replicated(), true) {
		return true, true, nil // it only says that the round has closed; several batches may be open
	}
	if p.chunks == 0 {
		p.chunks, p.left, p.there = int(h.Chunks), int(h.Chunks), grown(p.there, int(h.Chunks))
		clear(p.there)
	}
	if int(h.Chunks) != p.chunks {
		return false, false, fmt.Errorf("part of %d: others say %d", h.Chunks, p.chunks)
	}
	if p.there[h.Chunk] {
		return false, false, nil
	}
	if err := r.flat.place.CheckFrame(v, owner); err != nil {
		return false, false, err
	}
	for _, part := range v.Parts() {
		if r.clipped.holdRows(part.Table, part.Keys, part.Rows) {
			continue
		}
		if err := r.replicas.stage(part.Table, part.Keys, part.Rows, 1); err != nil {
			return false, false, err
		}
	}
	p.there[h.Chunk] = true
	p.left--
	return p.left == 0, true, nil
}

// lateRounds is what to ask an owner for.
type lateRounds struct {
	batch  schema.Batch
	owner  int
	rounds []roundName
}

// late names what to ask each owner for: of the oldest open batch what has been missing for longest, or, where lost says
// that everything may have been lost, all that is missing. moved says that results have come since it was called last:
// then there is nothing to ask for yet, unless the connection was lost.
func (r *results) late(lost bool) (moved bool, of []lateRounds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if moved = r.taken != r.seen; moved && !lost {
		r.seen = r.taken
		return moved, nil
	}
	r.seen = r.taken
	for b := r.complete; b < r.begun && (lost || b == r.complete); b++ {
		o := r.of(b)
		for i := range o.gaps {
			of = append(of, lateRounds{b, i, o.gaps[i].probe(lost)})
		}
	}
	return moved, of
}

// completed is the number of batches that are complete: the newest version that is whole.
func (r *results) completed() schema.Version {
	r.mu.Lock()
	defer r.mu.Unlock()
	return schema.Version(r.complete)
}

// outcomeOf is the number of samples of a complete batch, over all trainers, and which version it made. Not more than ahead
// batches may have begun after it.
func (r *results) outcomeOf(b schema.Batch) (weight float64, version schema.Version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(b).weight, r.of(b).version
}

// began says that a batch is under way here: begun, though maybe complete, and not followed by as many as may be open.
func (r *results) began(b schema.Batch) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return b < r.begun && b+schema.Batch(len(r.open)) >= r.begun
}

// counts are how many answers were taken, and how many were there already.
func (r *results) counts() (taken, repeated uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken, r.repeated
}
