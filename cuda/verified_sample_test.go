package cuda

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Of each hundred blocks in turn one is checked, whatever calls they are of; all places have the same chance.
func TestVerifiedPicksEveryBlockAlike(t *testing.T) {
	const oneIn, blocks, turns = 100, 10, 100000
	v := verified(t, newReference(), oneIn)
	v.seed = 7
	seen := [blocks]int{}
	for range turns {
		first, some := v.number(blocks)
		at, ok := v.due(first, first+blocks)
		if ok != some {
			t.Fatalf("at block %d: due %t and %t", first, some, ok)
		}
		if ok {
			seen[at-first]++
		}
	}
	// Binomial: 1000 each, standard deviation below 32.
	for at, n := range seen {
		if math.Abs(float64(n)-turns/oneIn) > 5*32 {
			t.Errorf("of calls of ten blocks, block %d was checked %d times, want some %d: %v", at, n, turns/oneIn, seen)
		}
	}
	if n := sum(seen[:]); n != blocks*turns/oneIn {
		t.Errorf("%d blocks checked of %d, want one in %d", n, blocks*turns, oneIn)
	}
}

func sum(x []int) (n int) {
	for _, y := range x {
		n += y
	}
	return n
}

// A call of many blocks has its share checked, not one of them; large calls and small ones, mixed, have the same share.
func TestVerifiedShares(t *testing.T) {
	const oneIn = 10
	v := verified(t, newReference(), oneIn)
	checked, went := map[int]int{}, map[int]int{}
	for i := range 4000 {
		size := []int{1, 1, 3, 250}[i%4]
		first, _ := v.number(size)
		for at, ok := v.due(first, first+uint64(size)); ok; at, ok = v.due(at+1, first+uint64(size)) {
			checked[size]++
		}
		went[size] += size
	}
	for size, n := range checked {
		want := float64(went[size]) / oneIn
		if math.Abs(float64(n)-want) > 5*math.Sqrt(want) {
			t.Errorf("calls of %d blocks: %d of %d checked, want some %v", size, n, went[size], want)
		}
	}
	if len(checked) != 3 {
		t.Errorf("checked by size: %v", checked)
	}
	if _, ok := v.number(0); ok {
		t.Error("a call of no blocks has some due")
	}
	if _, err := Verify(newReference(), newReference(), 0); !errors.Is(err, ErrArgument) {
		t.Errorf("one in 0: %v", err)
	}
}

// The same seed gives the same blocks, another one others; with all to be checked all are.
func TestVerifiedSeed(t *testing.T) {
	picks := func(seed, oneIn uint64) (all []uint64) {
		v := verified(t, newReference(), int(oneIn))
		v.seed = seed
		for at, ok := v.due(0, 1000); ok; at, ok = v.due(at+1, 1000) {
			all = append(all, at)
		}
		return all
	}
	if a, b := picks(1, 50), picks(1, 50); !slices.Equal(a, b) || len(a) != 20 {
		t.Errorf("seed 1 gives %v and %v", a, b)
	}
	if a, b := picks(1, 50), picks(2, 50); slices.Equal(a, b) {
		t.Errorf("seeds 1 and 2 give %v", a)
	}
	if a := picks(3, 1); len(a) != 1000 {
		t.Errorf("%d of 1000 blocks, want all", len(a))
	}
}

// A batch goes in one call where none of its blocks is due, and one by one where one is; shares are as without a batch.
func TestVerifiedBatches(t *testing.T) {
	const oneIn, blocks, times = 8, 3, 2000
	plain := &counting{Backend: newReference()}
	v := verified(t, plain, oneIn)
	b := v.NewBatch()
	defer b.Free()
	out := zeros(blocks * verifyValues)
	values := zeros(out.n)
	report := &Report{}
	must(t, b.ApplyDense(ApplyDense{Optimizer: SGD{LR: 1}, Weight: 1, Param: zeros(out.n), Grad: values, Out: out,
		NonFinite: Count, Report: report}))
	must(t, b.FirstNonFinite(values))
	view[float32](values)[5] = inf
	whole := 0
	var together sync.WaitGroup // submitted by turns; others number blocks meanwhile
	together.Go(func() {
		for range times {
			v.number(1)
		}
	})
	for range times {
		before := plain.submitted
		*report = Report{}
		must(t, v.Submit(b))
		whole += plain.submitted - before
		if b.Len() != 2 || b.report(0).nonFinite != 1 || report.nonFinite != 1 || b.Count(1) != 5 {
			t.Fatalf("after %d in one call: %d commands, reports %+v and %+v, position %d", whole, b.Len(), b.report(0),
				report, b.Count(1))
		}
	}
	together.Wait()
	if whole < times/8 || whole > times*7/8 {
		t.Errorf("%d of %d batches went in one call, want most that have no block due", whole, times)
	}
	if n, _ := v.Checked(); math.Abs(float64(n)-blocks*times/oneIn) > blocks*times/oneIn/5 {
		t.Errorf("%d of %d blocks checked, want some %d", n, blocks*times, blocks*times/oneIn)
	}
	other := newReference().NewBatch()
	if err := v.Submit(other); !errors.Is(err, ErrArgument) {
		t.Errorf("another backend's batch: %v", err)
	}
	if err := b.ApplyDense(ApplyDense{}); !errors.Is(err, ErrArgument) || b.Len() != 2 {
		t.Errorf("a wrong command: %v, and %d commands", err, b.Len())
	}
	b.reset()
	if must(t, v.Submit(b)); b.Len() != 0 {
		t.Errorf("%d commands after a reset", b.Len())
	}
}

// counting counts batches.
type counting struct {
	Backend
	submitted int
}

func (c *counting) Submit(b *Batch) error {
	c.submitted++
	return c.Backend.Submit(b)
}

// Every method of Backend is either checked, and then TestVerifiedFinds has calls of it, or has a reason not to be.
// Whoever adds a method to the interface decides which.
func TestVerifiedKnowsEveryMethod(t *testing.T) {
	unchecked := map[string]string{
		"Name": "says", "ISA": "says", "Threads": "says", "FirstNonFinite": "reads", "Gather": "reads",
		"Alloc": "zeroed memory", "Close": "ends",
		"BagForward": "a pass of a trainer's samples, or of a hosted module's", "MatMul": "likewise",
		"SoftmaxCrossEntropy": "likewise",
		"BagBackward":         "gradients of a trainer's own samples", "Coalesce": "likewise",
		"NewBatch": "TestVerifiedFinds has every call in a batch too", "Submit": "likewise",
	}
	checked := map[string]bool{}
	for _, c := range verifiedCalls(rand.New(rand.NewPCG(8, 8))) {
		checked[c.method] = true
	}
	for m := range reflect.TypeFor[Backend]().Methods() {
		if _, passes := unchecked[m.Name]; passes == checked[m.Name] {
			t.Errorf("%s: want it among the calls that TestVerifiedFinds bends, or among those that need not be "+
				"checked, and why", m.Name)
		}
	}
	// What is checked is a command, and has the same number of blocks in a batch.
	for name, c := range verifiedCalls(rand.New(rand.NewPCG(8, 8))) {
		v := verified(t, newReference(), 1<<40)
		must(t, c.on(v))
		n := int(v.blocks.Load())
		if in := blocksOfCommand(c.c); n == 0 || in < n || in > n && c.method != "Merge" {
			t.Errorf("%s: %d blocks, in a batch %d", name, n, in)
		}
	}
	if _, err := OpenStream(verified(t, newReference(), 1)); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(err.Error(), "verified") {
		t.Errorf("a stream: %v", err)
	}
}
