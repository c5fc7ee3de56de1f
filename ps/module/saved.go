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
// trainer). So a module is taken then (CaptureAt), and is what the version of the job says. Where trainers run k
// batches ahead, it is taken before the first pass of the k-th batch after: all steps of the batches before the version
// have been made, and some of those k, which are made again where the job goes on from there. Else it is taken as it is
// at a moment.

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

// What Capture fails with: a pass of the batch that is computed on a version came before the version was asked for, or
// another version was asked for since; or no such pass has come.
var (
	ErrLate   = errors.New("was not taken at the version")
	errNoPass = errors.New("no pass of its batch was asked for")
)

// CaptureAt has each module be taken before the first pass of a batch that is computed on a version or a later one,
// also by a trainer that is so many batches ahead. It takes the place of what was asked for before, which is missed
// where Capture has not had it. Where that pass has come, the version is missed. Numbers that are far from it are those
// of a program that counts in another way.
func (m *Set) CaptureAt(v schema.Version, ahead int) {
	for _, d := range m.all() {
		d.captureAt(v, schema.Batch(v)+schema.Batch(ahead))
	}
}

func (d *hosted) captureAt(v schema.Version, first schema.Batch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.missed = max(d.missed, d.want)
	if d.taken != nil {
		d.missed = max(d.missed, d.taken.at)
		d.dropTaken()
	}
	if d.want, d.first = v, first; d.reached == first || d.reached == first+1 {
		d.want, d.missed = 0, v
	}
}

// dropTaken forgets what was taken, if anything. The lock is held.
func (d *hosted) dropTaken() {
	if d.taken != nil {
		d.unpinLocked(d.taken.version)
		d.taken = nil
	}
}

// Capture takes what all modules are: at a version that was asked for by CaptureAt, where that has come. It waits for
// that so long; 0 takes what there is now. Parameters are not copied, what the optimizer keeps is: a step of a module
// waits for that. It fails with ErrLate, and where nothing has come.
func (m *Set) Capture(ctx context.Context, v schema.Version, within time.Duration) (*Captured, error) {
	c := &Captured{}
	waiting, stop := context.WithTimeoutCause(ctx, within, errNoPass)
	defer stop()
	for _, d := range m.all() {
		one, err := d.given(v)
		for ; one == nil && err == nil && within > 0; one, err = d.given(v) {
			select {
			case <-time.After(captureEvery):
				continue
			case <-waiting.Done():
				err = context.Cause(waiting)
			}
			break
		}
		if one == nil && err == nil {
			one, err = d.now(v)
		}
		if err != nil {
			c.Release()
			return nil, fmt.Errorf("module %q: %w", d.spec.Name, err)
		}
		c.all = append(c.all, one)
	}
	return c, nil
}

// captureEvery is how often is looked for a version.
const captureEvery = 20 * time.Millisecond

// now takes the module as it is, unless a pass is just taking it at the version.
func (d *hosted) now(v schema.Version) (*captured, error) {
	d.stepLock.Lock()
	defer d.stepLock.Unlock()
	if c, err := d.given(v); c != nil || err != nil {
		return c, err
	}
	return d.capture(v), nil
}

// begin takes the module before a pass of a batch, where that is wanted. No pass of such a batch begins meanwhile.
func (d *hosted) begin(b schema.Batch) {
	wanted := func() schema.Version {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.reached = max(d.reached, b)
		if d.want == 0 || b < d.first {
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
	if d.want != v { // another version was asked for meanwhile
		d.unpinLocked(c.version)
		return
	}
	d.taken, d.want = c, 0
}

// given gives what was taken at a version of the job; nil where it was not. It fails where it will not be.
func (d *hosted) given(v schema.Version) (c *captured, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.taken != nil && d.taken.at == v:
		c, d.taken = d.taken, nil
	case 0 < v && v <= d.missed:
		err = ErrLate
	}
	return c, err
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
	name, parameter, taken := m.config.Job.ModuleTensor(t.Name)
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
