package cuda

import (
	"math/rand/v2"
	"testing"
	"time"
)

// callsOf adds up what a backend was given.
func callsOf(b Backend) (n uint64) {
	for _, calls := range Calls(b) {
		n += calls
	}
	return n
}

// Every operation counts once, by itself and as a command of a batch, also where it is verified.
func TestOperationsAreCounted(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for name, c := range verifiedCalls(rand.New(rand.NewPCG(1, 9))) {
			before := callsOf(b)
			must(t, c.on(b))
			if n := callsOf(b) - before; n != 1 {
				t.Errorf("%s counts as %d operations", name, n)
			}
		}
		batch := b.NewBatch()
		defer batch.Free()
		a := Average{Lanes: 2, Weight: 2, Out: Float32s(make([]float32, 1)),
			Terms: []Term{{First: 0, Count: 1, Values: Float32s([]float32{1})},
				{First: 1, Count: 1, Values: Float32s([]float32{2})}}}
		must(t, batch.Average(a))
		must(t, batch.Average(a))
		before := callsOf(b)
		must(t, b.Submit(batch))
		if n := callsOf(b) - before; n != 2 {
			t.Errorf("a batch of two counts as %d operations", n)
		}
		if calls := Calls(b); calls[b.Name()] != callsOf(b) {
			t.Errorf("%v, want those of %s alone", calls, b.Name())
		}
	})
	b, err := Open(Options{Name: "go", Verify: 1, WrongBits: []time.Duration{time.Hour}})
	must(t, err)
	defer b.Close()
	for name, c := range verifiedCalls(rand.New(rand.NewPCG(1, 9))) {
		before := callsOf(b)
		must(t, c.on(b))
		if n := callsOf(b) - before; n != 1 {
			t.Errorf("%s, verified, counts as %d operations", name, n)
		}
	}
}
