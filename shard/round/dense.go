package round

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/internal/planted"
	"gradbus/lane"
	"gradbus/schema"
)

// denseConfig is what the dense rounds of one owner are made from.
type denseConfig struct {
	backend cuda.Backend
	lanes   int
	// count is how many lanes a round needs before it closes; 0 is all of them. Fewer are the lanes of one trainer,
	// where each trainer's contributions are a round of their own.
	count int
	// complete says whether a round has all that it will get, where that is not a number of lanes; nil where it is.
	complete complete
	// ahead is how many batches a trainer may be ahead of the oldest open one: rounds of Ahead+1 batches may be open at
	// once.
	ahead int
	// summing is when contributions are added up: with SummingAtClose each round holds every one until its last has come.
	summing schema.Summing
	// held counts the bytes of what is held.
	held *Held
	// chunks are the owner's chunks. Their indices name them in calls.
	chunks []Chunk
	// place names values in errors.
	place *schema.Placement
	// first is the first batch that there are rounds of.
	first schema.Batch
}

// Chunk is one chunk of a bucket.
type Chunk struct {
	Bucket   schema.Bucket
	Chunk    schema.Chunk
	Chunks   schema.Chunk // of the bucket
	Offset   uint64       // of the first element within the bucket
	Elements int
}

// Dense is the state of the dense chunk rounds of one owner: who has contributed what to those that are open, and the
// sums so far. It is not safe for concurrent use.
//
// The owner passes a contribution through Check, CheckFinite and Add. Then it closes what Next says, by computing the
// outcome of the terms and calling Finish. It sees to it itself that a contribution's batch is one of the Ahead+1
// that may be open: not more than Ahead beyond the batches that have closed for every chunk of every owner.
//
// Invariants: sums of a batch are disjoint nodes in lane order, and together the lanes of its contributors; a closed
// round has no sums.
type Dense struct {
	config denseConfig
	chunks []denseChunk
	terms  []cuda.Term  // of the round that Next gave; scratch
	pair   [2]cuda.Term // of an early addition; scratch
}

// denseChunk is a chunk with its rounds.
type denseChunk struct {
	Chunk
	closed schema.Batch // batches before this one have closed
	open   []denseRound // of batch b at b % len: Ahead+1
}

// denseRound is the round of one batch over one chunk.
type denseRound struct {
	batch   schema.Batch
	nodes   []lane.Node // that have contributed, in lane order; kept after closing so that repeats are known
	weights []float64   // of nodes
	lanes   int         // that nodes cover
	sums    []denseSum  // in lane order
}

// denseSum is the sum over a node of the tree, which its contributor or the additions so far have made.
type denseSum struct {
	node        lane.Node
	values      cuda.Vector // within payload; none where the lanes of the node have no samples
	contributor int         // whose payload it is
	bytes       int64
	payload     Payload
}

// Contribution is one node's sum over one chunk.
type Contribution struct {
	Batch       schema.Batch
	Chunk       int // index of the chunk
	Node        lane.Node
	Weight      float64
	Values      cuda.Vector // [elements of the chunk], or none where Weight is 0; written to, unless they are of 16 bits
	Contributor int         // who sent it, as Held counts
	Bytes       int64       // of the payload
	Payload     Payload     // released once, when Values is needed no more; may be nil
}

// newDense makes the rounds of the first batch.
func newDense(c denseConfig) *Dense {
	if c.count == 0 {
		c.count = c.lanes
	}
	if c.complete != nil {
		c.count = c.lanes + 1 // of which no round has so many
	}
	d := &Dense{config: c, chunks: make([]denseChunk, len(c.chunks))}
	for i := range d.chunks {
		d.chunks[i] = denseChunk{Chunk: c.chunks[i], closed: c.first, open: make([]denseRound, c.ahead+1)}
	}
	return d
}

// Chunks is the number of chunks.
func (d *Dense) Chunks() int { return len(d.chunks) }

