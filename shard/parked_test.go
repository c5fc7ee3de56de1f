package shard

import (
	"fmt"
	"testing"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// checkWaited checks that lookups have waited for their rows, often.
func checkWaited(t *testing.T, answers int) {
	t.Helper()
	if answers < 50 {
		t.Errorf("%d answers to parked lookups: the simulation has fewer than it should", answers)
	}
}

// answerAll has all shards answer what they have parked.
func (s *simulation) answerAll() {
	s.t.Helper()
	for i, shard := range s.shards {
		for shard.Due() {
			s.answer(i)
		}
	}
}

// answer has a shard answer a parked lookup.
func (s *simulation) answer(shard int) {
	s.t.Helper()
	outputs, err := s.shards[shard].Answer()
	must(s.t, err)
	s.checkParked(shard, &outputs[0])
}

// checkParked checks the answer to a lookup that has waited for its rows.
func (s *simulation) checkParked(shard int, o *Output) {
	s.t.Helper()
	v, name := shardtest.View(s.t, o.Frame), fmt.Sprint(shard, o.To)
	h := v.Head()
	h.Batch, h.Bucket = h.Batch-schema.Batch(h.Offset)-1, s.place.SparseBucket(shard)
	p := s.parked[name]
	if p == nil {
		s.t.Fatalf("s%d answers a lookup of batch %d that %s has not parked", shard, o.Batch, o.To)
	}
	if s.waited != nil {
		*s.waited++
	}
	if !p.told { // by the first of several
		p.told = true
		s.tell(o.To, &h)
		if s.applied != nil {
			s.applied(o.To, &h, v)
		}
	}
	if p.left--; p.left == 0 {
		delete(s.parked, name)
	}
	s.checkRows(v)
}

// parkedFrames are those of a trainer's lookup of the next batch that wait on a shard.
type parkedFrames struct {
	left int
	told bool // their trainer has heard that the round that they wait for is over
}

// lookAhead asks for rows that the round under way is about to make, in one frame or several, some of them twice. Of a
// trainer that begins its next batch, most, with them.
func (s *simulation) lookAhead(contributor, shard int, most schema.Batch) {
	s.t.Helper()
	l, name := s.shards[shard].clock.Line(contributor), fmt.Sprint(shard, s.contributors[contributor].Member)
	if l.Sparse == nil || s.parked[name] != nil {
		return
	}
	next := l.Done() + l.Ahead + 1
	if next > most || l.Done() != l.Sparse.Closed() { // the second: the round over rows is over, and a chunk is not
		return
	}
	frames := 1 + s.r.IntN(3)
	s.parked[name] = &parkedFrames{left: frames}
	for range frames {
		d := s.lookupOf(contributor, shard, next)
		for range 1 + s.r.IntN(2) {
			s.deliver(d, schema.ReasonOK)
		}
	}
}
