package cuda

import (
	"fmt"
	"slices"
)

// recorded is a batch of the portable backend: the arguments as they were given.
type recorded struct {
	owner  *reference
	all    []command
	counts []int
	ran    int // how many commands the last run came to
}

// NewBatch: see the interface.
func (r *reference) NewBatch() *Batch { return newBatch(&recorded{owner: r}) }

// Submit: see the interface.
func (r *reference) Submit(b *Batch) error {
	c, ok := b.commands.(*recorded)
	if !ok || c.owner != r {
		return fmt.Errorf("submit: %w: the batch is another backend's", ErrArgument)
	}
	return c.run(r)
}

// run does the commands in turn on a backend.
func (c *recorded) run(k Backend) error {
	c.ran = 0
	for i, command := range c.all {
		c.ran++
		n, err := command.on(k)
		c.counts[i] = n
		if err != nil {
			return fmt.Errorf("command %d: %w", i, err)
		}
	}
	return nil
}

func (c *recorded) add(a command) error {
	if report := a.reported(); report != nil && *report == nil {
		*report = new(Report)
	}
	switch a := a.(type) { // what the batch holds must not change when the caller uses his slices again
	case *Merge:
		a.Terms = slices.Clone(a.Terms)
	case *Average:
		a.Terms = slices.Clone(a.Terms)
	case *AverageApply:
		a.Terms, a.Slots = slices.Clone(a.Terms), slices.Clone(a.Slots)
	case *ApplyRows:
		a.Slots = slices.Clone(a.Slots)
	case *CoalesceApply:
		a.Slots = slices.Clone(a.Slots)
	case *ApplyDense:
		a.Slots = slices.Clone(a.Slots)
	}
	c.all, c.counts = append(c.all, a), append(c.counts, 0)
	return nil
}

func (c *recorded) len() int { return len(c.all) }

func (c *recorded) count(i int) int {
	if i >= c.ran {
		return 0
	}
	return c.counts[i]
}

func (c *recorded) report(i int) Report {
	if report := c.all[i].reported(); i < c.ran && report != nil {
		return **report
	}
	return Report{}
}

func (c *recorded) reset() {
	clear(c.all)
	c.all, c.counts, c.ran = c.all[:0], slices.Delete(c.counts, 0, len(c.counts)), 0
}

func (c *recorded) free() {}
