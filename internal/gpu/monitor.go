package gpu

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"gradbus/schema"
)

// Mode says what a process wants of GPUs.
type Mode string

// Modes of --gpu.
const (
	Auto    Mode = "auto"    // watch them where there is a driver
	Require Mode = "require" // refuse to start without a driver and the expected, healthy GPUs
	Off     Mode = "off"     // ask nothing
)

// Config of Start.
type Config struct {
	Mode     Mode     // empty is Auto
	Expected int      // GPUs that the machine should have; missing ones are absent
	Probe    []string // program that asks the driver, and its arguments: it writes Line as JSON, one a line
	// Every is the time between samples of made up GPUs, at most; 0 is a second.
	Every time.Duration
	// Silence is the time without an answer of the driver after which its GPUs are Unknown; 0: 8 s. The probe is killed
	// after three times that, since a driver that is only slow must get to its answer.
	Silence time.Duration
	// Patience is the time for the first answer of the driver, after which the probe is killed; 0: a minute. A machine
	// of eight GPUs without persistence mode takes twenty seconds.
	Patience time.Duration
	Backoff  time.Duration // before a probe that ended is started again, doubled up to a minute; 0 is a second
	Inject   []Injection   // faults that are made up
	// Kept is where is remembered what must outlive this process; nil remembers nothing. With Inject it is not written to:
	// a rehearsal is not remembered.
	Kept        *File
	KeptErr     error         // why there is no Kept although there should be: it is said where there is a driver
	KeptAsIs    bool          // what Kept holds is taken, and nothing is written
	KeptCommand string        // acknowledges a GPU in Kept, followed by its index; empty is ./bin/ps gpu-ack
	Boot        func() string // names the present run of the machine; nil asks the kernel
	// Unused is logged with the first GPUs that are found, where this process computes on none: how it would. Empty logs
	// nothing.
	Unused string
	// Acknowledge acknowledges all GPUs that are unhealthy, whenever it gets a signal. Close stops the signals.
	Acknowledge chan os.Signal
	Log         *slog.Logger // gets changes of state; nil discards
	OnChange    func(Change) // receives each change of a GPU, never concurrently; it must return at once
	Driver      func() bool  // says whether this machine has a driver that could be asked; nil looks for its files
}

func (c Config) withDefaults() Config {
	c.Mode, c.KeptCommand = cmp.Or(c.Mode, Auto), cmp.Or(c.KeptCommand, "./bin/ps gpu-ack")
	c.Every, c.Silence = cmp.Or(c.Every, time.Second), cmp.Or(c.Silence, 8*time.Second)
	c.Patience, c.Backoff = cmp.Or(c.Patience, time.Minute), cmp.Or(c.Backoff, time.Second)
	c.KeptAsIs = c.KeptAsIs || len(c.Inject) > 0
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Driver == nil {
		c.Driver = driverFiles
	}
	if c.Boot == nil {
		c.Boot = bootID
	}
	return c
}

// Monitor knows how the GPUs of this machine are. Its methods never wait for the driver and may be called from any
// goroutine.
type Monitor struct {
	config Config
	ended  chan struct{} // closed when run has returned
	stop   context.CancelFunc
	keeper *keeper // nil where nothing is remembered

	telling sync.Mutex // held while changes are passed on; before mu
	mu      sync.Mutex
	machine *Machine
	used    string
	lost    string        // why what this process has on its GPU is gone for good; empty where it is not
	heard   chan struct{} // closed by hear, with the first word of the driver, or that there is none
	hear    func()
}

