package round

import (
	"context"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Clock decides, for one owner, which rounds trainers share, when a round closes, who receives its result under which
// number, which results are kept, and which trainers are waited for. The clocks are bounded, each and Grouped; no other
// part of an owner knows which one it uses. A Clock is not safe for concurrent use.
type Clock interface {
	// Lines returns the sequences of rounds; the slice belongs to the clock.
	Lines() []*Line
	// Line returns the sequence of rounds of a contributor.
	Line(contributor int) *Line
	// Reach finds the round of a trainer's contribution to one of its batches, or returns why there is none.
	Reach(contributor int, b schema.Batch) (Entry, *schema.FrameError)
	// Enter opens the round of an accepted contribution.
	Enter(Entry)
	// Pull finds the round whose result a trainer requests again. begun: the trainer has begun the batch. If kept is
	// false there is no result yet; if the entry is Fresh then, the request has overtaken the contributions.
	Pull(contributor int, b schema.Batch, begun bool) (e Entry, stored bool, refused *schema.FrameError)
	// Kept returns the published result of a closed round over the i-th chunk; nil if it was not made here.
	Kept(e Entry, i int) *schema.Frame
	// Begin makes room for the versions that a round makes, before the outcome of one of its chunks is computed.
	Begin(round schema.Batch) error
	// Results returns the frames that store a version of the chunks.
	Results(v schema.Version) *Results
	// Closed records that a round of a line has closed, and returns the receivers of its result, valid until the next
	// call.
	Closed(l *Line, round schema.Batch) []Receiver
	// Waiting returns the trainers that the rounds of the oldest incomplete batch wait for.
	Waiting() Waiting
	// Leave removes trainers that contribute no more. It reports whether this may have completed rounds.
	Leave(members []schema.Member) bool
}

// Entry is a trainer's part in a round.
type Entry struct {
	Line        *Line
	Round       schema.Batch // number within the line
	Fresh       bool         // first frame of the round, or of the trainer's part in it
	contributor int
}

// Receiver is a receiver of the result of a closed round.
type Receiver struct {
	Member schema.Member // or schema.All
	Batch  schema.Batch  // the receiver's number of the round
}

// ClockConfig configures an owner's clock and its lines. All fields are required except First and OnGroup.
type ClockConfig struct {
	Backend      cuda.Backend
	Job          *schema.Job
	Place        *schema.Placement
	Owner        int // index of the owner in Place
	Contributors []Contributor
	Summing      schema.Summing
	Head         schema.Head // fields that the heads of results share: run id, generation and flags
	Held         *Held
	Chunks       []Chunk
	First        schema.Batch // first batch that has rounds
	// Version returns the newest version of a chunk, if the owner keeps parameters.
	Version func(chunk int) schema.Version
	// OnGroup receives the events of groups, in order, from Grouped; may be nil.
	OnGroup func(GroupEvent)
}

// NewClock makes the clock that the job's plan names for the owner. ctx cancels only the allocation of memory.
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

// Versions returns the largest number of versions of a dense chunk that shards keep at once. In grouped these are one
// for each trainer that has not sent its next request (the newest group has Group of them), the newest, the one before
// it, and the one being made.
func Versions(job *schema.Job) int {
	plan := job.Plan()
	if plan.Clock == schema.ClockGrouped {
		return job.Trainers - plan.Group + 4
	}
	return resultsStored(plan.Ahead)
}

// BatchesOpen returns the number of batches of each trainer that may have open rounds at once.
func BatchesOpen(job *schema.Job) int { return job.Plan().Ahead + 1 }

// results makes the frames of a number of versions.
func (c *ClockConfig) results(ctx context.Context, versions int) (*Results, error) {
	head := c.Head
	head.Lanes = uint16(c.Job.Lanes)
	return newResults(ctx, c.Chunks, versions, head)
}

// line makes a line whose rounds close with count lanes, or when complete reports so.
func (c *ClockConfig) line(whose schema.Member, count, ahead int, node lane.Node, complete complete) *Line {
	l := &Line{Whose: whose, Node: node, Ahead: schema.Batch(ahead), owner: c.Place.Owner(c.Owner)}
	lanes, by := c.Job.Lanes, c.Place.PartyOf(c.Owner)
	summing := c.Summing
	if complete != nil { // the members of a round may change until it closes
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
			versions: resultsStored(ahead), head: head, tables: Replicated(c.Job, c.Place.Plan, by)})
	}
	l.begin(c.First)
	return l
}

// complete reports whether a round has all contributions that it will get.
type complete func(b schema.Batch, nodes []lane.Node) bool

// bounded is the clock of rounds that all trainers share: a round belongs to one batch, closes when all lanes are
// present, and its result goes to all trainers. A trainer may be ahead of the oldest open batch by a fixed number of
// batches, which is 0 in sync.
type bounded struct {
	byBatch
	config    ClockConfig
	receivers [1]Receiver
}