// Chunk names the i-th chunk.
func (d *Dense) Chunk(i int) *Chunk { return &d.chunks[i].Chunk }

// NameMismatch says which parameter a wrong result of the i-th chunk is of, where err is about one: see
// cuda.NameMismatch. It comes before all other words about err, which would have the text of before.
func (d *Dense) NameMismatch(i int, err error) error {
	return cuda.NameMismatch(err, func(e *cuda.MismatchError) string {
		k := d.Chunk(i)
		return d.config.place.ElementName(k.Bucket, int(k.Offset)+e.Position)
	})
}

// Closed is the number of batches that have closed for the i-th chunk.
func (d *Dense) Closed(i int) schema.Batch { return d.chunks[i].closed }

// round is the round of a batch, and nil if it has no contribution, or was given up for a later one.
func (c *denseChunk) round(b schema.Batch) *denseRound {
	if r := &c.open[b%schema.Batch(len(c.open))]; r.batch == b {
		return r
	}
	return nil
}

// begin returns the round of a batch, a new one if there is none. It takes the place of one that has closed.
func (c *denseChunk) begin(b schema.Batch) *denseRound {
	r := &c.open[b%schema.Batch(len(c.open))]
	if r.batch != b {
		if len(r.sums) > 0 || b < r.batch {
			panic(fmt.Sprintf("round: batch %d begins in place of batch %d, which is open", b, r.batch))
		}
		*r = denseRound{batch: b, nodes: r.nodes[:0], weights: r.weights[:0], sums: r.sums}
	}
	return r
}

// Nodes are those that have contributed to a batch, in lane order, also after it has closed. They are the Dense's own.
func (d *Dense) Nodes(i int, b schema.Batch) []lane.Node {
	if r := d.chunks[i].round(b); r != nil {
		return r.nodes
	}
	return nil
}

// Check says why a contribution cannot be added: its lanes have been counted, or its weight contradicts another one of
// the batch. Nothing changes.
func (d *Dense) Check(c *Contribution, w *Weights) *schema.FrameError {
	r := d.chunks[c.Chunk].round(c.Batch)
	if r == nil {
		return w.check(c.Node, c.Weight)
	}
	at, refused := place(r.nodes, c.Node)
	if refused == nil {
		refused = w.check(c.Node, c.Weight)
	}
	if refused == nil {
		refused = w.checkTotal(d.config.lanes, d.config.count-r.lanes, r.nodes, r.weights, at, c.Node, c.Weight)
	}
	return refused
}

// CheckFinite refuses values that are NaN or infinite, the first of which it names.
func (d *Dense) CheckFinite(c *Contribution) *schema.FrameError {
	i := d.config.backend.FirstNonFinite(c.Values)
	if i < 0 {
		return nil
	}
	value, help := NonFinite(d.config.backend, c.Values, i)
	k := &d.chunks[c.Chunk]
	return schema.Refuse(schema.ReasonNonFinite, "%s, lanes %v, is %v%s",
		d.config.place.ElementName(k.Bucket, int(k.Offset)+i), c.Node, value, help)
}

// Add takes a contribution that Check has passed. It adds up what can be, unless the round is now complete and the rest
// is to be fused: then Next gives all that is left, to be added in one pass. An error is the backend's, and leaves sums
// that cannot be trusted.
func (d *Dense) Add(c *Contribution, w *Weights) error {
	r := d.chunks[c.Chunk].begin(c.Batch)
	at, refused := place(r.nodes, c.Node)
	if refused != nil {
		panic("round: a contribution was added that Check refuses")
	}
	w.note(c.Node, c.Weight)
	r.nodes = slices.Insert(r.nodes, at, c.Node)
	r.weights = slices.Insert(r.weights, at, c.Weight)
	lanes := int(c.Node.Count)
	if planted.Is(planted.CountContributors) {
		lanes = 1
	}
	r.lanes += lanes
	s := denseSum{node: c.Node}
	if c.Weight == 0 { // absent lanes: there is nothing to add
		Release(c.Payload)
	} else {
		s = denseSum{c.Node, c.Values, c.Contributor, c.Bytes, c.Payload}
		d.config.held.add(c.Contributor, c.Bytes)
	}
	at, _ = slices.BinarySearchFunc(r.sums, c.Node, func(x denseSum, n lane.Node) int {
		return compareNodes(x.node,
			n)
	})
	r.sums = slices.Insert(r.sums, at, s)
	if s := d.config.summing; s == schema.SummingAtClose || r.lanes == d.config.count {
		return nil
	}
	return d.combineUp(c.Chunk, r, at)
}

