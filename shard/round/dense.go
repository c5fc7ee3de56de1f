package round

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/internal/planted"
	"gradbus/lane"
	"gradbus/schema"
)

// denseConfig configures the dense rounds of one owner.
type denseConfig struct {
	backend cuda.Backend
	lanes   int
	// count is the number of lanes after which a round closes; 0: all lanes. It is smaller if each trainer has rounds
	// of its own.
	count int
	// complete decides when a round closes, if that is not a number of lanes; else nil.
	complete complete
	// ahead is the number of batches that a trainer may be ahead of the oldest open one; ahead+1 batches may be open at
	// once.
	ahead int
	// summing is the time at which contributions are added up. With SummingAtClose a round keeps every one until the
	// last arrives.
	summing schema.Summing
	// held counts the bytes of payloads.
	held *Held
	// chunks are the owner's chunks. Calls refer to them by index.
	chunks []Chunk
	// place is used to name values in errors.
	place *schema.Placement
	// first is the first batch that has rounds.
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

// Dense is the state of the dense rounds of one owner: the contributors of each open round, and the partial sums. It is
// not safe for concurrent use.
//
// The owner passes a contribution through Check, CheckFinite and Add. Then it closes what Next returns: it computes the
// outcome from the terms and calls Finish. The owner itself makes sure that a contribution's batch is one of the
// Ahead+1 that may be open: at most Ahead beyond the batches that have closed for every chunk of every owner.
//
// Invariants: the sums of a batch are disjoint nodes in lane order, and together the lanes of its contributors; a
// closed round has no sums.
type Dense struct {
	config denseConfig
	chunks []denseChunk
	terms  []cuda.Term  // of the round that Next returned; scratch
	pair   [2]cuda.Term // of an early addition; scratch
}

// denseChunk is a chunk and its rounds.
type denseChunk struct {
	Chunk
	closed schema.Batch // batches before this one have closed
	open   []denseRound // of batch b at b % len: Ahead+1
}

// denseRound is the round of one batch over one chunk.
type denseRound struct {
	batch   schema.Batch
	nodes   []lane.Node // nodes that have contributed, in lane order; stored after closing to recognize repeats
	weights []float64   // of nodes
	lanes   int         // covered by nodes
	sums    []denseSum  // in lane order
}

// denseSum is the sum over a node of the tree, from its contributor or from additions.
type denseSum struct {
	node        lane.Node
	values      cuda.Vector // within payload; empty if the lanes of the node have no samples
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
	Contributor int         // index in Held
	Bytes       int64       // of the payload
	Payload     Payload     // released once, when Values is no longer needed; may be nil
}

// newDense makes the rounds of the first batch.
func newDense(c denseConfig) *Dense {
	if c.count == 0 {
		c.count = c.lanes
	}
	if c.complete != nil {
		c.count = c.lanes + 1 // more than any round has
	}
	d := &Dense{config: c, chunks: make([]denseChunk, len(c.chunks))}
	for i := range d.chunks {
		d.chunks[i] = denseChunk{Chunk: c.chunks[i], closed: c.first, open: make([]denseRound, c.ahead+1)}
	}
	return d
}

// Chunks returns the number of chunks.
func (d *Dense) Chunks() int { return len(d.chunks) }

// Chunk returns the i-th chunk.
func (d *Dense) Chunk(i int) *Chunk { return &d.chunks[i].Chunk }

// NameMismatch adds the name of the parameter to an error about a wrong result of the i-th chunk: see
// cuda.NameMismatch. Call it before adding other context to err, which it would replace.
func (d *Dense) NameMismatch(i int, err error) error {
	return cuda.NameMismatch(err, func(e *cuda.MismatchError) string {
		k := d.Chunk(i)
		return d.config.place.ElementName(k.Bucket, int(k.Offset)+e.Position)
	})
}

// Closed returns the number of batches that have closed for the i-th chunk.
func (d *Dense) Closed(i int) schema.Batch { return d.chunks[i].closed }

// round returns the round of a batch; nil if it has no contribution, or was replaced by a later one.
func (c *denseChunk) round(b schema.Batch) *denseRound {
	if r := &c.open[b%schema.Batch(len(c.open))]; r.batch == b {
		return r
	}
	return nil
}

// begin returns the round of a batch, and makes it in the place of a closed one if it does not exist.
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

// Nodes returns the nodes that have contributed to a batch, in lane order, also after it has closed. The slice belongs
// to the Dense.
func (d *Dense) Nodes(i int, b schema.Batch) []lane.Node {
	if r := d.chunks[i].round(b); r != nil {
		return r.nodes
	}
	return nil
}

// Check returns why a contribution cannot be added: its lanes have been counted, or its weight contradicts another one
// of the batch. It changes nothing.
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

// CheckFinite refuses values that are NaN or infinite, and names the first.
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

// Add adds a contribution that has passed Check. It adds up what it can, unless the round is now complete and the rest
// is to be fused: then Next returns all terms, to be added in one pass. An error comes from the backend; the sums
// cannot be trusted after it.
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
	if c.Weight == 0 { // absent lanes add nothing
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

// combineUp adds the sum at index at of a chunk's round to its sibling if that is present, and so on up the tree to the
// root's children.
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

// join adds the sums at and at+1 in the memory of the left one, and releases the other's payload. An absent one is
// skipped. It reports false if it cannot add: sums are float32, and a payload of 16-bit values has no room for them.
// They stay until the round closes, at half the bytes each.
func (d *Dense) join(chunk int, r *denseRound, at int) (bool, error) {
	left, right := &r.sums[at], &r.sums[at+1]
	released := *right
	switch {
	case right.values.Len() == 0:
	case left.values.Len() == 0:
		released, *left = *left, *right
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
	d.release(&released)
	r.sums = slices.Delete(r.sums, at+1, at+2)
	return true, nil
}

// release releases a sum's payload.
func (d *Dense) release(s *denseSum) {
	d.config.held.add(s.contributor, -s.bytes)
	Release(s.payload)
}

// forget drops the contributions to an open round from lanes [first, first+count), which share no sum with other lanes:
// the Dense adds up at the close.
func (d *Dense) forget(i int, b schema.Batch, first, count int) {
	r := d.chunks[i].round(b)
	if r == nil {
		return
	}
	within := func(n lane.Node) bool { return int(n.First) >= first && n.End() <= first+count }
	left := 0
	for at, n := range r.nodes {
		if within(n) {
			r.lanes -= int(n.Count)
			continue
		}
		r.nodes[left], r.weights[left] = n, r.weights[at]
		left++
	}
	r.nodes, r.weights = r.nodes[:left], r.weights[:left]
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

// Closing is a round that has all its lanes.
type Closing struct {
	Batch  schema.Batch
	Weight float64     // over all lanes
	Terms  []cuda.Term // sums over nodes that have samples, in lane order; empty if Weight is 0
}

// Next returns the oldest open round of the i-th chunk if it has all its lanes. Compute its outcome, call Finish, and
// call Next again: a later round may be complete. Terms is valid until Finish.
func (d *Dense) Next(i int) (Closing, bool) {
	c := &d.chunks[i]
	r := c.round(c.closed)
	if complete := d.config.complete; complete != nil {
		if !complete(c.closed, d.Nodes(i, c.closed)) {
			return Closing{}, false
		}
		r = c.begin(c.closed) // it may have no contribution yet
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

// Finish ends the round that Next returned, and releases its payloads.
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

// Sums returns the number of sums that are held for a batch of the i-th chunk.
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

// Release releases the payloads of open rounds. The Dense must not be used afterwards.
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

// ContributorsOf returns the trainers of a job with their lanes, in order.
func ContributorsOf(job *schema.Job) []Contributor {
	contributors := make([]Contributor, job.Trainers)
	for i := range contributors {
		first, count := lane.Share(i, job.Trainers, job.Lanes)
		contributors[i] = Contributor{Member: schema.TrainerMember(i), First: first, Count: count}
	}
	return contributors
}

// Weights are numbers of samples. The bounds keep float32(weight) and sums of weights finite and normal.
const (
	weightMin = 1.0 / (1 << 40)
	weightMax = schema.WeightMax
)

// IsWeight reports whether a sum may be divided by w samples.
func IsWeight(w float64) bool { return w >= weightMin && w <= weightMax }

// CheckSender checks what dense and sparse contributions share: the node is in the tree and within the contributor's
// lanes, and the weight is a number of samples.
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

// place finds the position of a node among the disjoint nodes of a round, in lane order. The same node is a repeat
// (schema.ReasonDuplicate, without a text); a node that overlaps another one is refused, since those lanes have been
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

// covered returns how many of the lanes [first, first+count) the disjoint nodes cover.
func covered(nodes []lane.Node, first, count int) int {
	n := 0
	for _, node := range nodes {
		n += max(0, min(node.End(), first+count)-max(int(node.First), first))
	}
	return n
}

// Weights records the weights that the contributions to one batch state: all rounds of a batch, dense and sparse, agree
// on the weight of a node, and on the sum over all lanes. The zero value is ready.
type Weights struct {
	nodes   []nodeWeight // by first lane, then count
	total   float64
	totaled bool // a round of the batch has closed, so total is known

	// Scratch memory of checkTotal.
	ahead  []lane.Node
	aheadW []float64
}

type nodeWeight struct {
	node   lane.Node
	weight float64
}

// reset clears the batch.
func (w *Weights) reset() { w.nodes, w.total, w.totaled = w.nodes[:0], 0, false }

func (w *Weights) find(n lane.Node) (int, bool) {
	return slices.BinarySearchFunc(w.nodes, n, func(x nodeWeight, n lane.Node) int { return compareNodes(x.node, n) })
}

// String lists the weights, for logs and tests.
func (w *Weights) String() string { return fmt.Sprint(w.nodes, w.total, w.totaled) }

// check refuses a weight that differs from an earlier one of the same node.
func (w *Weights) check(n lane.Node, weight float64) *schema.FrameError {
	if at, ok := w.find(n); ok && w.nodes[at].weight != weight {
		return schema.Refuse(schema.ReasonWrongWeight, "weight %v of lanes %v: other contributions of this batch say %v",
			weight, n, w.nodes[at].weight)
	}
	return nil
}

// note records a weight that has passed Check.
func (w *Weights) note(n lane.Node, weight float64) {
	if at, ok := w.find(n); !ok {
		w.nodes = slices.Insert(w.nodes, at, nodeWeight{n, weight})
	}
}

// checkTotal looks ahead: if a node of this weight, at index at of the nodes of a round, is the last one that the round
// needs (missing lanes are open), the weights must add up to the total of the other rounds of the batch.
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

// noteTotal records the sum over all lanes with which a round has closed.
func (w *Weights) noteTotal(total float64) { w.total, w.totaled = total, true }

// Total returns the sum over all lanes with which rounds of the batch have closed; 0 before the first.
func (w *Weights) Total() float64 { return w.total }

// TreeWeight adds the weights of nodes that cover the tree, along the tree, so that it does not matter which member
// added which. Numbers of samples are exact anyway. nodes are in lane order.
func TreeWeight(lanes int, nodes []lane.Node, weights []float64) float64 {
	sum, _ := treeWeight(lane.Root(lanes), nodes, weights, 0)
	return sum
}

// treeWeight returns the sum below at, whose first node is nodes[next], and the index that follows it.
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

// Payload is the memory of a frame, and a lease of it: call Release once when the bytes are no longer needed. The bytes
// are private to the receiver, which may write to them.
type Payload interface{ Release() }

// Release releases a payload unless it is nil.
func Release(p Payload) {
	if p != nil {
		p.Release()
	}
}

// Held counts the bytes of payloads that open rounds hold, by contributor. It is not safe for concurrent use.
type Held struct {
	byContributor []int64
	total         int64
}

// NewHeld makes a Held for a number of contributors.
func NewHeld(contributors int) *Held { return &Held{byContributor: make([]int64, contributors)} }

// add adds bytes to a contributor; a negative number releases them.
func (h *Held) add(contributor int, bytes int64) {
	h.byContributor[contributor] += bytes
	h.total += bytes
}

// Bytes returns the bytes of all payloads.
func (h *Held) Bytes() int64 { return h.total }

// Of returns the part of Bytes that came from a contributor.
func (h *Held) Of(contributor int) int64 { return h.byContributor[contributor] }

// Values returns the values of a frame, of any type, in place.
func Values(v *schema.View) cuda.Vector { return vector(v.Head().DType, v.Float32s(), v.Halves()) }

// rows returns the rows of a part of a frame, in place.
func rows(dtype schema.DType, p *schema.Part) cuda.Vector { return vector(dtype, p.Rows, p.Halves) }

// vector returns floats, or, for a 16-bit type, the values with the bits in halves.
func vector(dtype schema.DType, floats []float32, halves []uint16) cuda.Vector {
	switch dtype {
	case schema.DTypeBFloat16:
		return cuda.BFloat16s(halves)
	case schema.DTypeFloat16:
		return cuda.Float16s(halves)
	}
	return cuda.Float32s(floats)
}

// NonFinite returns the i-th value of values, which is not finite, and a text with advice for its sender.
func NonFinite(backend cuda.Backend, values cuda.Vector, i int) (value float32, help string) {
	var one [1]float32
	_ = backend.Average(cuda.Average{Lanes: 1, Weight: 1, Terms: []cuda.Term{{Count: 1, Values: values.Slice(i, i+1)}},
		Out: cuda.Float32s(one[:])})
	if values.DType() == cuda.Float16 && one[0] == one[0] {
		help = "; float16 ends at 65504: scale the loss down, or let gradients travel as bfloat16"
	}
	return one[0], help
}