// Start watches the GPUs of this machine until ctx ends or Close is called. With Require it waits until the driver has
// answered, and gives an error where it does not, where an expected GPU is missing or one is unhealthy; else it returns
// at once, and GPUs tells more as soon as more is known.
func Start(ctx context.Context, c Config) (*Monitor, error) {
	c = c.withDefaults()
	m := &Monitor{config: c, ended: make(chan struct{}), heard: make(chan struct{}), machine: New(c.Expected),
		stop: func() {}}
	m.hear = sync.OnceFunc(func() { close(m.heard) })
	switch c.Mode {
	case Off:
		if len(c.Inject) > 0 {
			return nil, fmt.Errorf("inject %q: want gpu auto with it, not off", c.Inject[0].Spec)
		}
		m.hear()
		close(m.ended)
		return m, nil
	case Auto, Require:
	default:
		return nil, fmt.Errorf("gpu %q: want auto, require or off", c.Mode)
	}
	probe := c.Mode == Require || c.Driver()
	if !probe {
		m.take(m.machine.Silent(time.Now(), NoDriver, true, false))
		c.Log.Info("no GPU is watched", "reason", NoDriver)
		if len(c.Inject) == 0 {
			m.hear()
			close(m.ended)
			return m, nil
		}
	}
	ctx, m.stop = context.WithCancel(ctx)
	switch {
	case probe && c.KeptErr != nil:
		c.Log.Warn(notKept, "err", c.KeptErr)
	case probe && c.Kept != nil:
		m.keeper = newKeeper(m, time.Now())
		go m.keeper.run()
	}
	go m.run(ctx, probe)
	if c.Mode == Require {
		if err := m.required(ctx); err != nil {
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

// NoDriver is the reason where there is nothing to ask.
const NoDriver = "this machine has no NVIDIA driver"

// driverFiles says whether the kernel has a driver of NVIDIA's: it costs three stats, and asks the driver nothing.
func driverFiles() bool {
	for _, path := range []string{"/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

// Close ends the watch. It waits for what can be waited for: a probe that hangs in the kernel outlives it.
func (m *Monitor) Close() {
	if m.config.Acknowledge != nil {
		signal.Stop(m.config.Acknowledge)
	}
	m.stop()
	<-m.ended
	if m.keeper != nil {
		m.keeper.close()
	}
}

// KeptAt is the file in which what is wrong with GPUs is remembered; empty where nothing is.
func (m *Monitor) KeptAt() string {
	if m.keeper == nil {
		return ""
	}
	return m.keeper.file.Path()
}

// Wait waits until the driver has given its first word, or that there is none, for at most the given time.
func (m *Monitor) Wait(ctx context.Context, atMost time.Duration) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-m.heard:
	case <-m.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// required is nil where all is as Require wants it.
func (m *Monitor) required(ctx context.Context) error {
	m.Wait(ctx, m.config.Patience)
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.heard:
	default:
		return fmt.Errorf("gpu require: the driver has not answered within %s; see whether nvidia-smi does",
			m.config.Patience)
	}
	if reason := m.machine.noAnswer; reason != "" {
		return fmt.Errorf("gpu require: %s; use --gpu auto to continue without GPUs", reason)
	}
	gpus := m.machine.GPUs("")
	if len(gpus) == 0 {
		return fmt.Errorf("gpu require: the driver counts no GPU; see whether nvidia-smi lists one")
	}
	for _, g := range gpus {
		switch g.State {
		case schema.GPUAbsent:
			return fmt.Errorf("gpu require: %s %s", g.Reason, g.Action)
		case schema.GPUUnhealthy, schema.GPUUnknown:
			return fmt.Errorf("gpu require: GPU %d (%s, %s) is %s: %s %s", g.Index, g.Name, g.UUID, g.State, g.Reason, g.Action)
		}
	}
	return nil
}

// Unavailable returns why no GPU can be asked for: NoDriver, or what is wrong with the driver; empty if one can.
func (m *Monitor) Unavailable() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.noAnswer
}

// GPUs returns the state of every GPU: present ones by index, then expected ones that are missing. It is empty on a
// machine without a driver if none is expected.
func (m *Monitor) GPUs() []schema.GPUReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.GPUs(m.used)
}

// Fit says why this process must not compute on its GPU any more; nil where it may, and where Use was not called. It is
// unfit while the GPU is unhealthy, and for good once the GPU or the driver has ended what the process had there.
func (m *Monitor) Fit() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.used == "":
		return nil
	case m.lost != "":
		return fmt.Errorf("this process has lost its GPU: %s Start it again once the GPU is well", m.lost)
	}
	return m.machine.May(m.used)
}