// combineUp adds the sum at index at of a chunk's round to its sibling where that is there, and so on up the tree to
// the root's children.
func (d *Dense) combineUp(chunk int, r *denseRound, at int) error {
	for {
		node := r.sums[at].node
		parent, ok := lane.Parent(node, d.config.lanes)
		if !ok || int(parent.Count) == d.config.lanes {
			return nil
		}
		left, right := parent.Split()
		if node == right {
			at--
		}
		if at < 0 || at+1 >= len(r.sums) || r.sums[at].node != left || r.sums[at+1].node != right {
			return nil
		}
		if ok, err := d.join(chunk, r, at); err != nil || !ok {
			return err
		}
		r.sums[at].node = parent
	}
}

// join makes the sums at and at+1 one, in the memory of the left one, and gives the other's back. An absent one is
// left out. It reports false where it cannot: sums are float32, for which values of 16 bits have no room. They stay
// until the round closes, at half the bytes each.
func (d *Dense) join(chunk int, r *denseRound, at int) (bool, error) {
	left, right := &r.sums[at], &r.sums[at+1]
	gone := *right
	switch {
	case right.values.Len() == 0:
	case left.values.Len() == 0:
		gone, *left = *left, *right
	default:
		if left.values.DType() != cuda.Float32 || right.values.DType() != cuda.Float32 {
			return false, nil
		}
		d.pair[0] = cuda.Term{First: uint16(left.node.First), Count: left.node.Count, Values: left.values}
		d.pair[1] = cuda.Term{First: uint16(right.node.First), Count: right.node.Count, Values: right.values}
		err := d.config.backend.Average(cuda.Average{Lanes: d.config.lanes, Weight: 1, Terms: d.pair[:],
			Out: left.values})
		clear(d.pair[:])
		if err != nil {
			return false, fmt.Errorf("add lanes %v and %v: %w", left.node, right.node, d.NameMismatch(chunk, err))
		}
	}
	d.release(&gone)
	r.sums = slices.Delete(r.sums, at+1, at+2)
	return true, nil
}

// release gives a sum's memory back.
func (d *Dense) release(s *denseSum) {
	d.config.held.add(s.contributor, -s.bytes)
	Release(s.payload)
}

// forget drops what has come of an open round over the lanes [first, first+count), which no sum shares with others:
// in a Dense that adds up at the close.
func (d *Dense) forget(i int, b schema.Batch, first, count int) {
	r := d.chunks[i].round(b)
	if r == nil {
		return
	}
	within := func(n lane.Node) bool { return int(n.First) >= first && n.End() <= first+count }
	kept := 0
	for at, n := range r.nodes {
		if within(n) {
			r.lanes -= int(n.Count)
			continue
		}
		r.nodes[kept], r.weights[kept] = n, r.weights[at]
		kept++
	}
	r.nodes, r.weights = r.nodes[:kept], r.weights[:kept]
	r.sums = slices.DeleteFunc(r.sums, func(s denseSum) bool {
		if !within(s.node) {
			return false
		}
		if s.values.Len() > 0 {
			d.release(&s)
		}
		return true
	})
}

