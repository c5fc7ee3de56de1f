package shard

import (
	"cmp"
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
// An answer says that the rounds before its version are over. So the close alone goes to trainers without a parked
// lookup.

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

// parkedLookups are those of all trainers.
type parkedLookups struct {
	parked    []parking // by contributor
	answering []int     // contributors whose parked lookups are being answered, in their order
	most      int64     // bytes of one trainer's
}

// Due reports whether there are parked lookups whose rows are there.
func (all *parkedLookups) Due() bool { return len(all.answering) > 0 }

// park keeps a lookup that comes before its rows are there, if there is room for it, and reports whether it does.
func (all *parkedLookups) park(contributor int, h *schema.Head, v *schema.View, payload Payload) bool {
	p := &all.parked[contributor]
	if p.batch != h.Batch {
		all.forget(contributor)
		p.batch = h.Batch
	}
	at, repeated := slices.BinarySearchFunc(p.frames, h.Sequence,
		func(f parkedLookup, n schema.Sequence) int { return cmp.Compare(f.head.Sequence, n) })
	bytes := p.bytes + parkedCost(v)
	if repeated {
		bytes -= parkedCost(&p.frames[at].view)
	}
	if bytes > all.most {
		return false
	}
	if repeated {
		round.Release(p.frames[at].payload)
		p.frames = slices.Delete(p.frames, at, at+1)
	}
	p.frames, p.bytes = slices.Insert(p.frames, at, parkedLookup{*h, *v, payload}), bytes
	return true
}

// forget forgets what waits of one trainer's lookups.
func (all *parkedLookups) forget(contributor int) {
	all.answering = slices.DeleteFunc(all.answering, func(due int) bool { return due == contributor })
	all.parked[contributor].discard()
}

// discard releases what waits.
func (p *parking) discard() {
	for i := range p.frames[p.next:] {
		round.Release(p.frames[p.next+i].payload)
	}
	clear(p.frames) // views are forgotten
	p.frames, p.bytes, p.next, p.due = p.frames[:0], 0, 0, false
}
