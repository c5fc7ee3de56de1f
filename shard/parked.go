package shard

import (
	"cmp"
	"fmt"
	"slices"

	"gradbus/schema"
	"gradbus/shard/round"
)

// A lookup of batch b needs rows in which every batch before b-ahead is applied, by the asker's own clock. It may come
// earlier, right behind its sender's contributions or even before them: then it is parked, and answered when the last
// of these rounds is over. So a trainer's gradients and its next rows are one round trip.
//
// All frames of one batch's lookup are parked, of one batch a trainer, in a reserve that contributions have no part in.
// A repeat takes the place of what it repeats. What finds no room is dropped: its sender asks again. A parked lookup
// says nothing about other shards, so it does not move the shard on to its batch.
//
// An answer says that the rounds before its version are over. So the close alone goes to those who have nothing parked.

// parking is what waits of the lookups of one trainer.
type parking struct {
	batch  schema.Batch
	frames []parkedLookup // in the order of their numbers; those before next are answered
	bytes  int64
	next   int
	due    bool // its rows are there
}

// parkedLookup is one frame, in the payload that it came in.
type parkedLookup struct {
	head    schema.Head
	view    schema.View
	payload Payload
}

// parkedCost is what a frame takes of its sender's reserve.
func parkedCost(v *schema.View) int64 { return int64(len(v.Bytes())) + FrameBytesOver }

// park keeps a lookup that comes before its rows are there, if there is room for it.
func (s *Shard) park(contributor int, h *schema.Head, v *schema.View, payload Payload) {
	p := &s.parked[contributor]
	if p.batch != h.Batch {
		s.answering = slices.DeleteFunc(s.answering, func(due int) bool { return due == contributor })
		s.discard(p)
		p.batch = h.Batch
	}
	at, repeated := slices.BinarySearchFunc(p.frames, h.Sequence,
		func(f parkedLookup, n schema.Sequence) int { return cmp.Compare(f.head.Sequence, n) })
	bytes := p.bytes + parkedCost(v)
	if repeated {
		bytes -= parkedCost(&p.frames[at].view)
	}
	if bytes > s.config.ParkedBytesMax {
		return
	}
	if repeated {
		round.Release(p.frames[at].payload)
		p.frames = slices.Delete(p.frames, at, at+1)
	}
	p.frames, p.bytes = slices.Insert(p.frames, at, parkedLookup{*h, *v, payload}), bytes
	s.kept = true
}

// discard forgets what waits of one trainer's lookups.
func (s *Shard) discard(p *parking) {
	for i := range p.frames[p.next:] {
		round.Release(p.frames[p.next+i].payload)
	}
	clear(p.frames) // views are forgotten
	p.frames, p.bytes, p.next, p.due = p.frames[:0], 0, 0, false
}

// closedRows tells a line's trainers that its sparse round of batch b is over: by the answers to what they have parked,
// or by the frames of its result. An answer speaks of the last round that is over by then, so who has yet to be
// answered is told of the round before by its result. Frames that have rows are for all.
func (s *Shard) closedRows(l *round.Line, b schema.Batch, frames []*schema.Frame) {
	waited, bucket := false, s.config.Placement.SparseBucket(s.config.Index)
	for contributor := range s.parked {
		p := &s.parked[contributor]
		switch {
		case s.clock.Line(contributor) != l || len(p.frames) == 0 || p.next > 0 || p.batch > l.Awaiting(b):
			continue // there is no answer to come, or the first has been given
		case !p.due:
			p.due, s.answering = true, append(s.answering, contributor)
		case !l.Means.HasRows():
			s.outputResult(l, b-1, s.config.Contributors[contributor].Member, b-1, bucket, l.Means.Kept(b - 1)[0])
		}
		waited = true
	}
	if !waited || l.Means.HasRows() {
		s.closed(l, b, bucket, frames...)
		return
	}
	s.closed(l, b, bucket)
	for contributor := range s.parked {
		if p := &s.parked[contributor]; s.clock.Line(contributor) == l && (!p.due || p.next > 0) {
			s.outputResult(l, b, s.config.Contributors[contributor].Member, b, bucket, frames[0])
		}
	}
}

// Due reports whether there are parked lookups whose rows are there.
func (s *Shard) Due() bool { return len(s.answering) > 0 }

// Answer answers one frame of a parked lookup whose rows are there. Whoever steps the shard calls it after a Step for
// as long as Due says so; other steps may come between. The output is as of Step, and so is an error.
func (s *Shard) Answer() ([]Output, error) {
	contributor := s.answering[0]
	p := &s.parked[contributor]
	f := &p.frames[p.next]
	s.outputs = s.outputs[:0]
	err := s.answerLookup(contributor, &f.head, &f.view)
	s.limitCopy()
	round.Release(f.payload)
	if p.next++; p.next == len(p.frames) {
		s.discard(p)
		s.answering = slices.Delete(s.answering, 0, 1)
	}
	if err != nil {
		return nil, fmt.Errorf("shard %s of job %s: answer a parked lookup: %w", s.member, s.config.Job.Name, err)
	}
	return s.outputs, nil
}
