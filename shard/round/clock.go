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
