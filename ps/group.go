package ps

import (
	"context"
	"fmt"
	"slices"

	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
)

// In grouped an update is made of the next requests, whoever they are from. A request is what a trainer sends of one of its own
// batches; the first of its frames that is taken decides which group it belongs to, for all of its chunks. Groups are numbered
// from 0, and group g makes version g+1 of every chunk. Each trainer has one request at a time, which is parked here, at the cost
// of an entry in its group, until its group has what it waits for.
//
// A group takes requests until it has the job's number of them, or those of all trainers who are still there. Its rounds close
// chunk by chunk, those of one chunk in the order of groups, so what is applied is a sequence of updates that can be replayed.

// grouping is what a shard knows of groups. It is nil in other modes.
type grouping struct {
	size    int             // requests that make an update
	hosts   []groupHost     // by host
	there   int             // of them, not gone
	filling schema.Batch    // the group that takes requests
	members [][]groupMember // of group g at g % len: as many groups as may be open

	// Versions of all chunks, each in frames of its own: they stay until every trainer whom they answered has proved, by its next
	// request, to have them.
	snapshots []snapshot
	free      []*round.Results
	make      func(context.Context) (*round.Results, error)
}

// groupHost is what a trainer has asked for.
type groupHost struct {
	next  schema.Batch // of its own batches: that of its next request
	group schema.Batch // of its last request, where next > 0
	gone  bool         // it contributes no more
}

// groupMember is a request in a group.
type groupMember struct {
	host  int
	batch schema.Batch // of the trainer's own
}

// snapshot is one version of all chunks, or as much of it as there is.
type snapshot struct {
	version schema.Version
	results *round.Results
	refs    int // trainers who may ask for it again
}

// GroupEvent is that a request was taken into a group, or that all rounds of a group have closed. What a grouped job has computed
// can be replayed from these.
type GroupEvent struct {
	Group  schema.Batch
	Closed bool          // all of the group has been answered; what follows is then zero
	Member schema.Member // whose request it is
	Batch  schema.Batch  // of that trainer's own
	Parked int           // requests that the group has now
	Size   int           // that it waits for, unless trainers are gone
}

// groupsOpen is how many groups may be open at once: those that are full, of different trainers, and the one that is filling.
func groupsOpen(job *schema.Job) int { return job.Trainers/job.Group + 1 }

// groupVersions is how many versions of a chunk may be kept at once: one for each trainer who has not asked again since, of whom
// the newest group has Group, the newest, and the one that is being made.
func groupVersions(job *schema.Job) int { return job.Trainers - job.Group + 3 }

func newGrouping(ctx context.Context, job *schema.Job, make_ func(context.Context) (*round.Results, error)) (*grouping, error) {
	g := &grouping{size: job.Group, there: job.Trainers, make: make_}
	g.hosts, g.members = make([]groupHost, job.Trainers), make([][]groupMember, groupsOpen(job))
	return g, g.begin(ctx, 0, 0)
}

func (g *grouping) of(group schema.Batch) *[]groupMember {
	return &g.members[group%schema.Batch(len(g.members))]
}

// snapshot is a version that is kept, or being made; else nil.
func (g *grouping) snapshot(v schema.Version) *snapshot {
	for i := range g.snapshots {
		if g.snapshots[i].version == v {
			return &g.snapshots[i]
		}
	}
	return nil
}

// results is where a version lies.
func (g *grouping) results(v schema.Version) *round.Results {
	if s := g.snapshot(v); s != nil {
		return s.results
	}
	panic(fmt.Sprintf("ps: version %d is not kept", v))
}

// begin makes room for a version that so many trainers will be answered with.
func (g *grouping) begin(ctx context.Context, v schema.Version, refs int) error {
	if len(g.free) == 0 {
		r, err := g.make(ctx)
		if err != nil {
			return err
		}
		g.free = append(g.free, r)
	}
	last := len(g.free) - 1
	g.snapshots = append(g.snapshots, snapshot{v, g.free[last], refs})
	g.free = g.free[:last]
	return nil
}

// unref is told that a trainer will not ask for a version again.
func (g *grouping) unref(v schema.Version) {
	if s := g.snapshot(v); s != nil {
		s.refs--
	}
}

