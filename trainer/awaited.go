package trainer

import (
	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// awaited returns the first shard that a session waits for: one that has not answered a lookup, or whose results are
// missing. It returns nil if the session waits for no shard, or for another trainer.
func (s *membership) awaited(doing schema.Doing) *int {
	owner := -1
	if doing == schema.DoingLookup || doing == schema.DoingResult {
		s.exchange.do(func(x *exchange.Exchange) { owner, _ = x.Lacking() })
	}
	if owner < 0 || owner >= s.joined.Shards {
		return nil
	}
	return &owner
}

// linkReports says how the windows to all owners are.
func (s *membership) linkReports(to []schema.LinkReport) []schema.LinkReport {
	to = to[:0]
	for i, l := range s.links {
		if l.outbox == nil || len(to) == schema.LinksMax {
			continue
		}
		o := l.outbox.State()
		to = append(to, schema.LinkReport{Shard: i, PendingBytes: int64(o.PendingBytes), WindowBytes: int64(o.WindowBytes),
			Frames: o.Frames,
			Resent: resent(o.OutboxStats), RoundTrip: seconds(o.RoundTrip)})
	}
	return to
}

func resent(o fabric.OutboxStats) uint64 { return o.Gaps + o.Timeout + o.Back }
