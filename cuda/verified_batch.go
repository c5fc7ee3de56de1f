package cuda

import "fmt"

// verifiedBatch is a batch of a verified backend: the commands as the backend beneath keeps them, and as they were
// given. Where blocks of them are due they run one by one.
type verifiedBatch struct {
	owner  *Verified
	inner  *Batch
	given  recorded
	blocks int  // at most, of all commands
	single bool // the last run was one by one
}

// NewBatch implements Backend.
func (v *Verified) NewBatch() *Batch {
	return newBatch(&verifiedBatch{owner: v, inner: v.Backend.NewBatch()})
}

// Submit implements Backend.
func (v *Verified) Submit(b *Batch) error {
	c, ok := b.commands.(*verifiedBatch)
	if !ok || c.owner != v {
		return fmt.Errorf("submit: %w: the batch is another backend's", ErrArgument)
	}
	if c.single = !v.pass(c.blocks); !c.single {
		return v.Backend.Submit(c.inner)
	}
	return c.given.run(v)
}

// pass numbers blocks, if none of them is due. Otherwise the checker numbers them.
func (v *Verified) pass(blocks int) bool {
	for {
		first := v.blocks.Load()
		if _, due := v.due(first, first+uint64(blocks)); due {
			return false
		}
		if v.blocks.CompareAndSwap(first, first+uint64(blocks)) {
			return true
		}
	}
}

func (c *verifiedBatch) add(a command) error {
	if err := c.inner.commands.add(a); err != nil {
		return err
	}
	c.blocks += blocksOfCommand(a)
	return c.given.add(a)
}

// blocksOfCommand is how many blocks a command can have: of a merge, all keys may be distinct.
func blocksOfCommand(a command) int {
	switch a := a.(type) {
	case *ApplyDense:
		u := a.update()
		return u.cut(a.Dim).blocks()
	case *AverageApply:
		u := a.update()
		return u.cut(a.Dim).blocks()
	case *ApplyRows:
		return blocksOf(a.Index.n, rowsInBlock(a.Dim))
	case *CoalesceApply:
		return blocksOf(a.Keys.n, rowsInBlock(a.Dim))
	case *Average:
		return blocksOf(a.Out.n, verifyValues)
	case *Merge:
		keys := 0
		for i := range a.Terms {
			keys += a.Terms[i].Keys.n
		}
		return max(blocksOf(keys, rowsInBlock(a.Dim)), 1)
	case *copying:
		return blocksOf(a.to.n, verifyValues)
	}
	return 0
}

func (c *verifiedBatch) len() int { return c.inner.commands.len() }

func (c *verifiedBatch) report(i int) Report {
	if c.single {
		return c.given.report(i)
	}
	return c.inner.commands.report(i)
}

func (c *verifiedBatch) count(i int) int {
	if c.single {
		return c.given.count(i)
	}
	return c.inner.commands.count(i)
}

func (c *verifiedBatch) reset() {
	c.inner.commands.reset()
	c.given.reset()
	c.blocks, c.single = 0, false
}

func (c *verifiedBatch) free() { c.inner.Free() }