// Doubt says in one sentence why results since a time may be wrong; empty where nothing speaks for it. It waits for at
// most that long until the GPU in use was asked after now, since a fault shows with the sample after it. Where Use was
// not called there is no doubt.
func (m *Monitor) Doubt(ctx context.Context, since time.Time, atMost time.Duration) string {
	m.mu.Lock()
	used := m.used
	m.mu.Unlock()
	if used == "" || m.config.Mode == Off {
		return ""
	}
	var g schema.GPUReport
	now := time.Now()
	for ctx.Err() == nil && time.Since(now) <= atMost && g.SampleMS <= now.UnixMilli() {
		for _, all := range m.GPUs() {
			if all.UUID == used {
				g = all
			}
		}
		time.Sleep(doubtEvery)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.machine.Suspect(used, since):
		return fmt.Sprintf("Memory of GPU %d (%s) was faulty during the run: %s", g.Index, g.UUID, g.Reason)
	case g.SampleMS <= now.UnixMilli():
		return fmt.Sprintf("GPU %d (%s) has not answered since, so it is not known whether its memory was sound. %s", g.Index,
			g.UUID, g.Reason)
	}
	return ""
}

// doubtEvery is the interval at which Doubt looks for a new sample.
const doubtEvery = 20 * time.Millisecond

// Mismatch says that results of a GPU differed from those of the CPU: it is unhealthy from now on. uuid may be empty
// where Use was called. One that was injected is not remembered.
func (m *Monitor) Mismatch(uuid, what string, injected bool) {
	m.change(func(machine *Machine) []Change {
		if uuid == "" {
			uuid = m.used
		}
		return machine.Mismatch(time.Now(), uuid, what, injected)
	})
}

// Acknowledge records that an operator has dealt with a GPU: earlier findings are dropped, and what is still wrong
// returns with the next sample. uuid may be a prefix of one, or an index.
func (m *Monitor) Acknowledge(uuid string) error {
	var err error
	m.change(func(machine *Machine) (changes []Change) {
		changes, err = machine.Acknowledge(time.Now(), uuid)
		return changes
	})
	return err
}

// AcknowledgeAll acknowledges every GPU that is unhealthy, and says how many those are.
func (m *Monitor) AcknowledgeAll() int {
	n := 0
	for _, g := range m.GPUs() {
		if g.State == schema.GPUUnhealthy && m.Acknowledge(g.UUID) == nil {
			n++
		}
	}
	return n
}

// change changes the machine under the lock, with what follows from it for Fit, and tells what changed after it.
func (m *Monitor) change(f func(*Machine) []Change) {
	m.mu.Lock()
	changes := f(m.machine)
	for _, c := range changes {
		if c.ContextLost && c.GPU.UUID == m.used && m.lost == "" {
			m.lost = c.Reason
			if c.Injected {
				m.lost += " (Injected.)"
			}
		}
	}
	m.mu.Unlock()
	m.take(changes)
}

// take logs changes, and passes them on.
func (m *Monitor) take(changes []Change) {
	m.telling.Lock()
	defer m.telling.Unlock()
	if len(changes) > 0 && m.keeper != nil {
		select {
		case m.keeper.dirty <- struct{}{}:
		default:
		}
	}
	for _, c := range changes {
		level := slog.LevelInfo
		switch c.To {
		case schema.GPUUnhealthy:
			level = slog.LevelError
		case schema.GPUDegraded, schema.GPUUnknown:
			level = slog.LevelWarn
		}
		args := []any{"gpu", c.GPU.UUID, "index", c.GPU.Index, "name", c.GPU.Name, "from", c.From, "to", c.To}
		if c.Code != "" {
			args = append(args, "code", c.Code, "reason", c.Reason)
		}
		if c.Action != "" {
			args = append(args, "action", c.Action)
		}
		if c.Injected {
			args = append(args, "injected", true)
		}
		m.config.Log.Log(context.Background(), level, "GPU health", args...)
		if m.config.OnChange != nil {
			m.config.OnChange(c)
		}
	}
}

// orderDevices makes CUDA count its devices as the driver does, unless the environment of this process sets another
// order. It returns the value of CUDA_VISIBLE_DEVICES. Call it before CUDA is used. Both are CUDA's own variables.
func orderDevices() (visible string, err error) {
	const order = "CUDA_DEVICE_ORDER"
	if os.Getenv(order) == "" {
		if err := os.Setenv(order, "PCI_BUS_ID"); err != nil {
			return "", fmt.Errorf("order the GPUs: %w", err)
		}
	}
	return os.Getenv("CUDA_VISIBLE_DEVICES"), nil
}

