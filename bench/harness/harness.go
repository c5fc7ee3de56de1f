package harness

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"gradbus/internal/atomicfile"
	"gradbus/internal/config"
	"gradbus/internal/spawn"
)

// Harness is the members of one measured system. Its fields are set before the first Start. Methods may be called from
// any goroutine.
type Harness struct {
	Roles     map[string]Role // what members can be; RoleServer is always known
	InProcess bool            // members are goroutines of this process
	// Out takes the lines that members and driver say; nil drops them.
	Out io.Writer
	// Bar is the terminal that the members' progress is drawn on; nil for none. Title stands before the bar.
	Bar   io.Writer
	Title string
	// Profile is a folder for CPU profiles, one of each member, by name, or one of all where they are goroutines. Empty
	// for none.
	Profile string
	// Patience is the time for which the others may continue after a process was killed by a signal, so that the job
	// ends with the name of the missing process instead of that of the first one asked to end. 0: none.
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

// graceAtEnd is the time between asking member processes to end and killing them.
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
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
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
		p := spawn.Process{Name: s.Name, Path: self, Args: []string{ChildArgument}, Stdin: r, OnLine: h.line}
		err := spawn.Group{Grace: cmp.Or(c.grace, graceAtEnd)}.Run(c.ctx, []spawn.Process{p})
		r.Close()
		w.Close()
		var failed *spawn.Error
		if errors.As(err, &failed) { // a copy: it may be another member's, whom others look at
			err = &spawn.Error{Name: failed.Name, Said: strings.TrimPrefix(failed.Said, filepath.Base(self)+": "),
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

// reportWithin bounds the time until the end of a process is known after an order could not be written to it.
const reportWithin = 2 * graceAtEnd

// Handle is one member, as the driver sees it.
type Handle struct {
	Name string

	harness *Harness

	mu       sync.Mutex        // guards what follows
	order    func(order) error // says it to the member
	told     map[string]json.RawMessage
	parts    []byte
	answer   json.RawMessage // not read yet
	waits    int             // how often it has reached a Wait
	released int             // how often it was released
	result   json.RawMessage
	ended    bool
	count    int // progress
	total    int
	changed  chan struct{} // closed and replaced at each change
}

// line takes a line of a process. A line that is no message was printed by the program, and is dropped.
func (h *Handle) line(text []byte) {
	var m message
	if json.Unmarshal(text, &m) == nil {
		h.take(m)
	}
}

// take does what a member's message says. It is called from one goroutine at a time.
func (h *Handle) take(m message) {
	if m.Op == opResult {
		h.harness.order(func(l *lines) { l.end(h) }) // before any other member learns of its end and prints a line about it
	}
	h.mu.Lock()
	if m.Op == opPart {
		if len(h.parts)+len(m.Part) <= valueBytesMax {
			h.parts = append(h.parts, m.Part...)
		}
		h.mu.Unlock()
		return
	}
	if h.parts != nil {
		m.Value, h.parts = h.parts, nil
	}
	switch m.Op {
	case opTell:
		h.told[m.Key] = m.Value
	case opAnswer:
		h.answer = m.Value
	case opWait:
		h.waits++
	case opProgress:
		h.count, h.total = m.Count, m.Total
	case opResult:
		h.result, h.ended = m.Value, true
	}
	close(h.changed)
	h.changed = make(chan struct{})
	h.mu.Unlock()
	switch m.Op {
	case opSay:
		var line string
		if json.Unmarshal(m.Value, &line) == nil {
			h.harness.Say(line)
		}
	case opEvent:
		var line string
		if json.Unmarshal(m.Value, &line) == nil {
			h.harness.order(func(l *lines) { l.feed(h, m.Key, m.At, line) })
		}
	case opProgress:
		h.harness.draw()
	}
}

func (h *Handle) hasEnded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended
}

// until waits for what the member is to have done. ok is called with the lock held.
func (h *Handle) until(ctx context.Context, what string, ok func() bool) error {
	for {
		h.mu.Lock()
		is, ended, changed := ok(), h.ended, h.changed
		h.mu.Unlock()
		switch {
		case is:
			return nil
		case ended:
			return fmt.Errorf("%s: has ended and not %s", h.Name, what)
		}
		select {
		case <-changed:
		case <-h.harness.ctx.Done():
			return context.Cause(h.harness.ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Told waits for the value that the member tells under this name. Errors: that of the member that failed first, ctx's
// cause, or that the member has ended without it.
func (h *Handle) Told(ctx context.Context, key string, into any) error {
	var value json.RawMessage
	if err := h.until(ctx, "told "+key, func() (ok bool) { value, ok = h.told[key]; return ok }); err != nil {
		return err
	}
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("%s: read %s: %w", h.Name, key, err)
	}
	return nil
}

// Ask gives a member that serves (Member.Serve) a question, which encoding/json can write. Its answer is to be read
// before the next.
func (h *Handle) Ask(ctx context.Context, question any) error {
	data, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("%s: question: %w", h.Name, err)
	}
	return h.say(ctx, order{Op: opAsk, Settings: data}, func() {})
}

// Answer waits for the answer to what the member was asked. Errors: that of the member that failed first, or ctx's
// cause.
func (h *Handle) Answer(ctx context.Context, into any) error {
	var value json.RawMessage
	if err := h.until(ctx, "answered", func() bool { value, h.answer = h.answer, nil; return value != nil }); err != nil {
		return err
	}
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("%s: read answer: %w", h.Name, err)
	}
	return nil
}

// stop asks a member that serves to end; Result then gives what it found. One that has ended already is left alone.
func (h *Handle) stop(ctx context.Context) error {
	if h.hasEnded() {
		return nil
	}
	return h.say(ctx, order{Op: opStop}, func() {})
}

// say gives an order. A process that cannot be told has ended, or is about to: its own report says more.
func (h *Handle) say(ctx context.Context, o order, then func()) error {
	h.mu.Lock()
	err := h.order(o)
	if err == nil {
		then()
	}
	ended := h.ended
	h.mu.Unlock()
	if err == nil || ended {
		return nil
	}
	select {
	case <-h.harness.ctx.Done():
		return context.Cause(h.harness.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(reportWithin):
		return fmt.Errorf("%s: order %s: %w", h.Name, o.Op, err)
	}
}

// Result waits for the end of the member and gives its result; into may be nil. Errors: that of the member that failed
// first, or ctx's cause.
func (h *Handle) Result(ctx context.Context, into any) error {
	if err := h.until(ctx, "given a result", func() bool { return h.ended }); err != nil {
		return err
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(h.result, into); err != nil {
		return fmt.Errorf("%s: read result: %w", h.Name, err)
	}
	return nil
}

// Say prints a line of a member, or of the driver, who speak in turn.
func (c *Harness) Say(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.print(line)
}

// order changes the lines of events, and prints those that are in order then.
func (c *Harness) order(change func(*lines)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.lines)
	for _, line := range c.lines.ready() {
		c.print(line)
	}
}

// print prints a line. c.mu is held.
func (c *Harness) print(line string) {
	if c.Out == nil {
		return
	}
	c.bar.clear()
	_, _ = io.WriteString(c.Out, line+"\n") // the result is reported even if no process reads the lines
}

// draw shows the progress of all members together.
func (c *Harness) draw() {
	if c.Bar == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	count, total := 0, 0
	for _, h := range c.handles {
		h.mu.Lock()
		count, total = count+h.count, total+h.total
		h.mu.Unlock()
	}
	c.bar.show(c.Bar, c.Title, count, total)
}

// ChildArgument is the one argument that makes this program a member.
const ChildArgument = "member"

var errDriverGone = errors.New("the driver is gone")

// Child is a member process: it reads from in which of the roles it is, runs it, and writes its result to out. It ends
// with its role, with an error where in ends before that, or with ctx.
func Child(ctx context.Context, roles map[string]Role, in io.Reader, out io.Writer) (err error) {
	config.PaceCollector() // as the commands do that this process stands for
	lines := bufio.NewReader(in)
	first, err := readOrder(lines)
	if err != nil {
		return fmt.Errorf("read what to be: %w", err)
	}
	role := roleOf(roles, first.Role)
	if first.Op != opBe || role == nil {
		return noRole(first.Role, roles)
	}
	stop, err := profile(first.Profile)
	if err != nil {
		return err
	}
	defer func() {
		if e := stop(); err == nil {
			err = e
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	to := json.NewEncoder(out)
	m := newMember(first.Name, first.Settings, func(x message) error { return to.Encode(x) })
	go func() { // ends with in, which ends with the driver at the latest; not waited for, since the process ends first
		for {
			o, err := readOrder(lines)
			if err == nil {
				err = m.order(o)
			}
			if err == io.EOF {
				err = errDriverGone
			}
			if err != nil {
				cancel(err)
				return
			}
		}
	}()
	return m.run(ctx, role)
}

// run is the role from start to end, with its result sent.
func (m *Member) run(ctx context.Context, role Role) error {
	result, err := role(ctx, m)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
			return cause // which says more
		}
		return err
	}
	return m.say(opResult, "", result)
}

// roleOf is the role of this name, or nil.
func roleOf(roles map[string]Role, name string) Role {
	if role := roles[name]; role != nil || name != RoleServer {
		return role
	}
	return Server
}

func noRole(name string, roles map[string]Role) error {
	return fmt.Errorf("role %q: no such role (known: %s)", name, strings.Join(slices.Sorted(maps.Keys(roles)), ", "))
}

func readOrder(r *bufio.Reader) (o order, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return o, err
	}
	return o, json.Unmarshal(line, &o)
}

// profile writes a CPU profile of the whole process until stop is called, and then what was allocated, to the same name
// with "allocs" in it. No path, no profile.
func profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := atomicfile.Create(path, 0o666)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		file.Discard()
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		return errors.Join(file.Commit(), writeAllocations(strings.TrimSuffix(path, ".pprof")+".allocs.pprof"))
	}, nil
}

// writeAllocations writes what the process has allocated since its start.
func writeAllocations(path string) error {
	err := atomicfile.Write(path, 0o666, func(w io.Writer) error { return pprof.Lookup("allocs").WriteTo(w, 0) })
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}

// barEvery is the shortest interval between two drawings of the bar.
const barEvery = 100 * time.Millisecond

// bar is the progress of a harness on a terminal. A new one begins where there is more to do than before, or less was
// done: when another member begins, or another run.
type bar struct {
	bar          *progressbar.ProgressBar
	to           io.Writer
	count, total int
}

func (b *bar) show(to io.Writer, title string, count, total int) {
	if b.bar != nil && (count < b.count || b.count == b.total) && total > 0 {
		b.end()
	}
	if b.bar == nil {
		b.to = to
		b.bar = progressbar.NewOptions64(int64(total), progressbar.OptionSetWriter(to), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(barEvery), progressbar.OptionFullWidth(),
			progressbar.OptionSetDescription(title))
	}
	if total != b.total {
		b.bar.ChangeMax64(int64(total))
	}
	b.count, b.total = count, total
	_ = b.bar.Set64(int64(count)) // a terminal that cannot be written to is no reason to stop
}

// clear takes the bar off the terminal until it is shown again.
func (b *bar) clear() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}

func (b *bar) end() {
	if b.bar != nil {
		_ = b.bar.Exit()
		fmt.Fprintln(b.to)
	}
	*b = bar{}
}