// recycle lets go of versions that nobody will ask for. newest is the newest that is whole, from which the next is made.
func (g *grouping) recycle(newest schema.Version) {
	g.snapshots = slices.DeleteFunc(g.snapshots, func(s snapshot) bool {
		if s.refs > 0 || s.version >= newest {
			return false
		}
		g.free = append(g.free, s.results)
		return true
	})
}

// full reports that the group that is filling takes no more requests: it has its number, or those of all who are there.
func (g *grouping) full() bool {
	n := 0
	for _, m := range *g.of(g.filling) {
		if !g.hosts[m.host].gone {
			n++
		}
	}
	return n > 0 && n >= min(g.size, g.there)
}

// complete reports whether a round of a group has all that it will get.
func (g *grouping) complete(group schema.Batch, nodes []lane.Node, hosts []Host) bool {
	if group >= g.filling {
		return false
	}
	members := *g.of(group)
	if len(nodes) < len(members) && g.there == len(g.hosts) {
		return false
	}
	for _, m := range members {
		h := &hosts[m.host]
		if !g.hosts[m.host].gone && round.Covered(nodes, int(h.First), h.Count) < h.Count {
			return false
		}
	}
	return true
}

// reachGroup says which group a trainer's frame of one of its batches belongs to; fresh says that it begins a request, whose group
// is the one that is filling, and that join is to be called by whoever takes the frame.
func (s *Shard) reachGroup(l *timeline, host int, b schema.Batch) (group schema.Batch, fresh bool, refused *refusal) {
	g, k := s.groups, &s.groups.hosts[host]
	switch {
	case k.gone:
		return 0, false, schema.Refuse(schema.ReasonUnknownSender, "%s takes no part in job %s any more: it has left, or was taken for lost",
			s.hosts[host].Member, s.job.Name)
	case b+1 == k.next && k.group < l.done:
		return 0, false, &refusal{Reason: schema.ReasonDuplicate} // its round has closed
	case b+1 == k.next:
		return k.group, false, nil
	case b < k.next:
		return 0, false, schema.Refuse(schema.ReasonStaleBatch, "batch %d: batch %d of %s is under way", b, k.next-1, s.hosts[host].Member)
	case b > k.next || k.next > 0 && k.group >= l.done:
		return 0, false, schema.Refuse(schema.ReasonEarlyBatch, "batch %d: %s has been answered %d batches", b, s.hosts[host].Member, s.answered(l, host))
	}
	return g.filling, true, nil
}

// answered is how many requests of a trainer every round has closed of.
func (s *Shard) answered(l *timeline, host int) schema.Batch {
	k := &s.groups.hosts[host]
	if k.next > 0 && k.group >= l.done {
		return k.next - 1
	}
	return k.next
}

// join makes a trainer's next request one of the group that is filling.
func (s *Shard) join(l *timeline, host int) {
	g, k := s.groups, &s.groups.hosts[host]
	if k.next > 0 {
		g.unref(k.group + 1)
		g.recycle(l.done)
	}
	if l.batch < g.filling {
		s.advance(l, g.filling)
	}
	members := g.of(g.filling)
	*members = append(*members, groupMember{host, k.next})
	k.next, k.group = k.next+1, g.filling
	if s.onGroup != nil {
		s.onGroup(GroupEvent{Group: k.group, Member: s.hosts[host].Member, Batch: k.next - 1, Parked: len(*members), Size: g.size})
	}
	g.fill()
}

// fill begins the next group where this one takes no more.
func (g *grouping) fill() {
	if g.full() {
		g.filling++
		*g.of(g.filling) = (*g.of(g.filling))[:0]
	}
}

// beginVersion makes room for what a group makes of the chunks, with the first of them.
func (s *Shard) beginVersion(group schema.Batch) error {
	if s.groups.snapshot(group+1) != nil {
		return nil
	}
	refs := 0
	for _, m := range *s.groups.of(group) {
		if !s.groups.hosts[m.host].gone {
			refs++
		}
	}
	return s.groups.begin(context.Background(), group+1, refs)
}

// answerGroup publishes a result to those whose requests made it: the same frame, under the number that each of them calls its
// batch. Where that is one number for all trainers of the job, one message serves them all.
func (s *Shard) answerGroup(l *timeline, group schema.Batch, bucket schema.Bucket, frame []byte) {
	s.groups.recycle(l.done)
	if s.onGroup != nil && l.done > group {
		s.onGroup(GroupEvent{Group: group, Closed: true})
	}
	members := *s.groups.of(group)
	alike := len(members) == len(s.hosts)
	for _, m := range members {
		alike = alike && m.batch == group
	}
	if alike {
		s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: schema.All, Batch: group, Bucket: bucket, Frame: frame})
		return
	}
	for _, m := range members {
		if !s.groups.hosts[m.host].gone {
			s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: s.hosts[m.host].Member, Batch: m.batch, Bucket: bucket, Frame: frame})
		}
	}
}