// takeWait bounds the time for which Take waits for the driver's first answer.
const takeWait = 20 * time.Second

// Take asks whether this process may compute on the GPU that CUDA lists first, and records that it does. visible is the
// value of CUDA_VISIBLE_DEVICES, and CUDA must count devices as the driver does (CUDA_DEVICE_ORDER=PCI_BUS_ID). The
// error says why the GPU may not be used, and what to do. A GPU of unknown state may be used; a caller that must be
// sure requires the GPUs.
func (m *Monitor) Take(ctx context.Context, visible string) error {
	m.Wait(ctx, takeWait)
	name, _, _ := strings.Cut(visible, ",")
	m.mu.Lock()
	defer m.mu.Unlock()
	name = strings.TrimSpace(name)
	if name == "" && len(m.machine.gpus) > 0 {
		name = m.machine.gpus[0].UUID
	}
	g, err := m.machine.pick(name)
	if err != nil {
		m.config.Log.Warn("used GPU unknown", "cuda_visible_devices", visible)
		return nil //nolint:nilerr // of a GPU that is not known nothing speaks against its use
	}
	if err := m.machine.May(g.UUID); err != nil {
		return fmt.Errorf("take a GPU: %w Another can be chosen with CUDA_VISIBLE_DEVICES", err)
	}
	m.used = g.UUID
	m.config.Log.Info("GPU taken", "gpu", g.UUID)
	return nil
}

// watch is the state of a Monitor's goroutine.
type watch struct {
	m     *Monitor
	start time.Time

	child   *child
	hung    []*child  // killed, and not ended yet
	next    time.Time // when a probe may be started
	backoff time.Duration
	last    time.Time // the driver's last word
	began   time.Time // of the present probe
	at      string    // what was heard last, for a driver that hangs
	hello   bool      // the present probe has said hello
	silent  bool      // the GPUs are Unknown, since the driver does not answer
	unused  bool      // the log has said that no GPU is used
	none    string    // why there is no driver: faults are injected into made up GPUs; empty where there is one

	done    []bool                // injections that happen once and have
	sampled map[int]time.Duration // by index: when a GPU was sampled last, from the start
}

// hungMax bounds the probes that hang in the kernel: with so many no further one is started.
const hungMax = 3

// run is the only goroutine that starts probes and feeds the machine.
func (m *Monitor) run(ctx context.Context, probe bool) {
	defer close(m.ended)
	w := &watch{m: m, start: time.Now(), done: make([]bool, len(m.config.Inject)), backoff: m.config.Backoff,
		sampled: map[int]time.Duration{}}
	tick := time.NewTicker(min(m.config.Every, m.config.Silence/4))
	defer tick.Stop()
	if !probe { // with faults to inject: what they are injected into is there from the beginning
		w.none = NoDriver
		w.simulate(w.start)
		m.hear()
	}
	for {
		var lines <-chan *Line
		if probe {
			w.drive(time.Now())
		}
		if w.child != nil {
			lines = w.child.lines
		}
		select {
		case <-ctx.Done():
			w.endAll()
			return
		case line, ok := <-lines:
			if !ok {
				w.ended(time.Now())
			} else {
				w.line(time.Now(), line)
			}
		case <-m.config.Acknowledge:
			if m.AcknowledgeAll() == 0 {
				m.config.Log.Info("nothing to acknowledge: no GPU is unhealthy")
			}
		case now := <-tick.C:
			w.injectOnce(now)
			w.simulate(now)
		}
	}
}

// drive starts a probe where there is none, and sees to one that says nothing.
func (w *watch) drive(now time.Time) {
	c := &w.m.config
	if w.child == nil {
		w.hung = slices.DeleteFunc(w.hung, func(c *child) bool { return c.hasEnded(0) })
		if now.Before(w.next) || len(w.hung) >= hungMax {
			return
		}
		child, err := startChild(c.Probe)
		if err != nil {
			w.silence(now, fmt.Sprintf("the probe cannot be started: %v", err))
			w.later(now)
			return
		}
		w.child, w.began, w.last, w.hello, w.at = child, now, now, false, "the probe was started"
		return
	}
	quiet := now.Sub(w.last)
	where := fmt.Sprintf("no word for %s since %s", quiet.Round(time.Second), w.at)
	if quiet >= c.Silence && !w.silent {
		w.silence(now, "the driver does not answer: "+where)
	}
	limit := 3 * c.Silence
	if !w.hello {
		limit = c.Patience
	}
	if quiet >= limit && !w.hangs(now) {
		c.Log.Warn("GPU probe killed", "pid", w.child.pid(), "reason", where)
		w.child.kill()
		w.hung = append(w.hung, w.child)
		w.child = nil
		w.later(now)
	}
}

