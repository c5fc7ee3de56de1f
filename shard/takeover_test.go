package shard

import (
	"fmt"
	"slices"
	"testing"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// generation is that of a trainer's frames.
func (s *simulation) generation(m schema.Member) schema.Generation {
	return max(shardtest.Generation, s.since[m])
}

// stamp gives a frame the generation that its sender has.
func (s *simulation) stamp(d *delivery) {
	v := shardtest.View(s.t, d.frame.Seal())
	h := v.Head()
	h.Generation = s.generation(d.from)
	d.frame.SetHead(h)
}

// takeOver takes the place of a contributor, of whose frames of the batch so many have come. Its successor sends all of
// them again: what has come whole is a repetition, and rows of the batch are what they were before it.
func (s *simulation) takeOver(contributor int) {
	s.t.Helper()
	m := s.contributors[contributor].Member
	old := slices.DeleteFunc(slices.Clone(s.sent), func(d delivery) bool { return d.from != m })
	s.risen++
	if s.since == nil {
		s.since = map[schema.Member]schema.Generation{}
	}
	s.since[m] = shardtest.Generation + s.risen
	for i, shard := range s.shards {
		name := fmt.Sprint(i, m)
		p := s.parked[name]
		shard.TakeOver(contributor, s.since[m])
		delete(s.parked, name)
		if l := shard.clock.Line(contributor).Sparse; p != nil && !p.told && l.Closed() > s.batch {
			f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindPull}) // it was to hear of it by its rows
			f.SetHead(schema.Head{Job: shardtest.RunID, Generation: s.since[m], Batch: s.batch,
				Bucket: s.place.SparseBucket(i)})
			s.deliver(&delivery{m, i, f}, schema.ReasonOK)
		}
		if done := shard.Done(); !shard.Idle() && done != s.batch && done != s.batch+1 {
			s.t.Fatalf("s%d: %d batches are complete in batch %d", i, done, s.batch)
		}
	}
	if len(old) > 0 {
		s.deliver(&old[s.r.IntN(len(old))], schema.ReasonOldGeneration)
	}
	for i := range s.sent {
		if s.sent[i].from == m {
			s.sent[i] = *s.reheaded(s.sent[i], func(h *schema.Head) { h.Generation = s.since[m] })
		}
	}
	for range 3 {
		shard := s.r.IntN(len(s.shards))
		if len(s.p.Job.Tables) > 0 {
			if l := s.shards[shard].clock.Line(contributor).Sparse; l != nil && l.Closed() > s.batch {
				s.stale++
			}
			s.deliver(s.lookupOf(contributor, shard, s.batch), schema.ReasonOK)
		}
	}
	for _, at := range s.r.Perm(len(s.sent)) {
		if d := &s.sent[at]; d.from == m && s.r.IntN(3) > 0 { // the rest in its own time
			s.deliver(d, schema.ReasonOK, schema.ReasonDuplicate)
		}
	}
}

// Whoever takes a trainer's place in the middle of a batch, once or several times, and sends all that it contributes
// again, leaves what the model has: every round is over once, with equal bits. Rows of the batch under way can be had
// again also where their round is over.
func TestPlacesAreTakenOver(t *testing.T) {
	taken, stale := 0, 0
	for seed := range uint64(80) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newSimulation(t, seed)
			if s.p.Job.Apply != schema.ApplyUpdate {
				t.Skip("its trainers have the parameters")
			}
			s.takingOver = true
			s.run(7)
			taken, stale = taken+int(s.risen), stale+s.stale
		})
	}
	if taken < 150 || stale < 30 {
		t.Errorf("%d places were taken over, and %d lookups of them were of rows that had changed: that is too few",
			taken, stale)
	}
}

// Nobody else has rows of a batch whose round over rows is closed, and not even its successor those of one before.
func TestPreviousRowsAreOfOneBatchAndOfSuccessors(t *testing.T) {
	for seed := uint64(0); ; seed++ {
		s := newSimulation(t, seed)
		if s.p.Job.Apply != schema.ApplyUpdate || len(s.p.Job.Tables) == 0 || len(s.contributors) < 2 {
			continue
		}
		s.run(4) // and batch 4 has begun for the model alone
		s.shards[0].TakeOver(0, 2)
		s.since = map[schema.Member]schema.Generation{s.contributors[0].Member: 2}
		s.deliver(s.lookupOf(0, 0, 4), schema.ReasonOK)
		s.deliver(s.lookupOf(0, 0, 3), schema.ReasonOK)
		s.deliver(s.lookupOf(0, 0, 2), schema.ReasonStaleBatch)
		s.deliver(s.lookupOf(1, 0, 3), schema.ReasonStaleBatch)
		return
	}
}
