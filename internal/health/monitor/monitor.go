package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"gradbus/internal/health"
	"gradbus/internal/health/keep"
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
	Mode Mode // empty is Auto
	// Probe is the program that asks the driver, and its arguments. It writes health.Line as JSON, one a line.
	Probe []string
	// Policy decides; the zero value is health.Default.
	Policy health.Policy
	// Every is the time between samples of made up GPUs, at most; 0 is a second.
	Every time.Duration
	// Silence is how long the driver may not answer until its GPUs are Unknown; 0 is 8 s. The probe is killed after three
	// times that, since a driver that is merely slow must get to its answer.
	Silence time.Duration
	// Patience is how long the driver may take to answer for the first time until the probe is killed; 0 is a minute: on
	// a machine of eight GPUs without persistence mode it takes twenty seconds.
	Patience time.Duration
	// Backoff is the time before a probe that ended is started again, doubled each time up to a minute; 0 is a second.
	Backoff time.Duration
	// Inject are faults that are made up.
	Inject []Injection
	// Kept is where is remembered what must outlive this process; nil remembers nothing. Made up GPUs and faults are never
	// remembered.
	Kept *keep.File
	// KeptCommand is the command that acknowledges a GPU in Kept, followed by its index; empty is ./bin/ps gpu-ack.
	KeptCommand string
	// KeptErr is why there is no Kept although there should be: it is said where there is a driver.
	KeptErr error
	// KeptAsIs leaves Kept as it is: what it holds is taken, and nothing is written.
	KeptAsIs bool
	// LastWords is how long Close listens for an error of the driver that may have ended this process, where it has used a
	// GPU and there is Kept; 0 is 200 ms.
	LastWords time.Duration
	// Boot names the present run of the machine, by which a restart of it is told; nil asks the kernel.
	Boot func() string
	// Unused is logged with the first GPUs that are found, where this process computes on none: how it would. Empty logs
	// nothing.
	Unused string
	// Log gets changes of state; nil discards.
	Log *slog.Logger
	// OnChange is told of each change of a GPU, never concurrently. It must return at once.
	OnChange func(health.Change)
	// Driver says whether this machine has a driver that could be asked; nil looks for its files.
	Driver func() bool
}

func (c Config) withDefaults() Config {
	set(&c.Mode, Auto)
	set(&c.Every, time.Second)
	set(&c.Silence, 8*time.Second)
	set(&c.Patience, time.Minute)
	set(&c.Backoff, time.Second)
	set(&c.KeptCommand, "./bin/ps gpu-ack")
	set(&c.LastWords, 200*time.Millisecond)
	if expected := c.Policy.Expected; c.Policy.CleanPolls == 0 {
		c.Policy = health.Default()
		c.Policy.Expected = expected
	}
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

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Monitor knows how the GPUs of this machine are. Its methods never wait for the driver and may be called from any
// goroutine.
type Monitor struct {
	config Config
	ended  chan struct{} // closed when run has returned
	stop   context.CancelFunc
	keeper *keeper // nil where nothing is remembered

	telling sync.Mutex // is held while changes are told of; before mu
	mu      sync.Mutex
	machine *health.Machine
	used    string
	lost    string        // why what this process has on its GPU is gone for good; empty where it is not
	heard   chan struct{} // closed with the first word of the driver, or that there is none
	told    bool
	notKept string // why nothing is remembered; empty where it is
}

// Start watches the GPUs of this machine until ctx ends or Close is called. With Require it waits until the driver has
// answered, and gives an error where it does not, where an expected GPU is missing or one is unhealthy; else it returns
// at once, and GPUs tells more as soon as more is known.
func Start(ctx context.Context, c Config) (*Monitor, error) {
	c = c.withDefaults()
	m := &Monitor{config: c, ended: make(chan struct{}), heard: make(chan struct{}), machine: health.New(c.Policy),
		stop: func() {}}
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
		m.take(m.machine.None(time.Now(), &health.None{Reason: NoDriver}))
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
		m.notKept = fmt.Sprintf("%s: %v", notKept, c.KeptErr)
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
	m.stop()
	<-m.ended
	if m.keeper != nil {
		m.keeper.close()
	}
}

// NotKept says why what is wrong with GPUs is not remembered beyond the end of this process, although it should be;
// empty where it is.
func (m *Monitor) NotKept() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notKept
}

