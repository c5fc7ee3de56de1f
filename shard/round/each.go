package round

import (
	"context"

	"gradbus/lane"
	"gradbus/schema"
)

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