// Closing is a round whose lanes are all there.
type Closing struct {
	Batch  schema.Batch
	Weight float64     // over all lanes
	Terms  []cuda.Term // sums over nodes that have samples, in lane order; none where Weight is 0
}

// Next gives the oldest open round of the i-th chunk if all its lanes are there. Compute its outcome and
// call Finish, then ask again: a later round may have waited for it. Terms is valid until Finish.
func (d *Dense) Next(i int) (Closing, bool) {
	c := &d.chunks[i]
	r := c.round(c.closed)
	if complete := d.config.complete; complete != nil {
		if !complete(c.closed, d.Nodes(i, c.closed)) {
			return Closing{}, false
		}
		r = c.begin(c.closed) // of which nothing may have come
	} else if r == nil || r.lanes < d.config.count {
		return Closing{}, false
	}
	d.terms = d.terms[:0]
	for _, s := range r.sums {
		if s.values.Len() > 0 {
			d.terms = append(d.terms, cuda.Term{First: uint16(s.node.First), Count: s.node.Count, Values: s.values})
		}
	}
	return Closing{r.batch, TreeWeight(d.config.lanes, r.nodes, r.weights), d.terms}, true
}

// Finish ends the round that Next gave: its payloads are released.
func (d *Dense) Finish(i int, w *Weights, total float64) {
	c := &d.chunks[i]
	r := c.round(c.closed)
	for j := range r.sums {
		d.release(&r.sums[j])
	}
	clear(r.sums)
	clear(d.terms) // payloads are released
	r.sums = r.sums[:0]
	w.noteTotal(total)
	c.closed++
}

// Sums is how many sums are held for a batch of the i-th chunk.
func (d *Dense) Sums(i int, b schema.Batch) int {
	n := 0
	if r := d.chunks[i].round(b); r != nil {
		for _, s := range r.sums {
			if s.values.Len() > 0 {
				n++
			}
		}
	}
	return n
}

// Release gives back what open rounds hold. The Dense must not be used afterwards.
func (d *Dense) Release() {
	for i := range d.chunks {
		for j := range d.chunks[i].open {
			for k := range d.chunks[i].open[j].sums {
				d.release(&d.chunks[i].open[j].sums[k])
			}
		}
	}
	d.chunks = nil
}

// Contributor is a trainer and its lanes: [First, First+Count).
type Contributor struct {
	Member schema.Member
	First  lane.Lane
	Count  int
}

// ContributorsOf is the trainers of a job with their lanes, in order.
func ContributorsOf(job *schema.Job) []Contributor {
	contributors := make([]Contributor, job.Trainers)
	for i := range contributors {
		first, count := lane.Share(i, job.Trainers, job.Lanes)
		contributors[i] = Contributor{Member: schema.TrainerMember(i), First: first, Count: count}
	}
	return contributors
}

// Weights are sample counts. The bounds keep float32(weight) and sums of weights finite and normal.
const (
	weightMin = 1.0 / (1 << 40)
	weightMax = schema.WeightMax
)

// IsWeight reports whether a sum may be divided by w samples.
func IsWeight(w float64) bool { return w >= weightMin && w <= weightMax }

// CheckSender checks what dense and sparse contributions have in common: that the node is one of the tree and
// the contributor's, and that the weight is a number of samples.
func CheckSender(contributor *Contributor, lanes int, h *schema.Head) *schema.FrameError {
	node := h.Node
	if int(h.Lanes) != lanes || !lane.IsNode(node, lanes) {
		return schema.Refuse(schema.ReasonWrongNode, "lanes %v of %d: want a node of the tree over %d lanes", node,
			h.Lanes, lanes)
	}
	if int(node.First) < int(contributor.First) || node.End() > int(contributor.First)+contributor.Count {
		return schema.Refuse(schema.ReasonWrongSender, "lanes %v: %s hosts lanes [%d,%d)",
			node, contributor.Member, contributor.First, int(contributor.First)+contributor.Count)
	}
	if w := h.Weight; w != 0 && !IsWeight(w) {
		return schema.Refuse(schema.ReasonWrongWeight, "weight %v of lanes %v: want a number of samples, 0 to 2^53", w, node)
	}
	return nil
}

