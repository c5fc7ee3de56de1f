package round

import (
	"context"
	"fmt"
	"slices"

	"gradbus/internal/planted"
	"gradbus/lane"
	"gradbus/schema"
)

// Grouped is the clock of rounds that combine the next requests from any trainers. A request is what a trainer sends
// for one of its own batches. Its first accepted frame decides which group it belongs to, for all of its chunks. Groups
// are numbered from 0, and group g makes version g+1 of every chunk. Each trainer has one request at a time, which
// waits in its group, as an entry, until the group is complete.
//
// A group accepts requests until it has the job's number of them, or those of all trainers that remain; a group that
// assigns the values of a model (schema.StartModel) accepts those of all. Its rounds close chunk by chunk, those of one
// chunk in the order of groups, so the updates form a sequence that can be replayed.
type Grouped struct {
	config       ClockConfig
	line         *Line
	contributors []groupContributor // by contributor
	remaining    int                // contributors that are not gone
	filling      schema.Batch       // group that accepts requests
	members      [][]groupMember    // of group g at g % len: as many groups as may be open
	receivers    []Receiver

	// Versions of all chunks, each in its own frames. A version stays until every trainer that was answered with it has
	// sent its next request, which proves that it arrived.
	snapshots []snapshot
	free      []*Results
}

// groupContributor is the state of a trainer's requests.
type groupContributor struct {
	next     schema.Batch // the trainer's own number of its next request
	group    schema.Batch // of the last request, if any
	departed bool         // contributes no more
}

// asked reports whether a trainer has made a request.
func (g *Grouped) asked(k *groupContributor) bool { return k.next > g.config.First }

// last reports whether a batch is that of the last request. b may be any number, so nothing is added to it.
func (g *Grouped) last(k *groupContributor, b schema.Batch) bool { return g.asked(k) && b == k.next-1 }

// groupMember is a request in a group.
type groupMember struct {
	contributor int
	batch       schema.Batch // of the trainer's own
}

// snapshot is one version of all chunks; the newest may be incomplete.
type snapshot struct {
	version schema.Version
	results *Results
	refs    int // trainers that may request it again
}

// GroupEvent reports that a request was added to a group, or, with Closed, that all rounds of a group have closed; the
// fields after Closed are zero then, except Start. The updates of a grouped job can be replayed from these events.
type GroupEvent struct {
	Group  schema.Batch
	Closed bool          // all requests of the group have been answered
	Member schema.Member // sender of the request
	Batch  schema.Batch  // the sender's own number
	Parked int           // requests in the group
	Size   int           // requests that the group waits for, unless trainers are gone
	Start  bool          // the group assigns the values of a model
}

// groupsOpen returns how many groups may be open at once: the full ones, which have different trainers, and the one
// that accepts requests.
func groupsOpen(job *schema.Job) int { return job.Trainers/job.Group + 1 }

func newGrouped(ctx context.Context, c ClockConfig) (Clock, error) {
	g := &Grouped{config: c, remaining: len(c.Contributors), contributors: make([]groupContributor, len(c.Contributors)),
		members: make([][]groupMember, groupsOpen(c.Job))}
	g.filling = c.First
	for i := range g.contributors {
		g.contributors[i].next = c.First
	}
	if err := g.begin(ctx, schema.Version(c.First), g.remaining); err != nil { // the version with which all of them begin
		return nil, err
	}
	g.line = c.line(schema.All, c.Job.Lanes, groupsOpen(c.Job)-1, lane.Node{}, g.complete)
	g.line.Renumbered = true
	return g, nil
}

// Versions returns the number of stored versions, and the number of free ones.
func (g *Grouped) Versions() (stored, free int) { return len(g.snapshots), len(g.free) }

// Lines implements Clock.
func (g *Grouped) Lines() []*Line { return []*Line{g.line} }

// Line implements Clock.
func (g *Grouped) Line(int) *Line { return g.line }

func (g *Grouped) of(group schema.Batch) *[]groupMember {
	return &g.members[group%schema.Batch(len(g.members))]
}

// snapshot returns a version that is stored or being made; else nil.
func (g *Grouped) snapshot(v schema.Version) *snapshot {
	for i := range g.snapshots {
		if g.snapshots[i].version == v {
			return &g.snapshots[i]
		}
	}
	return nil
}

