package module

import (
	"sync"
	"testing"

	"gradbus/schema"
)

// Requests that arrive while a set closes, or later, are released without being processed.
func TestRequestsWhileClosing(t *testing.T) {
	b := newBench(t)
	x := randomInput(1, 1)
	var items [][]Frame
	for number := range schema.Sequence(50) {
		for trainer := range 2 {
			items = append(items, b.forward(trainer, number+1, x))
		}
	}
	var receiving sync.WaitGroup
	begun := make(chan struct{})
	receiving.Go(func() {
		for i, request := range items {
			b.deliver(request...)
			if i == len(items)/4 {
				close(begun)
			}
		}
	})
	<-begun
	b.Close()
	receiving.Wait()
	b.deliver(b.forward(0, 100, x)...)
	late := schema.Head{Sequence: 101} // whose tensor stays in its frame
	b.deliver(b.request(1, schema.KindBackward, late, []uint64{1}, []float32{1, 2})...)
	for i := range b.d.slots {
		s := &b.d.slots[i]
		s.mu.Lock()
		if s.request != nil || s.working {
			t.Errorf("a request of trainer %d is kept after the end", i)
		}
		s.mu.Unlock()
	}
	b.leases.Check(t, 0)
}

// A request that breaks an invariant ends the job, and its contexts are released.
func TestClosesAfterAPanic(t *testing.T) {
	b := newBench(t)
	b.Fail = func(error) {}
	b.deliver(b.forward(0, 1, randomInput(1, 1))...)
	id := b.answer(1).Keys()
	b.d.mu.Lock()
	c := b.d.contexts[id[0]]
	b.d.unpinLocked(c.version)
	c.version = nil // which the backward pass reads
	b.d.mu.Unlock()
	b.deliver(b.request(0, schema.KindBackward, schema.Head{Sequence: 2}, id, []float32{1, 2})...)
	b.settled(1)
	b.Close()
	b.leases.Check(t, 0)
}