// silence makes the GPUs Unknown.
func (w *watch) silence(now time.Time, reason string) {
	w.silent = true
	w.m.change(func(machine *Machine) []Change { return machine.Silent(now, reason, false, w.hangs(now)) })
	w.m.hear()
}

// later is when the next probe may be started.
func (w *watch) later(now time.Time) {
	w.next = now.Add(w.backoff)
	w.backoff = min(2*w.backoff, time.Minute)
}

// ended handles a probe that has ended by itself, or was ended by another process.
func (w *watch) ended(now time.Time) {
	switch {
	case w.child.none: // a driver that comes is found within a minute
		w.backoff = time.Minute
	default:
		w.m.config.Log.Warn("GPU probe ended", "pid", w.child.pid(), "reason", w.child.why)
		w.silence(now, w.child.why)
		if now.Sub(w.began) > time.Minute {
			w.backoff = w.m.config.Backoff
		}
	}
	w.child = nil
	w.later(now)
}

// endAll ends the probe, and waits for a moment for it and those that hang.
func (w *watch) endAll() {
	if w.child != nil {
		w.child.kill()
		w.hung = append(w.hung, w.child)
	}
	deadline := time.Now().Add(time.Second)
	for _, c := range w.hung {
		c.hasEnded(time.Until(deadline))
	}
}

// line takes a line of the probe.
func (w *watch) line(now time.Time, l *Line) {
	if w.hangs(now) {
		return
	}
	if l.XID != nil { // no sign that the driver answers: it comes from elsewhere
		w.m.change(func(m *Machine) []Change { return m.XID(now, l.XID, false) })
		return
	}
	w.last, w.silent = now, false
	switch {
	case l.Hello != nil:
		w.greet(now, l.Hello)
	case l.None != nil:
		w.noDriver(now, l.None)
	case l.Sample != nil:
		w.at = fmt.Sprintf("GPU %d was asked", l.Sample.Index)
		injected := w.alter(now, l.Sample)
		w.m.change(func(m *Machine) []Change { return m.Sample(now, l.Sample, injected) })
	case l.Poll:
		w.at = "all GPUs were asked"
		w.m.change(func(m *Machine) []Change { m.Poll(); return nil })
		w.m.hear()
	}
}

// noDriver takes a probe's word that there is nothing to ask. The next probe will mostly say the same: that is no news,
// and made up GPUs do not mind.
func (w *watch) noDriver(now time.Time, n *None) {
	w.child.none = true
	if n.Driver || n.Reason != w.none {
		w.none = ""
		if !n.Driver {
			w.none = n.Reason
		}
		w.m.config.Log.Info("no GPU is watched", "reason", n.Reason)
		w.m.change(func(m *Machine) []Change { return m.Silent(now, n.Reason, !n.Driver, false) })
	}
	w.simulate(now)
	w.m.hear()
}

// greet takes a probe's first line.
func (w *watch) greet(now time.Time, h *Hello) {
	w.hello, w.none, w.at = true, "", "the driver was found"
	c := &w.m.config
	args := []any{"driver", h.Driver, "nvml", h.NVML, "gpus", len(h.GPUs), "pid", w.child.pid()}
	if len(h.NoXIDs) > 0 {
		args = append(args, "without_events", h.NoXIDs)
	}
	c.Log.Info("GPUs are watched", args...)
	if c.Unused != "" && len(h.GPUs) > 0 && !w.unused {
		w.unused = true
		c.Log.Info("no GPU is used", "reason", c.Unused)
	}
	for _, in := range c.Inject {
		if in.Kind != "hang" && in.GPU >= len(h.GPUs) {
			c.Log.Error("fault cannot be injected", "inject", in.Spec, "reason",
				fmt.Sprintf("the machine has %d GPUs", len(h.GPUs)))
		}
	}
	w.m.change(func(m *Machine) []Change { return m.Hello(now, h) })
}
