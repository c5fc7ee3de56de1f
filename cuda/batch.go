package cuda

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
)

// Batch is commands to be run in one call: one method of Backend each, with the same arguments. Adding a command checks
// its shapes, encodes it, and keeps the memory that it names alive and in place until Reset or Free; Submit then
// allocates nothing, and may be called again and again, each time with what that memory then holds.
//
// A batch belongs to the backend whose NewBatch gave it and is used by one goroutine at a time. Free it before the
// backend is closed.
type Batch struct {
	commands commands
	stream   *Stream // where it is queued, else nil
}

// commands are the commands of a batch as its backend keeps them.
type commands interface {
	add(command) error
	len() int
	// report and count are command i's, of the last run; zero where it did not run.
	report(i int) Report
	count(i int) int
	reset()
	free()
}

// command is the arguments of one operation.
type command interface {
	shape() error
	on(Backend) (int, error)
	// reported is where the arguments name a report, or nil where the operation has none.
	reported() **Report
}

// newBatch is a batch that lets go of its memory, which may not be Go's, also where its owner forgets to.
func newBatch(c commands) *Batch {
	b := &Batch{commands: c}
	runtime.SetFinalizer(b, (*Batch).Free)
	return b
}

// Len is the number of commands.
func (b *Batch) Len() int { return b.commands.len() }

// report returns the report of command i from the last run, zero if the run did not reach it. The Report in the
// command's arguments is filled as well.
func (b *Batch) report(i int) Report { return b.commands.report(i) }

// Count returns the result of command i: the number of distinct keys, or the index of FirstNonFinite.
func (b *Batch) Count(i int) int { return b.commands.count(i) }

// reset takes all commands away and lets go of the memory they name. The batch must not be queued on a stream.
func (b *Batch) reset() {
	if b.stream != nil {
		panic("cuda: reset of a batch that is queued on a stream")
	}
	b.commands.reset()
}

// Free takes all commands away and gives back the batch's own memory. A second call does nothing.
func (b *Batch) Free() {
	b.reset()
	b.commands.free()
	runtime.SetFinalizer(b, nil)
}

func (b *Batch) add(c command) error {
	if b.stream != nil {
		return fmt.Errorf("command %d: %w: the batch is queued on a stream", b.Len(), ErrArgument)
	}
	err := c.shape()
	if err == nil {
		err = b.commands.add(c)
	}
	if err != nil {
		return fmt.Errorf("command %d: %w", b.Len(), err)
	}
	return nil
}

// The methods below add a command. What they refuse is not in the batch.

func (b *Batch) BagForward(a BagForward) error       { return b.add(&a) }
func (b *Batch) BagBackward(a BagBackward) error     { return b.add(&a) }
func (b *Batch) Coalesce(a Coalesce) error           { return b.add(&a) }
func (b *Batch) Merge(a Merge) error                 { return b.add(&a) }
func (b *Batch) ApplyRows(a ApplyRows) error         { return b.add(&a) }
func (b *Batch) CoalesceApply(a CoalesceApply) error { return b.add(&a) }
func (b *Batch) ApplyDense(a ApplyDense) error       { return b.add(&a) }
func (b *Batch) Average(a Average) error             { return b.add(&a) }
func (b *Batch) AverageApply(a AverageApply) error   { return b.add(&a) }
func (b *Batch) matMul(a MatMul) error               { return b.add(&a) }
func (b *Batch) FirstNonFinite(values Vector) error  { return b.add(&lookForNonFinite{values}) }
func (b *Batch) Copy(to, from Vector) error          { return b.add(&copying{to, from}) }

// lookForNonFinite and copying are the arguments of the two operations whose methods take vectors alone.
type lookForNonFinite struct{ values Vector }
type copying struct{ to, from Vector }

func (a *lookForNonFinite) shape() error {
	return typed("first nonfinite", "values", a.values, only(Float32))
}
func (a *copying) shape() error { return copyShape(a.to, a.from) }

func (a *BagForward) on(k Backend) (int, error)          { return 0, k.BagForward(*a) }
func (a *BagBackward) on(k Backend) (int, error)         { return k.BagBackward(*a) }
func (a *Coalesce) on(k Backend) (int, error)            { return k.Coalesce(*a) }
func (a *Merge) on(k Backend) (int, error)               { return k.Merge(*a) }
func (a *ApplyRows) on(k Backend) (int, error)           { return 0, k.ApplyRows(*a) }
func (a *CoalesceApply) on(k Backend) (int, error)       { return k.CoalesceApply(*a) }
func (a *ApplyDense) on(k Backend) (int, error)          { return 0, k.ApplyDense(*a) }
func (a *Average) on(k Backend) (int, error)             { return 0, k.Average(*a) }
func (a *AverageApply) on(k Backend) (int, error)        { return 0, k.AverageApply(*a) }
func (a *MatMul) on(k Backend) (int, error)              { return 0, k.MatMul(*a) }
func (a *SoftmaxCrossEntropy) on(k Backend) (int, error) { return 0, k.SoftmaxCrossEntropy(*a) }
func (a *lookForNonFinite) on(k Backend) (int, error)    { return k.FirstNonFinite(a.values), nil }
func (a *copying) on(k Backend) (int, error)             { return 0, k.Copy(a.to, a.from) }

func (a *BagForward) reported() **Report          { return &a.Report }
func (a *BagBackward) reported() **Report         { return &a.Report }
func (a *Coalesce) reported() **Report            { return nil }
func (a *Merge) reported() **Report               { return nil }
func (a *ApplyRows) reported() **Report           { return &a.Report }
func (a *CoalesceApply) reported() **Report       { return &a.Report }
func (a *ApplyDense) reported() **Report          { return &a.Report }
func (a *Average) reported() **Report             { return nil }
func (a *AverageApply) reported() **Report        { return &a.Report }
func (a *MatMul) reported() **Report              { return nil }
func (a *SoftmaxCrossEntropy) reported() **Report { return nil }
func (a *lookForNonFinite) reported() **Report    { return nil }
func (a *copying) reported() **Report             { return nil }

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

// callCounter counts the operations of one backend. Every core that calls the backend writes it, so it shares no cache
// line with what each call reads.
type callCounter struct {
	_ [64]byte
	n atomic.Uint64
	_ [56]byte
}

// Calls returns how many operations a backend was given since it was opened, by the name of the backend that was given
// them: one of a GPU leaves to cpu what the CPU ends sooner. A batch counts its commands. Backends that Open does not
// give have none.
func Calls(b Backend) map[string]uint64 {
	by := map[string]uint64{}
	addCalls(b, by)
	return by
}

func addCalls(b Backend, by map[string]uint64) {
	if counted, ok := b.(interface{ addCalls(map[string]uint64) }); ok {
		counted.addCalls(by)
	}
}

func (r *reference) addCalls(by map[string]uint64) { by[r.Name()] += r.calls.n.Load() }

func (w *wrongBits) addCalls(by map[string]uint64) { addCalls(w.Backend, by) }

// addCalls leaves out what the oracle computes again: Checked counts that.
func (v *Verified) addCalls(by map[string]uint64) { addCalls(v.Backend, by) }