// Results implements Clock.
func (g *Grouped) Results(v schema.Version) *Results {
	if s := g.snapshot(v); s != nil {
		return s.results
	}
	panic(fmt.Sprintf("round: version %d is not kept", v))
}

// begin makes room for a version that refs trainers will be answered with.
func (g *Grouped) begin(ctx context.Context, v schema.Version, refs int) error {
	if len(g.free) == 0 {
		r, err := g.config.results(ctx, 1)
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

// has returns the version that a trainer has, or will have when its last request is answered.
func (g *Grouped) has(k *groupContributor) schema.Version {
	if g.asked(k) {
		return schema.Version(k.group) + 1
	}
	return schema.Version(g.config.First)
}

// unref records that a trainer will not request a version again.
func (g *Grouped) unref(v schema.Version) {
	if s := g.snapshot(v); s != nil {
		s.refs--
	}
}

// recycle releases versions that can no longer be requested. The newest complete version stays, because the next is
// made from it, and the one before it, which may be being copied.
func (g *Grouped) recycle() {
	g.snapshots = slices.DeleteFunc(g.snapshots, func(s snapshot) bool {
		if s.refs > 0 || s.version+1 >= schema.Version(g.line.done) {
			return false
		}
		g.free = append(g.free, s.results)
		return true
	})
}

// starts reports whether a group assigns the values of a model.
func (g *Grouped) starts(group schema.Batch) bool { return group < g.config.Job.StartVersion() }

// size returns the number of requests that a group waits for, unless trainers are gone.
func (g *Grouped) size(group schema.Batch) int {
	if g.starts(group) {
		return len(g.contributors)
	}
	return g.config.Job.Group
}

// full reports whether the open group accepts no more requests: it has its number, or those of all remaining trainers.
func (g *Grouped) full() bool {
	n := 0
	for _, m := range *g.of(g.filling) {
		if !g.contributors[m.contributor].departed {
			n++
		}
	}
	return n > 0 && n >= min(g.size(g.filling), g.remaining)
}

// fill opens the next group if the current one is full.
func (g *Grouped) fill() {
	if g.full() {
		g.filling++
		*g.of(g.filling) = (*g.of(g.filling))[:0]
	}
}

// complete reports whether a round of a group has all contributions that it will get.
func (g *Grouped) complete(group schema.Batch, nodes []lane.Node) bool {
	if group >= g.filling {
		return false
	}
	members := *g.of(group)
	if len(nodes) < len(members) && g.remaining == len(g.contributors) {
		return false
	}
	return !slices.ContainsFunc(members, func(m groupMember) bool {
		return !g.contributors[m.contributor].departed && g.misses(m.contributor,
			nodes)
	})
}

// misses reports whether nodes do not cover the lanes of a trainer.
func (g *Grouped) misses(contributor int, nodes []lane.Node) bool {
	h := &g.config.Contributors[contributor]
	return covered(nodes, int(h.First), h.Count) < h.Count
}

// Reach implements Clock: the first frame of a request belongs to the group that accepts requests.
func (g *Grouped) Reach(contributor int, b schema.Batch) (Entry, *schema.FrameError) {
	k, member := &g.contributors[contributor], g.config.Contributors[contributor].Member
	e := Entry{Line: g.line, Round: k.group, contributor: contributor}
	switch {
	case k.departed:
		return e, schema.Refuse(schema.ReasonUnknownSender,
			"%s takes no part in job %s any more: it has left, or was taken for lost",
			member, g.config.Job.Name)
	case g.last(k, b) && k.group < g.line.done:
		return e, &schema.FrameError{Reason: schema.ReasonDuplicate} // the round has closed
	case g.last(k, b):
		return e, nil
	case b < k.next:
		return e, schema.Refuse(schema.ReasonStaleBatch, "batch %d: batch %d of %s is under way", b, k.next-1, member)
	case b > k.next || g.asked(k) && k.group >= g.line.done:
		return e, schema.Refuse(schema.ReasonEarlyBatch, "batch %d: %s has been answered %d batches", b, member,
			g.answered(contributor))
	}
	e.Round, e.Fresh = g.filling, true
	return e, nil
}

// answered returns the number of a trainer's requests whose rounds have all closed.
func (g *Grouped) answered(contributor int) schema.Batch {
	k := &g.contributors[contributor]
	if g.asked(k) && k.group >= g.line.done {
		return k.next - 1
	}
	return k.next
}

// Enter implements Clock: the first frame of a request adds it to the group that accepts requests.
func (g *Grouped) Enter(e Entry) {
	if !e.Fresh {
		return
	}
	k := &g.contributors[e.contributor]
	g.unref(g.has(k))
	g.recycle()
	g.line.Advance(g.filling)
	members := g.of(g.filling)
	*members = append(*members, groupMember{e.contributor, k.next})
	k.next, k.group = k.next+1, g.filling
	g.tell(GroupEvent{Group: k.group, Member: g.config.Contributors[e.contributor].Member, Batch: k.next - 1,
		Parked: len(*members),
		Size:   g.size(k.group), Start: g.starts(k.group)})
	g.fill()
}

func (g *Grouped) tell(e GroupEvent) {
	if g.config.OnGroup != nil {
		g.config.OnGroup(e)
	}
}

// Begin implements Clock: the first chunk of a group makes room for the version.
func (g *Grouped) Begin(group schema.Batch) error {
	if g.snapshot(group+1) != nil {
		return nil
	}
	refs := 0
	for _, m := range *g.of(group) {
		if !g.contributors[m.contributor].departed {
			refs++
		}
	}
	return g.begin(context.Background(), group+1, refs)
}

// Closed implements Clock: each trainer with a request in the group receives the result under its own batch number. If
// all trainers of the job have the same number, and nothing else is sent to each of them, one message serves all.
func (g *Grouped) Closed(l *Line, group schema.Batch) []Receiver {
	l.closed(group)
	g.recycle()
	if l.done > group {
		g.tell(GroupEvent{Group: group, Closed: true, Start: g.starts(group)})
	}
	members := *g.of(group)
	alike := len(members) == len(g.contributors) && !g.config.Job.GroupEvents // group events go to each trainer
	g.receivers = g.receivers[:0]
	for _, m := range members {
		alike = alike && m.batch == group
		if !g.contributors[m.contributor].departed {
			g.receivers = append(g.receivers, Receiver{g.config.Contributors[m.contributor].Member, m.batch})
		}
	}
	if alike {
		g.receivers = append(g.receivers[:0], Receiver{schema.All, group})
	}
	return g.receivers
}

// Pull implements Clock: a trainer may request the result of its last request again.
func (g *Grouped) Pull(contributor int, b schema.Batch, _ bool) (e Entry, stored bool, refused *schema.FrameError) {
	k := &g.contributors[contributor]
	begins := !g.asked(k) && k.next > 0 && b == k.next-1 // the version that the job resumed with
	switch {
	case k.departed:
	case g.last(k, b):
		return Entry{Line: g.line, Round: k.group, contributor: contributor}, true, nil
	case begins:
		return Entry{Line: g.line, Round: b, contributor: contributor}, true, nil
	}
	e, refused = g.Reach(contributor, b)
	e.Fresh = false // if it has overtaken its sender's contributions, these make the request
	return e, false, refused
}

// Kept implements Clock.
func (g *Grouped) Kept(e Entry, i int) *schema.Frame {
	return g.Results(e.Round+1).of(i, e.Round)
}

// Leave implements Clock: no group waits for lost trainers. Their complete contributions to a round count; the rest is
// dropped.
func (g *Grouped) Leave(members []schema.Member) (changed bool) {
	for i := range g.contributors {
		if !g.contributors[i].departed && slices.Contains(members, g.config.Contributors[i].Member) {
			g.leave(i)
			changed = true
		}
	}
	if changed {
		g.fill()
	}
	return changed
}

// leave removes a trainer and its incomplete contributions.
func (g *Grouped) leave(contributor int) {
	k, h, dense := &g.contributors[contributor], &g.config.Contributors[contributor], g.line.Dense
	k.departed = true
	g.remaining--
	g.unref(g.has(k)) // if present; else it was not counted
	g.recycle()
	if !g.asked(k) || k.group < g.line.done {
		return
	}
	for i := range dense.Chunks() {
		if dense.Closed(i) <= k.group && g.misses(contributor, dense.Nodes(i, k.group)) {
			dense.forget(i, k.group, int(h.First), h.Count)
		}
	}
}

// Waiting implements Clock: the trainers whose contribution the first open round of the oldest open group misses, or,
// if the group is not full, all trainers without a request.
func (g *Grouped) Waiting() Waiting {
	l, w := g.line, waitingFor(g.line.done)
	if l.done >= g.filling {
		w.Batch = g.filling
		if len(*g.of(g.filling)) == 0 || l.batch < g.filling {
			return w
		}
		for i := range g.contributors {
			if k := &g.contributors[i]; !k.departed && (!g.asked(k) || k.group < l.done) {
				w.Members = append(w.Members, g.config.Contributors[i].Member)
			}
		}
		w.First, w.Rounds = w.Members, l.rounds
		return w
	}
	for i := range l.Dense.Chunks() {
		if l.Dense.Closed(i) > w.Batch {
			continue
		}
		c := l.Dense.Chunk(i)
		w.Rounds++
		for _, m := range *g.of(w.Batch) {
			if !g.contributors[m.contributor].departed && w.Rounds == 1 && g.misses(m.contributor, l.Dense.Nodes(i, w.Batch)) {
				w.Members, w.Bucket, w.Chunk = append(w.Members, g.config.Contributors[m.contributor].Member), c.Bucket, c.Chunk
			}
		}
	}
	w.First = w.Members
	return w
}

// Line is a sequence of rounds that some trainers share, numbered from 0: those of batch 0, of batch 1, and so on.
//
// Rounds of batches [Batch-Ahead, Batch] may be open. A trainer that sends a frame of batch b holds every result of
// batch b-Ahead-1 from every owner, so the owner that receives the first frame of a batch knows that these are complete
// everywhere.
type Line struct {
	Whose  schema.Member // trainer whose rounds these are; schema.All if they are shared
	Dense  *Dense
	Sparse *Sparse     // nil if the owner has no rows
	Means  *RowResults // published results of Sparse
	Node   lane.Node   // the root if rounds have all lanes; else empty
	Ahead  schema.Batch
	// Stays is the number of batches after which a round may first overwrite the results of a round; 0: any round may,
	// even of another line.
	Stays schema.Batch
	// Renumbered is set if rounds have numbers of their own instead of those of their trainers' batches.
	Renumbered bool

	owner  schema.Member
	rounds int // rounds of every batch; each dense chunk counts as one

	first   schema.Batch // first batch that has rounds
	batch   schema.Batch // newest batch under way
	done    schema.Batch // every round of earlier batches has closed
	open    []int        // number of open rounds of batch b, at b % len: Ahead+1
	weights []Weights    // of batch b, at the same index
}

// begin opens the first batch.
func (l *Line) begin(first schema.Batch) {
	l.rounds = l.Dense.Chunks()
	if l.Sparse != nil {
		l.rounds++
	}
	l.open, l.weights = make([]int, l.Ahead+1), make([]Weights, l.Ahead+1)
	l.first, l.batch, l.done = first, first, first
	l.open[l.at(first)] = l.rounds
	l.settle()
}

func (l *Line) at(b schema.Batch) int { return int(b % (l.Ahead + 1)) }

// Batch returns the newest batch under way.
func (l *Line) Batch() schema.Batch { return l.batch }

// Done returns the number of batches whose rounds have all closed.
func (l *Line) Done() schema.Batch { return l.done }

// Oldest returns the oldest batch that may have open rounds.
func (l *Line) Oldest() schema.Batch { return max(l.first, l.batch-min(l.batch, l.Ahead)) }

// Rounds returns the number of rounds of every batch.
func (l *Line) Rounds() int { return l.rounds }

// Open returns the number of open rounds of all batches under way.
func (l *Line) Open() (n int) {
	for _, open := range l.open {
		n += open
	}
	return n
}

// Untouched reports whether no round of batch b, or of a later one, has closed.
func (l *Line) Untouched(b schema.Batch) bool {
	for ; b <= l.batch; b++ {
		if b+l.Ahead < l.batch || l.open[l.at(b)] < l.rounds {
			return false
		}
	}
	return true
}

// Weights returns the weights of a batch under way.
func (l *Line) Weights(b schema.Batch) *Weights { return &l.weights[l.at(b)] }

// closed records that a round of a batch has closed.
func (l *Line) closed(b schema.Batch) {
	l.open[l.at(b)]--
	l.settle()
}

func (l *Line) settle() {
	for l.done <= l.batch && l.open[l.at(l.done)] == 0 {
		l.done++
	}
}

// Reach reports whether a frame may belong to batch b: to a batch under way, or to the next one. fresh is true for the
// next one; call Advance when the frame is accepted.
func (l *Line) Reach(b schema.Batch) (fresh bool, refused *schema.FrameError) {
	switch {
	case b <= l.batch && b >= l.Oldest():
		return false, nil
	case b < l.batch:
		return false, schema.Refuse(schema.ReasonStaleBatch, "batch %d: batch %d is under way", b, l.batch)
	case b <= l.done+l.Ahead:
		return true, nil
	}
	oldest := min(l.done, l.batch)
	return false, schema.Refuse(schema.ReasonEarlyBatch,
		"batch %d: batch %d is under way with %d of %d rounds open on %s",
		b, oldest, l.open[l.at(oldest)], l.rounds, l.owner)
}

// ReachRows reports whether rows of batch b may be requested, and whether the request is early because the round that
// it waits for is under way. A trainer that has contributed to a batch requests rows of the next one, so a lookup for a
// batch whose round has closed is late.
func (l *Line) ReachRows(b schema.Batch) (early bool, refused *schema.FrameError) {
	if l.Sparse == nil {
		_, refused = l.Reach(b)
		return false, refused
	}
	switch closed := l.Sparse.Closed(); {
	case b < closed:
		return false, schema.Refuse(schema.ReasonStaleBatch, "rows of batch %d: they are of version %d", b, closed)
	case b <= closed+l.Ahead:
		return false, nil
	case b == l.Awaiting(l.done):
		return !planted.Is(planted.AnswerWithOldRows), nil
	}
	_, refused = l.Reach(b)
	return false, refused
}

// Awaiting returns the batch whose rows are complete when the sparse round of batch b has closed.
func (l *Line) Awaiting(b schema.Batch) schema.Batch { return b + l.Ahead + 1 }

// Advance opens the rounds of the batches up to b, for which Reach returned fresh.
func (l *Line) Advance(b schema.Batch) {
	for l.batch < b {
		l.batch++
		at := l.at(l.batch)
		if l.open[at] != 0 {
			panic(fmt.Sprintf("round: batch %d begins while batch %d has %d open rounds", l.batch, l.batch-l.Ahead-1,
				l.open[at]))
		}
		l.open[at] = l.rounds
		l.weights[at].reset()
		l.settle()
	}
}

// resultsStored returns the number of batches whose results are stored. The slowest trainer has contributed to batch d,
// the last that is complete here, and may miss the results of d-ahead and later ones; the fastest contributes to
// d+1+ahead.
func resultsStored[N ~uint64 | ~int](ahead N) N { return 2*ahead + 2 }

// pull reports whether the result of a batch is stored or may still be made. overtook: the trainer has begun the batch,
// but not here.
func (l *Line) pull(b schema.Batch, begun bool) (overtook bool, refused *schema.FrameError) {
	stored := resultsStored(l.Ahead) - 1
	if l.open[l.at(l.batch)] == l.rounds { // no result of the newest batch has replaced the oldest one
		stored++
	}
	switch {
	case begun && b > l.batch && b <= l.done+l.Ahead:
		return true, nil // it has overtaken the contributions: pulls and bulk use different connections
	case b > l.batch:
		return false, schema.Refuse(schema.ReasonEarlyBatch, "result of batch %d: batch %d is under way", b, l.batch)
	case b+stored < l.batch:
		return false, schema.Refuse(schema.ReasonStaleBatch, "result of batch %d: those of batches %d to %d are kept",
			b, l.batch-stored, l.batch)
	}
	return false, nil
}

// waiting returns the trainers that the rounds of the oldest incomplete batch wait for.
func (l *Line) waiting(contributors []Contributor, lanes int, rows schema.Bucket) Waiting {
	w := waitingFor(l.batch)
	for b := l.done; b <= l.batch; b++ {
		if w = WaitingFor(b, contributors, lanes, l.Dense, l.Sparse, rows); w.Rounds > 0 {
			return w
		}
	}
	return w
}

// Release releases the payloads of open rounds. The Line must not be used afterwards.
func (l *Line) Release() {
	l.Dense.Release()
	if l.Sparse != nil {
		l.Sparse.Release()
	}
}