// place finds where a node belongs among the disjoint nodes of a round, in lane order. The same node is a repeat
// (schema.ReasonDuplicate, without a text); one that shares lanes with another is refused, since those lanes have been
// counted.
func place(nodes []lane.Node, n lane.Node) (int, *schema.FrameError) {
	at, found := slices.BinarySearchFunc(nodes, n, compareNodes)
	switch {
	case found:
		return at, &schema.FrameError{Reason: schema.ReasonDuplicate}
	case at > 0 && nodes[at-1].End() > int(n.First):
		return at, schema.Refuse(schema.ReasonWrongNode, "lanes %v overlap lanes %v, which have contributed", n, nodes[at-1])
	case at < len(nodes) && int(nodes[at].First) < n.End():
		return at, schema.Refuse(schema.ReasonWrongNode, "lanes %v overlap lanes %v, which have contributed", n, nodes[at])
	}
	return at, nil
}

func compareNodes(a, b lane.Node) int {
	if a.First != b.First {
		return int(a.First) - int(b.First)
	}
	return int(a.Count) - int(b.Count)
}

// covered is how many of the lanes [first, first+count) the disjoint nodes hold.
func covered(nodes []lane.Node, first, count int) int {
	n := 0
	for _, node := range nodes {
		n += max(0, min(node.End(), first+count)-max(int(node.First), first))
	}
	return n
}

// Weights remembers what the contributions to one batch say of their weights: all rounds of a batch, dense and sparse,
// agree on the weight of a node, and on the sum over all lanes. The zero value is ready.
type Weights struct {
	nodes   []nodeWeight // by first lane, then count
	total   float64
	totaled bool // total is known: a round of the batch has closed

	// Scratch of looking ahead.
	ahead  []lane.Node
	aheadW []float64
}

type nodeWeight struct {
	node   lane.Node
	weight float64
}

// reset forgets the batch.
func (w *Weights) reset() { w.nodes, w.total, w.totaled = w.nodes[:0], 0, false }

func (w *Weights) find(n lane.Node) (int, bool) {
	return slices.BinarySearchFunc(w.nodes, n, func(x nodeWeight, n lane.Node) int { return compareNodes(x.node, n) })
}

// String lists what is known, for logs and tests.
func (w *Weights) String() string { return fmt.Sprint(w.nodes, w.total, w.totaled) }

// check refuses a weight that differs from an earlier one of the same node.
func (w *Weights) check(n lane.Node, weight float64) *schema.FrameError {
	if at, ok := w.find(n); ok && w.nodes[at].weight != weight {
		return schema.Refuse(schema.ReasonWrongWeight, "weight %v of lanes %v: other contributions of this batch say %v",
			weight, n, w.nodes[at].weight)
	}
	return nil
}

// note remembers a weight that Check has passed.
func (w *Weights) note(n lane.Node, weight float64) {
	if at, ok := w.find(n); !ok {
		w.nodes = slices.Insert(w.nodes, at, nodeWeight{n, weight})
	}
}

// checkTotal looks ahead: where a node of this weight, which belongs at index at of the nodes of a round, is the last
// that the round lacks, so many lanes being missing, the weights must add up to what those of other rounds of the batch
// did.
func (w *Weights) checkTotal(lanes, missing int, nodes []lane.Node, weights []float64, at int, node lane.Node,
	weight float64) *schema.FrameError {
	if !w.totaled || int(node.Count) < missing {
		return nil
	}
	w.ahead = append(append(append(w.ahead[:0], nodes[:at]...), node), nodes[at:]...)
	w.aheadW = append(append(append(w.aheadW[:0], weights[:at]...), weight), weights[at:]...)
	if total := TreeWeight(lanes, w.ahead, w.aheadW); w.total != total {
		return schema.Refuse(schema.ReasonWrongWeight, "weights add up to %v: in other rounds of this batch to %v",
			total, w.total)
	}
	return nil
}

