package trainer

import (
	"gradbus/fabric"
	"gradbus/schema"
)

// awaited is the first of the shards that a session waits for, and their number: those that have not answered a lookup, whose window is
// full, or whose results are missing. nil where it waits for none, or for another trainer.
func (s *Session) awaited(doing schema.Doing) (first *int, n int) {
	owner := -1
	if shard := int(s.passes.shard.Load()); shard > 0 {
		owner, n = shard-1, 1
		return &owner, n
	}
	switch doing {
	case schema.DoingLookup:
		owner, n = s.lookups.unansweredBy()
	case schema.DoingSend:
		if at := int(s.sender.to.Load()); at < len(s.links) && s.links[at].outbox != nil && s.links[at].outbox.State().Full {
			owner, n = at, 1
		}
	case schema.DoingResult:
		owner, n = s.results.missingFrom()
	}
	if owner < 0 || owner >= s.joined.Shards {
		return nil, 0
	}
	return &owner, n
}

// unansweredBy is the first shard that has not answered a request, and how many have not; -1 where all have.
func (l *lookups) unansweredBy() (first, n int) {
	first = -1
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == 0 {
		return first, 0
	}
	for i := range l.requests {
		if r := &l.requests[i]; !r.answered {
			if n++; n == 1 {
				first = r.shard
			}
		}
	}
	return first, n
}

// missingFrom is the first owner of whom a result of the oldest open batch is missing, and their number; -1 where none is.
func (r *results) missingFrom() (first, n int) {
	first = -1
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.complete >= r.begun {
		return first, 0
	}
	o := r.of(r.complete)
	for i := range o.gaps {
		if o.gaps[i].missing() {
			if n++; n == 1 {
				first = i
			}
		}
	}
	return first, n
}

// linkPulses says how the windows to all owners are.
func (s *Session) linkPulses(to []schema.LinkPulse) []schema.LinkPulse {
	to = to[:0]
	for i, l := range s.links {
		if l.outbox == nil || len(to) == schema.LinksMax {
			continue
		}
		o := l.outbox.State()
		to = append(to, schema.LinkPulse{Shard: i, PendingBytes: int64(o.PendingBytes), WindowBytes: int64(o.WindowBytes), Frames: o.Frames,
			Resent: resent(o.OutboxStats), RoundTrip: seconds(o.RoundTrip)})
	}
	return to
}

func resent(o fabric.OutboxStats) uint64 { return o.Gaps + o.Timeout + o.Back }
