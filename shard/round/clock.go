package round

import (
	"context"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Clock says, for one owner, which rounds trainers share, when a round is over, who hears of it and by which number,
// what is kept of it, and who is waited for. Bounded, Each and Grouped are the clocks; nothing else of an owner knows
// which one it has. A Clock is not safe for concurrent use.
type Clock interface {
	// Lines are the sequences of rounds, each of which some trainers share. They are the clock's own.
	Lines() []*Line
	// Line is the sequence that a contributor takes part in.
	Line(contributor int) *Line
	// Reach finds the round that a trainer's contribution to one of its batches belongs to, or says why there is none.
	Reach(contributor int, b schema.Batch) (Entry, *schema.FrameError)
	// Enter opens the round of a contribution that is taken.
	Enter(Entry)
	// Pull finds the round whose result a trainer asks for again. begun says that the trainer has begun the batch.
	// Without kept there is nothing to answer yet; of an entry that is Fresh then, the request has overtaken the
	// contributions.
	Pull(contributor int, b schema.Batch, begun bool) (e Entry, kept bool, refused *schema.FrameError)
	// Kept is the result of a closed round over the i-th chunk, as it is published; nil where it was not made here.
	Kept(e Entry, i int) *schema.Frame
	// Begin makes room for the versions that a round makes. It is called before the outcome of one of its chunks.
	Begin(round schema.Batch) error
	// Results is where a version of the chunks lies.
	Results(v schema.Version) *Results
	// Closed is told that a round of a line has closed, and says who hears of it. The hearers are valid until the
	// next call.
	Closed(l *Line, round schema.Batch) []Hearer
	// Waiting says whom the rounds of the oldest batch lack that lack anybody.
	Waiting() Waiting
	// Leave is told of trainers that contribute no more. It reports whether rounds may have become complete by that.
	Leave(members []schema.Member) bool
}

// Entry is a trainer's place in a round.
type Entry struct {
	Line        *Line
	Round       schema.Batch // of the line
	Fresh       bool         // nothing of the round has been entered, or nothing of the trainer's part in it
	contributor int
}

// Hearer hears of a round that has closed.
type Hearer struct {
	Member schema.Member // or schema.All
	Batch  schema.Batch  // what the member calls the round
}

// ClockConfig is what an owner's clock and its lines are made from. Every field is needed but First and
// OnGroup.
type ClockConfig struct {
	Backend      cuda.Backend
	Job          *schema.Job
	Place        *schema.Placement
	Owner        int // whose rounds these are: its number in Place
	Contributors []Contributor
	Summing      schema.Summing
	Head         schema.Head // what the heads of results have in common: run id, generation and flags
	Held         *Held
	Chunks       []Chunk
	First        schema.Batch // the first that there are rounds of
	// Version is the newest version of a chunk, where the owner keeps parameters.
	Version func(chunk int) schema.Version
	// OnGroup is told, by Grouped, what becomes of groups, in the order in which it happens; may be nil.
	OnGroup func(GroupEvent)
}

// NewClock makes the clock that the job's plan names for the owner. ctx only cuts that short.
func NewClock(ctx context.Context, c ClockConfig) (Clock, error) {
	plan := c.Place.Plan
	switch by := c.Place.PartyOf(c.Owner); plan.ClockOf(by) {
	case schema.ClockEach:
		return newEach(ctx, c)
	case schema.ClockGrouped:
		return newGrouped(ctx, c)
	}
	return newBounded(ctx, c, plan.Ahead)
}

// Versions is how many versions of a dense chunk that shards add up may be kept at once. In grouped that is one for
// each trainer who has not asked again since, of whom the newest group has Group, the newest, the one before it, and
// the one that is being made.
func Versions(job *schema.Job) int {
	plan := job.Plan()
	if plan.Clock == schema.ClockGrouped {
		return job.Trainers - plan.Group + 4
	}
	return kept(plan.Ahead)
}

// BatchesOpen is how many batches of each trainer may have rounds open at once.
func BatchesOpen(job *schema.Job) int { return job.Plan().Ahead + 1 }

// results makes frames for a number of versions.
func (c *ClockConfig) results(ctx context.Context, versions int) (*Results, error) {
	head := c.Head
	head.Lanes = uint16(c.Job.Lanes)
	return newResults(ctx, c.Chunks, versions, head)
}

// line makes a line whose rounds need so many lanes, or what complete says.
func (c *ClockConfig) line(whose schema.Member, count, ahead int, node lane.Node, complete complete) *Line {
	l := &Line{Whose: whose, Node: node, Ahead: schema.Batch(ahead), owner: c.Place.Owner(c.Owner)}
	lanes, by := c.Job.Lanes, c.Place.PartyOf(c.Owner)
	summing := c.Summing
	if complete != nil { // who has a part in a round may change until it closes
		summing = schema.SummingAtClose
	}
	l.Dense = newDense(denseConfig{backend: c.Backend, lanes: lanes, count: count, complete: complete, ahead: ahead,
		summing: summing, held: c.Held, chunks: c.Chunks, place: c.Place, first: c.First})
	if c.Place.HasRows(c.Owner) {
		head := c.Head
		head.Bucket, head.Node, head.Flags = c.Place.SparseBucket(c.Owner), node, 0
		l.Sparse = newSparse(sparseConfig{backend: c.Backend, lanes: lanes, count: count, ahead: ahead,
			summing: c.Summing, dType: c.Place.Plan.DType, held: c.Held, tables: c.Place.SumTables(c.Owner), first: c.First})
		l.Means = newRowResults(rowResultsConfig{backend: c.Backend, lanes: lanes, chunkBytes: c.Job.ChunkBytes,
			versions: kept(ahead), head: head, tables: Replicated(c.Job, c.Place.Plan, by)})
	}
	l.begin(c.First)
	return l
}

// complete says whether a round has all that it will get.
type complete func(b schema.Batch, nodes []lane.Node) bool

// bounded is the clock of rounds that all trainers share: a round is of one batch, over when all lanes are there, and
// all trainers hear of it. A trainer may be so many batches ahead of the oldest open one; in sync that is none.
type bounded struct {
	byBatch
	config ClockConfig
	hears  [1]Hearer
}

func newBounded(ctx context.Context, c ClockConfig, ahead int) (Clock, error) {
	results, err := c.results(ctx, kept(ahead))
	if err != nil {
		return nil, err
	}
	l := c.line(schema.All, c.Job.Lanes, ahead, lane.Root(c.Job.Lanes), nil)
	l.Stays = kept(l.Ahead)
	return &bounded{byBatch: byBatch{lines: []*Line{l}, results: results}, config: c}, nil
}

// Kept implements Clock: the result is that of the batch.
func (c *bounded) Kept(e Entry, i int) *schema.Frame { return c.results.of(i, e.Round) }

// Closed implements Clock: all trainers hear of it.
func (c *bounded) Closed(l *Line, b schema.Batch) []Hearer {
	l.closed(b)
	c.hears[0] = Hearer{schema.All, b}
	return c.hears[:]
}

// Waiting implements Clock.
func (c *bounded) Waiting() Waiting {
	return c.lines[0].waiting(c.config.Contributors, c.config.Job.Lanes, c.config.Place.SparseBucket(c.config.Owner))
}

// byBatch is what clocks have in common whose rounds have the numbers of their trainers' batches: one line for all
// trainers, or one for each.
type byBatch struct {
	lines   []*Line
	results *Results
}

// Lines implements Clock.
func (c *byBatch) Lines() []*Line { return c.lines }

// Line implements Clock.
func (c *byBatch) Line(contributor int) *Line { return c.lines[min(contributor, len(c.lines)-1)] }

// Reach implements Clock: the round is that of the batch.
func (c *byBatch) Reach(contributor int, b schema.Batch) (Entry, *schema.FrameError) {
	l := c.Line(contributor)
	fresh, refused := l.Reach(b)
	return Entry{Line: l, Round: b, Fresh: fresh, contributor: contributor}, refused
}

// Enter implements Clock.
func (c *byBatch) Enter(e Entry) { e.Line.Advance(e.Round) }

// Pull implements Clock.
func (c *byBatch) Pull(contributor int, b schema.Batch, begun bool) (e Entry, kept bool, refused *schema.FrameError) {
	l := c.Line(contributor)
	overtook, refused := l.pull(b, begun)
	return Entry{Line: l, Round: b, Fresh: overtook, contributor: contributor}, refused == nil && !overtook, refused
}

// Begin implements Clock: there is room for the versions of all rounds that may be open.
func (c *byBatch) Begin(schema.Batch) error { return nil }

// Results implements Clock.
func (c *byBatch) Results(schema.Version) *Results { return c.results }

// Leave implements Clock: rounds wait for the next host of the lanes.
func (c *byBatch) Leave([]schema.Member) bool { return false }

// each is the clock of rounds that are one trainer's: a round is over when that trainer's lanes are there, and it alone
// hears of it, by its own number. No trainer waits for another. The version that a round made of a chunk may have been
// followed by others: a pull is answered with the newest.
type each struct {
	byBatch
	config ClockConfig
	hears  [1]Hearer
}

// newEach makes a line for each trainer.
func newEach(ctx context.Context, c ClockConfig) (Clock, error) {
	results, err := c.results(ctx, 2)
	if err != nil {
		return nil, err
	}
	e := &each{byBatch: byBatch{results: results}, config: c}
	for _, h := range c.Contributors {
		e.lines = append(e.lines, c.line(h.Member, h.Count, 0, lane.Node{}, nil))
	}
	return e, nil
}

// Kept implements Clock.
func (c *each) Kept(e Entry, i int) *schema.Frame {
	h := schema.Head{Batch: e.Round, Weight: e.Line.Weights(e.Line.batch).Total(), Node: e.Line.Node}
	if e.Round < c.config.First {
		h.Weight = ResumedWeight
	}
	return c.results.Seal(i, c.config.Version(i), h)
}

// Closed implements Clock: the line's trainer hears of it.
func (c *each) Closed(l *Line, b schema.Batch) []Hearer {
	l.closed(b)
	c.hears[0] = Hearer{l.Whose, b}
	return c.hears[:]
}

// Waiting implements Clock: no trainer waits for another.
func (c *each) Waiting() (w Waiting) {
	for _, l := range c.lines {
		w.Batch = max(w.Batch, l.batch)
	}
	return w
}

// Waiting is what an open batch lacks.
type Waiting struct {
	schema.Waiting
	Rounds int // open rounds that have a contribution and lack one
}

// waitingFor is a batch that lacks nothing so far.
func waitingFor(b schema.Batch) Waiting { return Waiting{Waiting: schema.Waiting{Batch: b}} }

// WaitingFor is what an owner's rounds of a batch lack of the lanes that contributors have. sparse, whose rounds are of
// bucket rows, is nil where the owner has none.
func WaitingFor(b schema.Batch, contributors []Contributor, lanes int, dense *Dense, sparse *Sparse,
	rows schema.Bucket) Waiting {
	w := waitingFor(b)
	late := make([]bool, len(contributors))
	look := func(nodes []lane.Node, bucket schema.Bucket, chunk schema.Chunk) {
		if len(nodes) == 0 || covered(nodes, 0, lanes) == lanes {
			return // complete: it waits for a batch before it
		}
		w.Rounds++
		for i, h := range contributors {
			lacks := covered(nodes, int(h.First), h.Count) < h.Count
			late[i] = late[i] || lacks
			if lacks && w.Rounds == 1 {
				w.First, w.Bucket, w.Chunk = append(w.First, h.Member), bucket, chunk
			}
		}
	}
	for i := range dense.Chunks() {
		if dense.Closed(i) <= b {
			c := dense.Chunk(i)
			look(dense.Nodes(i, b), c.Bucket, c.Chunk)
		}
	}
	if sparse != nil && sparse.Closed() <= b {
		look(sparse.Nodes(b), rows, 0)
	}
	for i, h := range contributors {
		if late[i] {
			w.Members = append(w.Members, h.Member)
		}
	}
	return w
}
