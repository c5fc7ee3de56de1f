package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gradbus/internal/config"
	"gradbus/internal/spawn"
)

// Launch says how a member process is started: a program, which calls Child, and its arguments. The zero value is this
// program with the argument "member".
type Launch struct {
	Path string
	Args []string
}

// Harness is the members of one measured system. Its fields are set before the first Start. Methods may be called from
// any goroutine.
type Harness struct {
	Roles     map[string]Role // what members can be; RoleServer is always known
	InProcess bool            // members are goroutines of this process
	Launch    Launch
	// Out takes the lines that members and driver say; nil drops them.
	Out io.Writer
	// Bar is the terminal that the members' progress is drawn on; nil for none. Title stands before the bar.
	Bar   io.Writer
	Title string
	// Profile is a folder for CPU profiles, one of each member, by name, or one of all where they are goroutines. Empty
	// for none.
	Profile string
	// Patience is how long the others may go on after a process was killed by a signal, so that they find out for
	// themselves who is missing, and the job ends with that one's name rather than with that of the first who was asked to
	// end. 0: not at all.
	Patience time.Duration

	grace time.Duration // 0 means graceAtEnd

	once    sync.Once
	ctx     context.Context // ends with the first failure, or Close; the cause says which
	cancel  context.CancelCauseFunc
	members sync.WaitGroup
	profile func() error

	mu      sync.Mutex // guards what follows, and writes to Out and Bar; taken after no other lock
	handles []*Handle
	bar     bar
	lines   lines
	closed  bool
	first   error // that a member failed with; what others say of it afterwards is not told
}

// Spec is one member to start. Settings is what encoding/json can write. A name may be used again when its member has
// ended.
type Spec struct {
	Role, Name string
	Settings   any
}

// graceAtEnd is what member processes get between being asked to end and being killed.
const graceAtEnd = 5 * time.Second

// errClosed is the cause of the end by Close.
var errClosed = errors.New("harness closed")

// begin makes the context that all members share. It ends with the context of the first Start.
func (c *Harness) begin(ctx context.Context) (err error) {
	c.once.Do(func() {
		c.ctx, c.cancel = context.WithCancelCause(ctx)
		c.profile = func() error { return nil }
		if c.InProcess {
			config.PaceCollector() // as member processes do
			if c.Profile != "" {
				c.profile, err = profile(filepath.Join(c.Profile, "all.pprof"))
			}
		}
	})
	return err
}

// Start starts members and returns without waiting for them. ctx bounds the whole life of the harness. Errors: a role
// that is not there, a name given twice, settings that are no JSON, a process that cannot be started; the harness is
// then to be closed.
func (c *Harness) Start(ctx context.Context, specs ...Spec) ([]*Handle, error) {
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	var started []*Handle
	for _, s := range specs {
		h, err := c.add(s)
		if err != nil {
			return started, fmt.Errorf("start %s: %w", s.Name, err)
		}
		started = append(started, h)
	}
	return started, nil
}