func newBounded(ctx context.Context, c ClockConfig, ahead int) (Clock, error) {
	results, err := c.results(ctx, resultsStored(ahead))
	if err != nil {
		return nil, err
	}
	l := c.line(schema.All, c.Job.Lanes, ahead, lane.Root(c.Job.Lanes), nil)
	l.Stays = resultsStored(l.Ahead)
	return &bounded{byBatch: byBatch{lines: []*Line{l}, results: results}, config: c}, nil
}

// Kept implements Clock: the result has the batch's number.
func (c *bounded) Kept(e Entry, i int) *schema.Frame { return c.results.of(i, e.Round) }

// Closed implements Clock: all trainers receive the result.
func (c *bounded) Closed(l *Line, b schema.Batch) []Receiver {
	l.closed(b)
	c.receivers[0] = Receiver{schema.All, b}
	return c.receivers[:]
}

// Waiting implements Clock.
func (c *bounded) Waiting() Waiting {
	return c.lines[0].waiting(c.config.Contributors, c.config.Job.Lanes, c.config.Place.SparseBucket(c.config.Owner))
}

// byBatch is the common part of clocks whose rounds have the numbers of their trainers' batches: one line for all
// trainers, or one for each.
type byBatch struct {
	lines   []*Line
	results *Results
}

// Lines implements Clock.
func (c *byBatch) Lines() []*Line { return c.lines }

// Line implements Clock.
func (c *byBatch) Line(contributor int) *Line { return c.lines[min(contributor, len(c.lines)-1)] }

// Reach implements Clock: the round has the batch's number.
func (c *byBatch) Reach(contributor int, b schema.Batch) (Entry, *schema.FrameError) {
	l := c.Line(contributor)
	fresh, refused := l.Reach(b)
	return Entry{Line: l, Round: b, Fresh: fresh, contributor: contributor}, refused
}

// Enter implements Clock.
func (c *byBatch) Enter(e Entry) { e.Line.Advance(e.Round) }

// Pull implements Clock.
func (c *byBatch) Pull(contributor int, b schema.Batch, begun bool) (e Entry, stored bool, refused *schema.FrameError) {
	l := c.Line(contributor)
	overtook, refused := l.pull(b, begun)
	return Entry{Line: l, Round: b, Fresh: overtook, contributor: contributor}, refused == nil && !overtook, refused
}

// Begin implements Clock: there is always room for the versions of all rounds that may be open.
func (c *byBatch) Begin(schema.Batch) error { return nil }

// Results implements Clock.
func (c *byBatch) Results(schema.Version) *Results { return c.results }

// Leave implements Clock: rounds wait for the next host of the lanes.
func (c *byBatch) Leave([]schema.Member) bool { return false }

// each is the clock of rounds of a single trainer: a round closes when that trainer's lanes are present, and only that
// trainer receives the result, under its own number. No trainer waits for another. Other rounds may have followed on
// the version that a round made, so a pull is answered with the newest version.
type each struct {
	byBatch
	config    ClockConfig
	receivers [1]Receiver
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

// Closed implements Clock: the line's trainer receives the result.
func (c *each) Closed(l *Line, b schema.Batch) []Receiver {
	l.closed(b)
	c.receivers[0] = Receiver{l.Whose, b}
	return c.receivers[:]
}

// Waiting implements Clock: no trainer waits for another.
func (c *each) Waiting() (w Waiting) {
	for _, l := range c.lines {
		w.Batch = max(w.Batch, l.batch)
	}
	return w
}

// Waiting lists what an open batch waits for.
type Waiting struct {
	schema.Waiting
	Rounds int // open rounds that have a contribution and miss one
}

// waitingFor returns a Waiting that lists nothing yet.
func waitingFor(b schema.Batch) Waiting { return Waiting{Waiting: schema.Waiting{Batch: b}} }

// WaitingFor returns what an owner's rounds of a batch still wait for, of the lanes of contributors. sparse, whose
// rounds have bucket rows, is nil if the owner has none.
func WaitingFor(b schema.Batch, contributors []Contributor, lanes int, dense *Dense, sparse *Sparse,
	rows schema.Bucket) Waiting {
	w := waitingFor(b)
	late := make([]bool, len(contributors))
	look := func(nodes []lane.Node, bucket schema.Bucket, chunk schema.Chunk) {
		if len(nodes) == 0 || covered(nodes, 0, lanes) == lanes {
			return // complete: the trainer waits for an earlier batch
		}
		w.Rounds++
		for i, h := range contributors {
			misses := covered(nodes, int(h.First), h.Count) < h.Count
			late[i] = late[i] || misses
			if misses && w.Rounds == 1 {
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
