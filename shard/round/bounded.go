package round

import (
	"context"

	"gradbus/lane"
	"gradbus/schema"
)

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