func (c *Harness) add(s Spec) (*Handle, error) {
	role := roleOf(c.Roles, s.Role)
	if role == nil && (c.InProcess || c.Roles != nil) {
		return nil, noRole(s.Role, c.Roles)
	}
	settings, err := json.Marshal(s.Settings)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	h := &Handle{Name: s.Name, harness: c, told: map[string]json.RawMessage{}, changed: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	at := slices.IndexFunc(c.handles, func(other *Handle) bool { return other.Name == s.Name })
	if at >= 0 && !c.handles[at].hasEnded() {
		return nil, errors.New("there is a member of this name already")
	}
	if c.InProcess {
		c.goroutine(h, role, settings)
	} else if err := c.process(h, s, settings); err != nil {
		return nil, err
	}
	if at >= 0 {
		c.handles[at] = h
	} else {
		c.handles = append(c.handles, h)
	}
	return h, nil
}

// goroutine runs a role in this process.
func (c *Harness) goroutine(h *Handle, role Role, settings json.RawMessage) {
	m := newMember(h.Name, settings, func(x message) error { h.take(x); return nil })
	m.alone = false
	h.order = m.order
	c.members.Go(func() {
		if err := m.run(c.ctx, role); err != nil {
			c.fail(fmt.Errorf("%s: %w", h.Name, err))
		}
	})
}

// process runs a role in a process of its own.
func (c *Harness) process(h *Handle, s Spec, settings json.RawMessage) error {
	launch := c.Launch
	if launch.Path == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		launch = Launch{Path: self, Args: []string{ChildArgument}}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	first := order{Op: opBe, Role: s.Role, Name: s.Name, Settings: settings}
	if c.Profile != "" {
		first.Profile = filepath.Join(c.Profile, s.Name+".pprof")
	}
	to := json.NewEncoder(w)
	h.order = func(o order) error { return to.Encode(o) }
	c.members.Go(func() {
		p := spawn.Process{Name: s.Name, Path: launch.Path, Args: launch.Args, Stdin: r, OnLine: h.line}
		err := spawn.Group{Grace: cmp.Or(c.grace, graceAtEnd)}.Run(c.ctx, []spawn.Process{p})
		r.Close()
		w.Close()
		var failed *spawn.Error
		if errors.As(err, &failed) { // a copy: it may be another member's, whom others look at
			err = &spawn.Error{Name: failed.Name, Said: strings.TrimPrefix(failed.Said, filepath.Base(launch.Path)+": "),
				Err: failed.Err}
		}
		if err == nil && !h.hasEnded() {
			err = fmt.Errorf("%s: ended without a result", s.Name)
		}
		if err != nil {
			c.fail(err)
		}
	})
	h.mu.Lock()
	c.members.Go(func() { // by itself, since settings may be longer than a pipe holds; no order comes before this one
		defer h.mu.Unlock()
		_ = h.order(first) // one that cannot be told has ended, which is said above
	})
	return nil
}

// fail ends all members: with patience, where one was killed. The first cause stays.
func (c *Harness) fail(err error) {
	c.mu.Lock()
	if c.first == nil {
		c.first = err
	}
	first := c.first
	c.mu.Unlock()
	if c.Patience > 0 && spawn.Killed(err) {
		time.AfterFunc(c.Patience, func() { c.cancel(first) }) // after the end it does nothing
		return
	}
	c.cancel(first)
}

// Gather waits until each of the members has reached a Wait of its own. Errors: that of the member that failed first,
// ctx's cause, or that one has ended.
func (c *Harness) Gather(ctx context.Context, members ...*Handle) error {
	for _, h := range members {
		if err := h.until(ctx, "waited to begin", func() bool { return h.waits > h.released }); err != nil {
			return err
		}
	}
	return nil
}

// Go gathers the members and then releases all of them. Errors: those of Gather.
func (c *Harness) Go(ctx context.Context, members ...*Handle) error {
	if err := c.Gather(ctx, members...); err != nil {
		return err
	}
	for _, h := range members {
		if err := h.say(ctx, order{Op: opGo}, func() { h.released++ }); err != nil {
			return err
		}
	}
	return nil
}

// failed is why the harness ended before Close; nil where it did not.
func (c *Harness) failed() error {
	if c.ctx == nil || c.ctx.Err() == nil {
		return nil
	}
	if err := context.Cause(c.ctx); !errors.Is(err, errClosed) {
		return err
	}
	return nil
}

// Close ends all members that are still there, kills those that do not end within five seconds, and returns when all
// are gone. The error is that of the first that failed before. It may be called more than once.
func (c *Harness) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	if c.ctx == nil {
		return nil
	}
	c.cancel(errClosed)
	c.members.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.handles {
		c.lines.end(h)
	}
	for _, line := range c.lines.ready() { // of members that have failed
		c.print(line)
	}
	c.bar.end()
	err := c.profile()
	c.profile = func() error { return nil }
	if failed := c.failed(); failed != nil {
		return failed
	}
	return err
}