// noteTotal remembers the sum over all lanes, which a round has closed with.
func (w *Weights) noteTotal(total float64) { w.total, w.totaled = total, true }

// Total is the sum over all lanes, as rounds of the batch closed with; 0 where none has.
func (w *Weights) Total() float64 { return w.total }

// TreeWeight adds the weights of nodes that cover the tree, along the tree, so that it does not matter who added which.
// Counts of samples are exact anyway. nodes are in lane order.
func TreeWeight(lanes int, nodes []lane.Node, weights []float64) float64 {
	sum, _ := treeWeight(lane.Root(lanes), nodes, weights, 0)
	return sum
}

// treeWeight adds up what lies below at, of which nodes[next] is the first, and gives what follows it.
func treeWeight(at lane.Node, nodes []lane.Node, weights []float64, next int) (sum float64, after int) {
	if next < len(nodes) && nodes[next] == at {
		return weights[next], next + 1
	}
	if at.Count <= 1 {
		return 0, next
	}
	left, right := at.Split()
	l, next := treeWeight(left, nodes, weights, next)
	r, next := treeWeight(right, nodes, weights, next)
	return l + r, next
}

// Payload is the memory that a frame lies in, and a lease of it: who is done with the bytes calls Release, once. Its
// bytes are private to the receiver, who may write to them.
type Payload interface{ Release() }

// Release gives a payload back where there is one.
func Release(p Payload) {
	if p != nil {
		p.Release()
	}
}

// Held counts the bytes of payloads that open rounds hold, by who sent them. It is not safe for concurrent use.
type Held struct {
	byContributor []int64
	total         int64
}

// NewHeld counts for a number of contributors.
func NewHeld(contributors int) *Held { return &Held{byContributor: make([]int64, contributors)} }

// add counts bytes of a contributor; a negative number releases them.
func (h *Held) add(contributor int, bytes int64) {
	h.byContributor[contributor] += bytes
	h.total += bytes
}

// Bytes is what all senders' payloads hold, Of what a contributor's do.
func (h *Held) Bytes() int64 { return h.total }

// Of is the part of Bytes that came from a contributor.
func (h *Held) Of(contributor int) int64 { return h.byContributor[contributor] }

// Values is the values of a frame, of whichever type, where they lie.
func Values(v *schema.View) cuda.Vector { return vector(v.Head().DType, v.Float32s(), v.Halves()) }

// rows is the rows of a part of a frame whose values are of the type.
func rows(dtype schema.DType, p *schema.Part) cuda.Vector { return vector(dtype, p.Rows, p.Halves) }

// vector is floats, or, where the type has 16 bits, the values whose bits are halves.
func vector(dtype schema.DType, floats []float32, halves []uint16) cuda.Vector {
	switch dtype {
	case schema.DTypeBFloat16:
		return cuda.BFloat16s(halves)
	case schema.DTypeFloat16:
		return cuda.Float16s(halves)
	}
	return cuda.Float32s(floats)
}

// NonFinite is the i-th value of values, which is no finite one, and what its sender may do about it, as text to
// append.
func NonFinite(backend cuda.Backend, values cuda.Vector, i int) (value float32, help string) {
	var one [1]float32
	_ = backend.Average(cuda.Average{Lanes: 1, Weight: 1, Terms: []cuda.Term{{Count: 1, Values: values.Slice(i, i+1)}},
		Out: cuda.Float32s(one[:])})
	if values.DType() == cuda.Float16 && one[0] == one[0] {
		help = "; float16 ends at 65504: scale the loss down, or let gradients travel as bfloat16"
	}
	return one[0], help
}
