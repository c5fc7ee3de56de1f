package module

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gradbus/schema"
	"gradbus/shard/state"
)

// What checkpoints have of modules: each at a version of its own, since trainers step modules in any order. Where all
// batches are in step, the first pass of a batch comes when every step of the batches before has been made, and none
// of this one: a trainer steps its modules before it sends the last of its contributions (sender.sendHeld of package
// trainer). So a module is taken then (CaptureAt), and is what the version of the job says. Else it is taken as it is
// at a moment.

// Captured is the modules of a set at a moment. Release gives it back.
type Captured struct {
	all []*captured
}

type captured struct {
	hosted  *hosted
	at      schema.Version // of the job
	version *version       // pinned
	stale   bool           // another version was asked for since
	tensors []state.Tensor // whose values are that version's
}

// ErrLate: a pass of the batch that is computed on a version came before the version was asked for.
var ErrLate = errors.New("was asked for a pass before the version was asked for")

// CaptureAt has each module be taken before the first pass of a batch that is computed on a version, or of a later
// one. It takes the place of what was asked for before. Where that pass has come, the version is missed. Numbers that
// are far from it are those of a program that counts in another way.
func (m *Set) CaptureAt(v schema.Version) {
	for _, d := range m.all() {
		d.mu.Lock()
		d.want, d.missed = v, 0
		if d.taken != nil && d.taken.at < v && d.taken.stale { // nobody has asked for it
			d.unpinLocked(d.taken.version)
			d.taken = nil
		}
		if d.taken != nil {
			d.taken.stale = true
		}
		if d.reached == schema.Batch(v) || d.reached == schema.Batch(v)+1 {
			d.want, d.missed = 0, v
		}
		d.mu.Unlock()
	}
}

// Capture takes what all modules are: at a version that was asked for by CaptureAt, where that has come. It waits for
// that so long; 0 takes what there is now. Parameters are not copied, what the optimizer keeps is: a step of a module
// waits for that. It fails with ErrLate, and where nothing has come.
func (m *Set) Capture(ctx context.Context, v schema.Version, within time.Duration) (*Captured, error) {
	c, late := &Captured{}, time.NewTimer(within)
	defer late.Stop()
	again := time.NewTicker(captureEvery)
	defer again.Stop()
	for _, d := range m.all() {
		taken, missed := d.given(v)
		for taken == nil && !missed && within > 0 {
			select {
			case <-again.C:
			case <-late.C:
				c.Release()
				return nil, fmt.Errorf("module %q was asked for no pass of its batch within %s", d.spec.Name, within)
			case <-ctx.Done():
				c.Release()
				return nil, ctx.Err()
			}
			taken, missed = d.given(v)
		}
		if taken == nil && !missed {
			d.stepLock.Lock()
			if taken, missed = d.given(v); taken == nil && !missed { // else a pass was just taking it
				taken = d.capture(v)
			}
			d.stepLock.Unlock()
		}
		if missed {
			c.Release()
			return nil, fmt.Errorf("module %q %w", d.spec.Name, ErrLate)
		}
		c.all = append(c.all, taken)
	}
	return c, nil
}

// captureEvery is how often is looked for a version.
const captureEvery = 20 * time.Millisecond

// begin takes the module before a pass of a batch, where that is wanted. No pass of such a batch begins meanwhile.
func (d *hosted) begin(b schema.Batch) {
	wanted := func() schema.Version {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.reached = max(d.reached, b)
		if d.want == 0 || b < schema.Batch(d.want) {
			return 0
		}
		return d.want
	}
	if wanted() == 0 {
		return
	}
	d.stepLock.Lock()
	defer d.stepLock.Unlock()
	v := wanted()
	if v == 0 {
		return // another pass has come first
	}
	c := d.capture(v)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.taken != nil { // nobody has asked for it
		d.unpinLocked(d.taken.version)
	}
	if d.taken = c; d.want == v {
		d.want = 0
	}
}

// given gives what was taken at a version of the job; nil where it was not. missed says that it will not be.
func (d *hosted) given(v schema.Version) (c *captured, missed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.taken != nil && d.taken.at == v {
		c, d.taken = d.taken, nil
	}
	return c, c == nil && v > 0 && d.missed == v
}

// capture takes the module as it is. The step lock is held.
func (d *hosted) capture(at schema.Version) *captured {
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
