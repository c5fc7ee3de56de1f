package shard

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gradbus/schema"
)

// Whatever becomes of a frame, its payload is released once: at once where nothing of it stays, in the end in any case.
func TestPayloadsAreReleasedOnce(t *testing.T) {
	stayed := 0
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSimulation(t, seed)
			s.run(2)
			s.leases.Check(t, 0) // run has begun batch 2, of which only a part comes
			s.sent = s.contributions()
			cut := rand.New(rand.NewPCG(seed, 2)).IntN(len(s.sent))
			for i, at := range s.r.Perm(len(s.sent))[:cut] {
				s.deliver(&s.sent[at], schema.ReasonOK)
				s.disturb(at, i)
			}
			stayed += s.held()
			s.leases.Check(t, s.held())
			for _, shard := range s.shards {
				shard.Close()
			}
			s.leases.Check(t, 0)
		})
	}
	if stayed == 0 {
		t.Error("no frame was held anywhere: the test sees less than it should")
	}
}

// held is how many payloads the shards keep.
func (s *simulation) held() int {
	n := 0
	for _, shard := range s.shards {
		for i := range shard.parked {
			n += len(shard.parked[i].frames)
		}
		for _, l := range shard.clock.Lines() {
			for b := l.Oldest(); b <= l.Batch(); b++ {
				for k := range l.Dense.Chunks() {
					n += l.Dense.Sums(k, b)
				}
				if l.Sparse != nil {
					n += l.Sparse.Chunks(b)
				}
			}
		}
	}
	return n
}
