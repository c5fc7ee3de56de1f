package schema

import "fmt"

// Group tells all trainers of a grouped job whose manifest asks for it (Job.GroupEvents) what becomes of a group: a
// request was taken into it, or, with Closed, all of its rounds have closed. Shards send it before what it tells of has
// any effect, and none is sent again.
type Group struct {
	Update Batch  `json:"update"` // which of the job's groups, from 0
	Closed bool   `json:"closed,omitempty"`
	Start  bool   `json:"start,omitempty"`                // it assigns the values of a model: StartModel
	Member Member `json:"member,omitempty"`               // whose request it is; what follows is zero where Closed
	Batch  Batch  `json:"batch,omitempty"`                // of that trainer's own
	Parked int    `json:"parked,omitempty" check:"lanes"` // requests that the group has now
	Size   int    `json:"size,omitempty" check:"lanes"`   // that it waits for, unless trainers are gone
	AtNS   int64  `json:"at_ns,string" check:"ns"`        // nanoseconds since 1970 by the shard's clock; rises from each to the next
}

func (g *Group) check() error {
	if g.Closed {
		if g.Member != "" || g.Batch != 0 || g.Parked != 0 || g.Size != 0 {
			return fmt.Errorf("group %d is closed: want no request with it", g.Update)
		}
		return nil
	}
	if g.Member == "" || g.Parked < 1 || g.Size < 1 {
		return fmt.Errorf("group %d has %d requests of %d, the last of member %q: want at least 1, and a member", g.Update,
			g.Parked, g.Size, g.Member)
	}
	return nil
}
