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

// Modules in checkpoints. Each module is saved at its own version, since trainers step modules in any order. In sync,
// the first pass of a batch comes after every step of the batches before it and before any step of its own: a trainer
// steps its modules before it sends the last of its contributions (sender.sendHeld of package trainer). So the module
// is captured then (CaptureAt) and belongs to that version of the job. If trainers run k batches ahead, it is captured
// before the first pass of the k-th batch after the version: all steps of earlier batches are in it, and some of those
// k, which a restart repeats. In other modes it is captured at any time.

// Captured is a capture of the modules of a set. Release frees it.
type Captured struct {
	all []*captured
}

type captured struct {
	hosted  *hosted
	at      schema.Version // of the job
	version *version       // pinned
	tensors []state.Tensor // whose values are that version's
}

// Errors of Capture: a pass on the version came before the request for it, or another version has been requested since;
// or no such pass has come.
var (
	ErrLate   = errors.New("was not taken at the version")
	errNoPass = errors.New("no pass of its batch was asked for")
)

// CaptureAt requests a capture of each module before the first pass of a batch that is computed on a version or a later
// one, also by a trainer that is ahead batches ahead. It replaces an earlier request, whose version is missed if
// Capture has not returned it. If that pass has come already, the version is missed. Batch numbers far from the version
// are ignored: some programs count differently.
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

// Capture returns all modules at the version that CaptureAt requested, and waits so long for it; 0 captures the present
// state. It copies optimizer slots, for which steps wait, but no parameters. It fails with ErrLate, or if no pass has
// come.
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

// captureEvery is the interval at which Capture checks for the version.
const captureEvery = 20 * time.Millisecond

// now captures the present state, unless a pass is capturing the version.
func (d *hosted) now(v schema.Version) (*captured, error) {
	d.stepLock.Lock()
	defer d.stepLock.Unlock()
	if c, err := d.given(v); c != nil || err != nil {
		return c, err
	}
	return d.capture(v), nil
}

// begin captures the module before a pass of a batch if that is requested. Other passes of such a batch wait.
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
	if d.want != v { // another version has been requested
		d.unpinLocked(c.version)
		return
	}
	d.taken, d.want = c, 0
}

// given returns the capture of a version, nil if there is none yet, and an error if there will be none.
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

// capture captures the present state. The step lock is held.
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

// Extent adds all of it to the extent of an increment.
func (c *Captured) Extent(e *state.Extent) {
	for i := range c.all {
		for _, t := range c.all[i].tensors {
			e.Tensors = append(e.Tensors, state.Stretch{Name: t.Name, From: t.From, Elements: len(t.Values)})
			e.Bytes += int64(4 * len(t.Values) * (1 + len(t.Slots)))
		}
	}
}

// Tensors yields all parameters with their optimizer slots.
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

// Release frees the capture, which is empty afterwards.
func (c *Captured) Release() {
	for i := range c.all {
		c.all[i].hosted.unpin(c.all[i].version)
	}
	c.all = nil
}

// Restore replaces a range of a parameter's drawn values, if a module here has it. taken reports whether it belongs to
// a module. Restore is called before Open.
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

// restored checks that a module was restored completely if it was restored at all.
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