// Gone is told of trainers of a grouped job that will contribute no more: they have left, or were lost. No group waits for them;
// what one had contributed whole to a round counts, the rest is forgotten. It returns what is to be published, as Step does, and is
// harmless when repeated. An error is as of Step.
func (s *Shard) Gone(members []schema.Member) ([]Output, error) {
	s.outputs = s.outputs[:0]
	if s.groups == nil {
		return nil, nil
	}
	l := &s.lines[0]
	changed := false
	for i := range s.hosts {
		if k := &s.groups.hosts[i]; !k.gone && slices.Contains(members, s.hosts[i].Member) {
			s.letGoOf(l, i)
			changed = true
		}
	}
	if !changed {
		return nil, nil
	}
	s.groups.fill()
	for i := range l.dense.Chunks() {
		if err := s.closeDense(l, i); err != nil {
			return nil, fmt.Errorf("shard %s of job %s: without %v: %w", s.member, s.job.Name, members, err)
		}
	}
	return s.outputs, nil
}

// letGoOf forgets a trainer, and those of its contributions that are not whole.
func (s *Shard) letGoOf(l *timeline, host int) {
	g, k, h := s.groups, &s.groups.hosts[host], &s.hosts[host]
	k.gone = true
	g.there--
	if k.next == 0 {
		return
	}
	g.unref(k.group + 1) // where that is there; else it was not counted
	g.recycle(l.done)
	if k.group < l.done {
		return
	}
	for i := range l.dense.Chunks() {
		if l.dense.Closed(i) <= k.group && round.Covered(l.dense.Nodes(i, k.group), int(h.First), h.Count) < h.Count {
			l.dense.Forget(i, k.group, int(h.First), h.Count)
		}
	}
}

// waitingForGroup is Waiting where trainers make groups: of the oldest open group, whoever its first open round lacks, or, where it
// is not full, everybody who has no request in any.
func (s *Shard) waitingForGroup(l *timeline) Waiting {
	g, w := s.groups, Waiting{Batch: l.done}
	if l.done >= g.filling {
		w.Batch = g.filling
		if len(*g.of(g.filling)) == 0 || l.batch < g.filling {
			return w
		}
		for i := range s.hosts {
			if k := &g.hosts[i]; !k.gone && (k.next == 0 || k.group < l.done) {
				w.Members = append(w.Members, s.hosts[i].Member)
			}
		}
		w.First, w.Rounds = w.Members, l.rounds
		return w
	}
	for i := range l.dense.Chunks() {
		if l.dense.Closed(i) > w.Batch {
			continue
		}
		c := l.dense.Chunk(i)
		w.Rounds++
		for _, m := range *g.of(w.Batch) {
			h := &s.hosts[m.host]
			if !g.hosts[m.host].gone && w.Rounds == 1 && round.Covered(l.dense.Nodes(i, w.Batch), int(h.First), h.Count) < h.Count {
				w.Members, w.Bucket, w.Chunk = append(w.Members, h.Member), c.Bucket, c.Chunk
			}
		}
	}
	w.First = w.Members
	return w
}

// pullGroup answers a trainer that asks again for what its last request got.
func (s *Shard) pullGroup(l *timeline, host int, h *schema.Head, batch schema.Batch) *refusal {
	if !s.place.IsDense(h.Bucket) {
		return schema.Refuse(schema.ReasonUnknownBucket, "bucket %d: job %s has no tables", h.Bucket, s.job.Name)
	}
	k := &s.groups.hosts[host]
	if batch+1 != k.next || k.gone {
		_, fresh, refused := s.reachGroup(l, host, batch)
		if fresh {
			return nil // it has overtaken its sender's contributions
		}
		return refused
	}
	i := s.chunk(h)
	if k.group < l.dense.Closed(i) {
		frame := s.groups.results(k.group+1).Sealed(i, k.group+1)
		s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: s.hosts[host].Member, Batch: batch, Bucket: h.Bucket, Frame: frame})
	}
	return nil
}
