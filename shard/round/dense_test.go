package round

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

func open(t testing.TB) cuda.Backend {
	t.Helper()
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// lease is a payload that counts its releases and is overwritten by them.
type lease struct {
	values   []float32
	released int
}

func (l *lease) Release() {
	l.released++
	for i := range l.values {
		l.values[i] = 1e30
	}
}

// owner is a Dense and the weights of each batch that may be open, which averages what closes.
type owner struct {
	t       *testing.T
	dense   *Dense
	made    *Results
	backend cuda.Backend
	lanes   int
	held    *Held
	weights map[schema.Batch]*Weights
	leases  []*lease
	results map[string][]float32
	order   []string
}

func newOwner(t *testing.T, b cuda.Backend, lanes, ahead, chunks int, summing schema.Summing) *owner {
	o := &owner{t: t, backend: b, lanes: lanes, held: NewHeld(lanes), weights: map[schema.Batch]*Weights{},
		results: map[string][]float32{}}
	c := denseConfig{backend: b, lanes: lanes, ahead: ahead, summing: summing, held: o.held, place: &schema.Placement{}}
	for i := range chunks {
		c.chunks = append(c.chunks, Chunk{Bucket: 3, Chunk: schema.Chunk(i), Chunks: schema.Chunk(chunks),
			Offset: uint64(i) * 100, Elements: 7 + i})
	}
	var err error
	o.dense = newDense(c)
	if o.made, err = newResults(t.Context(), c.chunks, ahead+2,
		schema.Head{Job: 5, Generation: 1, Lanes: uint16(lanes)}); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *owner) weight(b schema.Batch) *Weights {
	if o.weights[b] == nil {
		o.weights[b] = &Weights{}
	}
	return o.weights[b]
}

// add passes a contribution through as an owner does, and notes what closes.
func (o *owner) add(b schema.Batch, chunk int, n lane.Node, weight float64, values []float32) *schema.FrameError {
	o.t.Helper()
	l := &lease{values: slices.Clone(values)}
	c := Contribution{Batch: b, Chunk: chunk, Node: n, Weight: weight, Values: cuda.Float32s(l.values),
		Contributor: int(n.First), Bytes: int64(4 * len(values)), Payload: l}
	if refused := o.dense.Check(&c, o.weight(b)); refused != nil {
		return refused
	}
	if refused := o.dense.CheckFinite(&c); refused != nil {
		return refused
	}
	o.leases = append(o.leases, l)
	if err := o.dense.Add(&c, o.weight(b)); err != nil {
		o.t.Fatal(err)
	}
	for {
		c, ok := o.dense.Next(chunk)
		if !ok {
			return nil
		}
		out := o.made.Values(chunk, c.Batch+1)
		clear(out)
		if c.Weight > 0 {
			if err := o.backend.Average(cuda.Average{Lanes: o.lanes, Weight: float32(c.Weight), Terms: c.Terms,
				Out: cuda.Float32s(out)}); err != nil {
				o.t.Fatal(err)
			}
		}
		o.dense.Finish(chunk, o.weight(c.Batch), c.Weight)
		sealed := o.made.Seal(chunk, c.Batch+1,
			schema.Head{Batch: c.Batch, Weight: c.Weight, Node: lane.Root(o.lanes)}).View()
		v, err := schema.Verify(slices.Clone(sealed.Bytes()), schema.Limits{})
		if err != nil {
			o.t.Fatal(err)
		}
		name := fmt.Sprint(c.Batch, ".", chunk)
		o.results[name] = append([]float32{float32(v.Head().Weight)}, v.Float32s()...)
		o.order = append(o.order, name)
	}
}

func (o *owner) checkReleased() {
	o.t.Helper()
	for i, l := range o.leases {
		if l.released != 1 {
			o.t.Errorf("payload %d was released %d times", i, l.released)
		}
	}
	if o.held.Bytes() != 0 {
		o.t.Errorf("%d bytes are held", o.held.Bytes())
	}
}

// Four lanes by hand: 1 and 2 make 3, which waits for 10 and 20; what is held shrinks as children meet.
func TestDenseFourLanes(t *testing.T) {
	o := newOwner(t, open(t), 4, 0, 1, schema.SummingFused)
	add := func(first lane.Lane, value float32) {
		t.Helper()
		if refused := o.add(0, 0, lane.Node{First: first, Count: 1}, 1, []float32{value, 0, 0, 0, 0, 0, -value}); refused !=
			nil {
			t.Fatal(refused)
		}
	}
	held := func(want ...int64) {
		t.Helper()
		if got := []int64{o.held.Of(0), o.held.Of(1), o.held.Of(2), o.held.Of(3)}; !slices.Equal(got, want) {
			t.Errorf("held %v, want %v", got, want)
		}
	}
	add(1, 2)
	held(0, 28, 0, 0)
	add(0, 1)
	held(28, 0, 0, 0) // lanes 0 and 1 are one sum, in lane 0's memory
	add(3, 20)
	held(28, 0, 0, 28)
	if n := o.dense.Sums(0, 0); n != 2 {
		t.Errorf("%d sums, want 2", n)
	}
	if refused := o.add(0, 0, lane.Node{First: 1, Count: 1}, 1, make([]float32, 7)); refused == nil ||
		refused.Reason != schema.ReasonDuplicate {
		t.Errorf("a lane that was added up is %v when it comes again, want a duplicate", refused)
	}
	add(2, 10)
	held(0, 0, 0, 0)
	if got, want := o.results["0.0"], []float32{4, 8.25, 0, 0, 0, 0, 0, -8.25}; !slices.Equal(got, want) {
		t.Errorf("weight and average %v, want %v", got, want)
	}
	o.checkReleased()
}

// Four lanes, of which two that are siblings become one sum when both are there, also where an earlier round is open
// still and this one waits for its turn. The last is left to the close.
func TestDenseAddsSiblings(t *testing.T) {
	for summing, want := range map[schema.Summing]int{schema.SummingFused: 3, schema.SummingAtClose: 4} {
		o := newOwner(t, open(t), 4, 1, 1, summing)
		for _, l := range []lane.Lane{0, 1, 3, 2} {
			values := []float32{float32(int(1) << l), 0, 0, 0, 0, 0, 0}
			if refused := o.add(1, 0, lane.Node{First: l, Count: 1}, 1, values); refused != nil {
				t.Fatal(refused)
			}
		}
		if n := o.dense.Sums(0, 1); n != want {
			t.Errorf("%v: %d sums wait for batch 0, want %d", summing, n, want)
		}
		for l := range lane.Lane(4) {
			if refused := o.add(0, 0, lane.Node{First: l, Count: 1}, 1, make([]float32, 7)); refused != nil {
				t.Fatal(refused)
			}
		}
		if got := o.results["1.0"]; len(got) != 8 || got[0] != 4 || got[1] != 3.75 {
			t.Errorf("%v: weight and average %v, want 4 and 3.75", summing, got)
		}
		o.checkReleased()
	}
}

func TestDenseRefuses(t *testing.T) {
	o := newOwner(t, open(t), 4, 0, 2, schema.SummingFused)
	node := func(first, count int) lane.Node { return lane.Node{First: lane.Lane(first), Count: uint16(count)} }
	values := [][]float32{make([]float32, 7), make([]float32, 8)}
	for _, c := range []struct {
		chunk  int
		node   lane.Node
		weight float64
		want   schema.Reason
	}{
		{0, node(0, 2), 3, schema.ReasonOK},
		{0, node(0, 2), 3, schema.ReasonDuplicate},
		{0, node(0, 1), 3, schema.ReasonWrongNode},
		{0, node(0, 4), 3, schema.ReasonWrongNode},
		{1, node(0, 2), 4, schema.ReasonWrongWeight}, // chunk 0 said 3
		{0, node(2, 2), 1, schema.ReasonOK},
		{1, node(0, 1), 1, schema.ReasonOK},
		{1, node(2, 2), 1, schema.ReasonOK},
		{1, node(1, 1), 1, schema.ReasonWrongWeight}, // 3 in all; chunk 0 closed with 4
		{1, node(1, 1), 2, schema.ReasonOK},
		{1, node(1, 1), 2, schema.ReasonDuplicate},
	} {
		reason := schema.ReasonOK
		if refused := o.add(0, c.chunk, c.node, c.weight, values[c.chunk]); refused != nil {
			reason = refused.Reason
		}
		if reason != c.want {
			t.Errorf("chunk %d lanes %v weight %v: %v, want %v", c.chunk, c.node, c.weight, reason, c.want)
		}
	}
	bad := make([]float32, 8)
	bad[2] = float32(math.Inf(1))
	refused := o.add(1, 1, node(2, 1), 1, bad)
	if refused == nil || refused.Detail != "bucket 3, element 102, lanes [2,3), is +Inf" {
		t.Errorf("%v", refused)
	}
	o.checkReleased()
}

// work is what a lane contributes to a batch: nothing, now and then.
func work(seed uint64, b schema.Batch, chunk, l, n int) (weight float64, values []float32) {
	r := rand.New(rand.NewPCG(seed<<32|uint64(b)<<16|uint64(chunk)<<8, uint64(l)))
	w := rand.New(rand.NewPCG(seed, uint64(b)<<8|uint64(l))) // the same for all chunks
	values = make([]float32, n)
	if weight = float64(w.IntN(4)); weight > 0 {
		for i := range values {
			values[i] = float32(r.NormFloat64())
		}
	}
	return weight, values
}

// sumOf adds lanes up the tree, naively.
func sumOf(seed uint64, b schema.Batch, chunk int, n lane.Node, elements int) (float64, []float32) {
	if n.Count == 1 {
		return work(seed, b, chunk, int(n.First), elements)
	}
	left, right := n.Split()
	lw, l := sumOf(seed, b, chunk, left, elements)
	rw, r := sumOf(seed, b, chunk, right, elements)
	switch {
	case rw == 0:
		return lw, l
	case lw == 0:
		return rw, r
	}
	for i := range l {
		l[i] += r[i]
	}
	return lw + rw, l
}

// cut replaces a node by nodes below it, at random.
func cut(r *rand.Rand, n lane.Node) []lane.Node {
	if n.Count == 1 || r.IntN(2) == 0 {
		return []lane.Node{n}
	}
	left, right := n.Split()
	return append(cut(r, left), cut(r, right)...)
}

// In whatever order nodes of whatever size come, of several batches at once, and whether sums run early or in the end:
// each result is that of the naive sum, bit for bit, and each chunk's come in the order of batches.
func TestDenseAgainstNaiveSums(t *testing.T) {
	backend := open(t)
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		lanes, ahead, chunks, batches := 1+r.IntN(11), r.IntN(4), 1+r.IntN(3), schema.Batch(5)
		var owners []*owner
		for _, summing := range []schema.Summing{schema.SummingFused, schema.SummingAtClose} {
			owners = append(owners, newOwner(t, backend, lanes, ahead, chunks, summing))
		}
		type send struct {
			b     schema.Batch
			chunk int
			node  lane.Node
		}
		var waiting []send
		next := schema.Batch(0)
		for {
			low := batches
			for i := range chunks {
				low = min(low, owners[0].dense.Closed(i))
			}
			for ; next < batches && next <= low+schema.Batch(ahead); next++ {
				for chunk := range chunks {
					for _, n := range cut(r, lane.Root(lanes)) {
						waiting = append(waiting, send{next, chunk, n})
					}
				}
			}
			if len(waiting) == 0 {
				break
			}
			at := r.IntN(len(waiting))
			s := waiting[at]
			waiting = slices.Delete(waiting, at, at+1)
			weight, values := sumOf(seed, s.b, s.chunk, s.node, 7+s.chunk)
			for _, o := range owners {
				if refused := o.add(s.b, s.chunk, s.node, weight, values); refused != nil {
					t.Fatalf("seed %d: %v", seed, refused)
				}
			}
			if fused, last := owners[0].held.Bytes(), owners[1].held.Bytes(); fused > last {
				t.Fatalf("seed %d: %d bytes are held fused, %d at the close", seed, fused, last)
			}
		}
		for b := range batches {
			for chunk := range chunks {
				weight, want := sumOf(seed, b, chunk, lane.Root(lanes), 7+chunk)
				for i := range want {
					if want[i] /= float32(weight); weight == 0 {
						want[i] = 0
					}
				}
				for i, o := range owners {
					if got := o.results[fmt.Sprint(b, ".", chunk)]; !equalBits(got, append([]float32{float32(weight)}, want...)) {
						t.Fatalf("seed %d owner %d batch %d chunk %d: %v, want %v", seed, i, b, chunk, got, want)
					}
					at := o.made.sealed(chunk, b+1).View()
					if h := at.Head(); (h.Batch == b) != (b+schema.Batch(ahead)+2 >= batches) {
						t.Fatalf("seed %d: with %d ahead of %d batches, batch %d lies where %d did", seed, ahead, batches, h.Batch, b)
					}
				}
			}
		}
		for _, o := range owners {
			o.checkReleased()
		}
	}
}

func equalBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// What is open when an owner ends is released.
func TestDenseRelease(t *testing.T) {
	o := newOwner(t, open(t), 4, 1, 1, schema.SummingFused)
	for _, b := range []schema.Batch{0, 1} {
		for l := range lane.Lane(3) {
			if refused := o.add(b, 0, lane.Node{First: l, Count: 1}, 1, make([]float32, 7)); refused != nil {
				t.Fatal(refused)
			}
		}
	}
	o.dense.Release()
	o.checkReleased()
}
