package trainer

import (
	"gradbus/fabric"
	"gradbus/schema"
)

// awaited is the shard that a session waits for, as far as that can be said of one: that has not answered a lookup, whose window is
// full, or whose results are missing. nil where it waits for none, or for another trainer.
func (s *Session) awaited(doing schema.Doing) *int {
	owner := -1
	switch doing {
	case schema.DoingLookup:
		owner = s.lookups.unansweredBy()
	case schema.DoingSend:
		if at := int(s.sender.to.Load()); at < len(s.links) && s.links[at].outbox != nil && s.links[at].outbox.State().Full {
			owner = at
		}
	case schema.DoingResult:
		owner = s.results.missingFrom()
	}
	if owner < 0 || owner >= s.joined.Shards {
		return nil
	}
	return &owner
}

// unansweredBy is the first shard that has not answered a request; -1 where all have.
func (l *lookups) unansweredBy() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == 0 {
		return -1
	}
	for i := range l.requests {
		if r := &l.requests[i]; !r.answered {
			return r.shard
		}
	}
	return -1
}

// missingFrom is the first owner of whom a result of the oldest open batch is missing; -1 where none is.
func (r *results) missingFrom() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.complete >= r.begun {
		return -1
	}
	o := r.of(r.complete)
	for i := range o.gaps {
		if o.gaps[i].missing() {
			return i
		}
	}
	return -1
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
