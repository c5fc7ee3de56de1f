package module

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gradbus/schema"
	"gradbus/shard/state"
)

// What checkpoints have of modules: each at a version of its own, since trainers step modules in any order. Where all
// batches are in step, the first pass of a batch comes when every step of the batches before has been made, and none of
// this one: a trainer steps its modules before it sends the last of its contributions. So a module is taken then
// (CaptureAt), and is what the version of the job says. Else it is taken as it is at a moment.

// Captured is the modules of a set at a moment. Release gives it back.
type Captured struct {
	all []*captured
}

type captured struct {
	hosted  *hosted
	at      schema.Version // of the job
	version *version       // pinned
	tensors []state.Tensor // whose values are that version's
}

// CaptureAt has each module be taken before the first pass of a batch that is computed on a version, or of a later one.
// It takes the place of what was asked for before.
func (m *Set) CaptureAt(v schema.Version) {
	for _, d := range m.all() {
		d.want.Store(uint64(v))
	}
}

// Capture takes what all modules are: at a version that was asked for by CaptureAt, where that has come, or comes in so
// long; else now. Parameters are not copied, what the optimizer keeps is: a step of a module waits for that.
func (m *Set) Capture(ctx context.Context, v schema.Version, within time.Duration) *Captured {
	c, late := &Captured{}, time.NewTimer(within)
	defer late.Stop()
	again := time.NewTicker(captureEvery)
	defer again.Stop()
	for _, d := range m.all() {
		taken := d.given(v)
		for waits := within > 0; taken == nil && waits; taken = d.given(v) {
			select {
			case <-again.C:
			case <-late.C:
				waits, within = false, 0
			case <-ctx.Done():
				waits = false
			}
		}
		if taken == nil {
			taken = d.capture(v)
		}
		c.all = append(c.all, taken)
	}
	return c
}

// captureEvery is how often is looked for a version.
const captureEvery = 20 * time.Millisecond

// begin takes the module before a pass of a batch, where that is wanted.
func (d *hosted) begin(b schema.Batch) {
	v := d.want.Load()
	if v == 0 || uint64(b) < v || !d.want.CompareAndSwap(v, 0) {
		return
	}
	c := d.capture(schema.Version(v))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.taken != nil { // nobody has asked for it
		d.unpinLocked(d.taken.version)
	}
	d.taken = c
}

// given gives what was taken at a version of the job; nil where it was not.
func (d *hosted) given(v schema.Version) (c *captured) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.taken != nil && d.taken.at == v {
		c, d.taken = d.taken, nil
	}
	return c
}

func (d *hosted) capture(at schema.Version) *captured {
	d.stepLock.Lock()
	defer d.stepLock.Unlock()
	c := &captured{hosted: d, at: at, version: d.pin()}
	c.tensors = slices.Clone(d.state.Pieces(0, c.version.number))
	for i := range c.tensors {
		t := &c.tensors[i]
		t.Name, t.Version = d.spec.TensorName(t.Name), at
		for s := range t.Slots {
			t.Slots[s].Values = slices.Clone(t.Slots[s].Values)
		}
	}
	return c
}

// Extent adds all of it to what an increment has.
func (c *Captured) Extent(e *state.Extent) {
	for i := range c.all {
		for _, t := range c.all[i].tensors {
			e.Tensors = append(e.Tensors, state.Stretch{Name: t.Name, From: t.From, Elements: len(t.Values)})
			e.Bytes += int64(4 * len(t.Values) * (1 + len(t.Slots)))
		}
	}
}

// Tensors gives all parameters, with what the optimizer keeps of them.
func (c *Captured) Tensors(yield func(state.Tensor) error) error {
	for i := range c.all {
		for _, t := range c.all[i].tensors {
			if err := yield(t); err != nil {
				return err
			}
		}
	}
	return nil
}

// Release gives back what was captured, which is nothing then.
func (c *Captured) Release() {
	for i := range c.all {
		c.all[i].hosted.unpin(c.all[i].version)
	}
	c.all = nil
}

// Restore puts a stretch of a parameter in the place of what was drawn, where it is of a module here; taken says that
// it is of a module. It is called before Open.
func (m *Set) Restore(t state.Tensor) (taken bool, err error) {
	name, parameter, taken := schema.ModuleTensor(t.Name)
	for _, d := range m.all() {
		if d.spec.Name != name || !taken {
			continue
		}
		if d.restoring == nil {
			d.restoring, d.newest.number = d.state.Restore(), schema.Version(t.Steps)
		}
		t.Name, t.Version = parameter, schema.Version(t.Steps)
		if err := d.restoring.Tensor(t); err != nil {
			return true, fmt.Errorf("module %q: %w", name, err)
		}
	}
	return taken, nil
}

// restored checks that all of a module has come, where anything was to be.
func (d *hosted) restored() error {
	if d.restoring == nil {
		return nil
	}
	if err := d.restoring.Done(); err != nil {
		return fmt.Errorf("module %q: %w", d.spec.Name, err)
	}
	d.restoring = nil
	return nil
}