// KeptAt is the file in which what is wrong with GPUs is remembered; empty where nothing is.
func (m *Monitor) KeptAt() string {
	if m.keeper == nil {
		return ""
	}
	return m.keeper.file.Path()
}

// hear notes that there is a first word.
func (m *Monitor) hear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.told {
		m.told = true
		close(m.heard)
	}
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
	if !m.told {
		return fmt.Errorf("gpu require: the driver has not answered within %s; see whether nvidia-smi does",
			m.config.Patience)
	}
	if reason := m.machine.Nobody(); reason != "" {
		return fmt.Errorf("gpu require: %s; use --gpu auto to go on without GPUs", reason)
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

// Nobody is why there is nobody to ask for GPUs: NoDriver, or what is wrong with the driver; empty where there is
// somebody.
func (m *Monitor) Nobody() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.Nobody()
}

// GPUs is what is known of every GPU at this moment: those that are there by index, then those that are expected and
// are not. It is empty on a machine without a driver where none is expected.
func (m *Monitor) GPUs() []schema.GPUReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.GPUs(m.used)
}

// Use says which GPU this process computes on, by UUID.
func (m *Monitor) Use(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used = uuid
}

func (m *Monitor) inUse() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// May gives nil where a GPU may be used, else an error that says why not and what to do. uuid may be an index.
func (m *Monitor) May(uuid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.May(uuid)
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

// Suspect says whether the memory of the GPU that this process uses was wrong at some time between from and to, or of
// any GPU where Use was not called.
func (m *Monitor) Suspect(from, to time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.Suspect(m.used, from, to)
}

// Doubt says in one sentence why results between from and to may be wrong; empty where nothing speaks for it. It waits
// for at most that long until the GPU in use was asked after to, since a fault shows with the sample after it. Where
// Use was not called there is no doubt.
func (m *Monitor) Doubt(ctx context.Context, from, to time.Time, atMost time.Duration) string {
	m.mu.Lock()
	used, waits := m.used, m.config.Mode != Off
	m.mu.Unlock()
	if used == "" || !waits {
		return ""
	}
	var g schema.GPUReport
	for deadline := time.Now().Add(atMost); ; {
		for _, all := range m.GPUs() {
			if all.UUID == used {
				g = all
			}
		}
		if g.SampleMS > to.UnixMilli() || time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
		time.Sleep(doubtEvery)
	}
	switch {
	case m.Suspect(from, to):
		return fmt.Sprintf("Memory of GPU %d (%s) was wrong meanwhile: %s", g.Index, g.UUID, g.Reason)
	case g.SampleMS <= to.UnixMilli():
		return fmt.Sprintf("GPU %d (%s) has not answered since, so it is not known whether its memory was sound. %s", g.Index,
			g.UUID, g.Reason)
	}
	return ""
}

// doubtEvery is how often Doubt looks for a new sample.
const doubtEvery = 20 * time.Millisecond

// Mismatch says that results of a GPU differed from those of the CPU: it is unhealthy from now on. uuid may be empty
// where Use was called. One that was injected is not remembered.
func (m *Monitor) Mismatch(uuid, what string, injected bool) {
	m.change(func(machine *health.Machine) []health.Change {
		if uuid == "" {
			uuid = m.used
		}
		return machine.Mismatch(time.Now(), uuid, what, injected)
	})
}

// Acknowledge says that somebody has seen to a GPU: what was wrong is forgotten. What still is comes back with the next
// sample. uuid may be the beginning of one, or an index.
func (m *Monitor) Acknowledge(uuid string) error {
	var err error
	m.change(func(machine *health.Machine) (changes []health.Change) {
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
func (m *Monitor) change(f func(*health.Machine) []health.Change) {
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

// take logs changes, and tells of them.
func (m *Monitor) take(changes []health.Change) {
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
		if c.Alert {
			args = append(args, "alert", "this XID has no rule")
		}
		m.config.Log.Log(context.Background(), level, "GPU health", args...)
		if m.config.OnChange != nil {
			m.config.OnChange(c)
		}
	}
}
