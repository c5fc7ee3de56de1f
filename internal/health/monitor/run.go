package monitor

import (
	"context"
	"fmt"
	"time"

	"gradbus/internal/health"
)

// watch is what the goroutine of a Monitor holds.
type watch struct {
	m     *Monitor
	start time.Time
	done  []bool // injections that happen once and have

	child   *child
	hung    []*child  // killed, and not ended yet
	next    time.Time // when a probe may be started
	backoff time.Duration
	last    time.Time // the driver's last word
	began   time.Time // of the present probe
	hello   bool      // it has said hello
	asked   int       // index of the GPU that was sampled last in this round; -1 at its start
	silent  bool      // the GPUs are Unknown for want of a word
	known   []int     // indices of GPUs
	none    string    // why there is no driver: faults are injected into made up GPUs; empty where there is one
	serial  uint64    // of made up polls

	unused  bool                  // the log has said that no GPU is used
	sampled map[int]time.Duration // by index: when a GPU was sampled last, from the start
}

// hungMax bounds the probes that hang in the kernel: with so many no further one is started.
const hungMax = 3

// run is the only goroutine that starts probes and feeds the machine.
func (m *Monitor) run(ctx context.Context, probe bool) {
	defer close(m.ended)
	w := &watch{m: m, start: time.Now(), done: make([]bool, len(m.config.Inject)), backoff: m.config.Backoff, asked: -1,
		sampled: map[int]time.Duration{}}
	tick := time.NewTicker(min(m.config.Every, m.config.Silence/4))
	defer tick.Stop()
	if !probe { // with faults to inject: what they are injected into is there from the beginning
		w.none = NoDriver
		w.fake(w.start)
		m.hear()
	}
	for {
		if probe {
			w.drive(time.Now())
		}
		select {
		case <-ctx.Done():
			w.lastWords()
			w.endAll()
			return
		case line, ok := <-w.lines():
			if !ok {
				w.ended(time.Now())
			} else {
				w.line(time.Now(), line)
			}
		case now := <-tick.C:
			w.injectOnce(now)
			w.fake(now)
		}
	}
}

func (w *watch) lines() <-chan *health.Line {
	if w.child == nil {
		return nil
	}
	return w.child.lines
}

// lastWords listens on for a moment where this process has used a GPU: what has ended it may be an error whose XID is
// on its way, and is to be remembered.
func (w *watch) lastWords() {
	if w.m.keeper == nil || w.child == nil || w.m.inUse() == "" {
		return
	}
	timer := time.NewTimer(w.m.config.LastWords)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case line, ok := <-w.child.lines:
			if !ok {
				return
			}
			w.line(time.Now(), line)
			if line.XID != nil {
				return
			}
		}
	}
}

// drive starts a probe where there is none, and sees to one that says nothing.
func (w *watch) drive(now time.Time) {
	c := &w.m.config
	if w.child == nil {
		w.reap()
		if now.Before(w.next) || len(w.hung) >= hungMax {
			return
		}
		child, err := startChild(c.Probe)
		if err != nil {
			w.silence(now, fmt.Sprintf("the probe cannot be started: %v", err))
			w.m.hear()
			w.later(now)
			return
		}
		w.child, w.began, w.last, w.hello, w.asked = child, now, now, false, -1
		return
	}
	quiet := now.Sub(w.last)
	if quiet >= c.Silence && !w.silent {
		w.silence(now, "the driver does not answer: "+w.where(quiet))
	}
	limit := 3 * c.Silence
	if !w.hello {
		limit = c.Patience
	}
	if quiet >= limit && !w.injected("hang", now) {
		c.Log.Warn("GPU probe killed", "pid", w.child.pid(), "reason", w.where(quiet))
		w.child.kill()
		w.hung = append(w.hung, w.child)
		w.child = nil
		w.later(now)
	}
}

// where says at what the driver hangs.
func (w *watch) where(quiet time.Duration) string {
	text := fmt.Sprintf("no word for %s", quiet.Round(time.Second))
	switch {
	case !w.hello:
		return text + " since the probe was started"
	case len(w.known) > 1:
		at := w.known[0]
		for i, index := range w.known {
			if index == w.asked && i+1 < len(w.known) {
				at = w.known[i+1]
			}
		}
		return fmt.Sprintf("%s, since it was asked about GPU %d", text, at)
	}
	return text
}

// silence makes the GPUs Unknown.
func (w *watch) silence(now time.Time, reason string) {
	w.silent = true
	w.m.change(func(machine *health.Machine) []health.Change {
		return machine.Silent(now, reason, w.injected("hang", now))
	})
	w.m.hear()
}

// later is when the next probe may be started.
func (w *watch) later(now time.Time) {
	w.next = now.Add(w.backoff)
	w.backoff = min(2*w.backoff, time.Minute)
}

// ended sees to a probe that has ended by itself, or was ended by somebody else.
func (w *watch) ended(now time.Time) {
	why := w.child.wait()
	if !w.child.none {
		w.m.config.Log.Warn("GPU probe ended", "pid", w.child.pid(), "reason", why)
		w.silence(now, why)
		w.m.hear()
	}
	if now.Sub(w.began) > time.Minute {
		w.backoff = w.m.config.Backoff
	}
	if w.child.none { // a driver that comes is found within a minute
		w.backoff = time.Minute
	}
	w.child = nil
	w.later(now)
}

// reap forgets killed probes that have ended.
func (w *watch) reap() {
	var still []*child
	for _, c := range w.hung {
		if !c.gone() {
			still = append(still, c)
		}
	}
	w.hung = still
}

// endAll ends the probe, and waits for a moment for it and those that hang.
func (w *watch) endAll() {
	if w.child != nil {
		w.child.kill()
		w.hung = append(w.hung, w.child)
	}
	deadline := time.Now().Add(time.Second)
	for _, c := range w.hung {
		c.waitUntil(deadline)
	}
}

// line takes a line of the probe.
func (w *watch) line(now time.Time, l *health.Line) {
	if w.injected("hang", now) {
		return
	}
	if l.XID != nil { // no sign that the driver answers: it comes from elsewhere
		w.m.change(func(m *health.Machine) []health.Change { return m.XID(now, l.XID) })
		return
	}
	w.last, w.silent = now, false
	switch {
	case l.Hello != nil:
		w.greet(now, l.Hello)
	case l.None != nil:
		w.nobody(now, l.None)
	case l.Sample != nil:
		w.asked = l.Sample.Index
		injected := w.alter(now, l.Sample)
		w.m.change(func(m *health.Machine) []health.Change { return m.Sample(now, l.Sample, injected) })
	case l.Poll != nil:
		w.asked = -1
		w.m.change(func(m *health.Machine) []health.Change { m.Poll(); return nil })
		w.m.hear()
	}
}

// nobody takes a probe's word that there is nothing to ask. The next probe will mostly say the same: that is no news,
// and made up GPUs do not mind.
func (w *watch) nobody(now time.Time, n *health.None) {
	w.child.none = true
	if n.Driver || n.Reason != w.none {
		w.none = ""
		if !n.Driver {
			w.none = n.Reason
		}
		w.m.config.Log.Info("no GPU is watched", "reason", n.Reason)
		w.m.change(func(m *health.Machine) []health.Change { return m.None(now, n) })
	}
	w.fake(now)
	w.m.hear()
}

// greet takes a probe's first line.
func (w *watch) greet(now time.Time, h *health.Hello) {
	w.hello, w.none = true, ""
	w.known = nil
	for _, g := range h.GPUs {
		w.known = append(w.known, g.Index)
	}
	args := []any{"driver", h.Driver, "nvml", h.NVML, "gpus", len(h.GPUs), "pid", w.child.pid()}
	if len(h.Missing) > 0 {
		args = append(args, "missing", h.Missing)
	}
	if len(h.NoXIDs) > 0 {
		args = append(args, "without_events", h.NoXIDs)
	}
	if h.Kernel != "" {
		args = append(args, "kernel_log", h.Kernel)
	}
	w.m.config.Log.Info("GPUs are watched", args...)
	if unused := w.m.config.Unused; unused != "" && len(h.GPUs) > 0 && !w.unused {
		w.unused = true
		w.m.config.Log.Info("no GPU is used", "reason", unused)
	}
	for _, in := range w.m.config.Inject {
		if in.Kind != "hang" && in.GPU >= len(h.GPUs) {
			w.m.config.Log.Error("fault cannot be injected", "inject", in.Spec, "reason",
				fmt.Sprintf("the machine has %d GPUs", len(h.GPUs)))
		}
	}
	w.m.change(func(m *health.Machine) []health.Change { return m.Hello(now, h) })
}

// injected says whether a fault of that kind is in force.
func (w *watch) injected(kind string, now time.Time) bool {
	for i := range w.m.config.Inject {
		if in := &w.m.config.Inject[i]; in.Kind == kind && in.active(now.Sub(w.start)) {
			return true
		}
	}
	return false
}

// alter makes the faults up that were in force for a sample's GPU since the sample before.
func (w *watch) alter(now time.Time, s *health.Sample) bool {
	altered := false
	all := kinds()
	from, to := w.sampled[s.Index], now.Sub(w.start)
	w.sampled[s.Index] = to
	for i := range w.m.config.Inject {
		in := &w.m.config.Inject[i]
		if k := all[in.Kind]; k.alter != nil && in.GPU == s.Index && in.touches(from, to) {
			k.alter(s, in.Value)
			altered = true
		}
	}
	return altered
}

// injectOnce makes faults up that happen at a moment.
func (w *watch) injectOnce(now time.Time) {
	for i := range w.m.config.Inject {
		in := &w.m.config.Inject[i]
		if w.done[i] || !kinds()[in.Kind].once || !in.active(now.Sub(w.start)) {
			continue
		}
		uuid := w.uuid(in.GPU)
		if uuid == "" {
			continue // not there yet
		}
		w.done[i] = true
		w.m.config.Log.Warn("fault injected", "inject", in.Spec, "gpu", uuid)
		w.m.change(func(m *health.Machine) []health.Change {
			if in.Kind == "mismatch" {
				return m.Mismatch(now, uuid, "a mismatch that was injected", true)
			}
			return m.XID(now, &health.XID{UUID: uuid, Number: in.Value, Source: health.SourceInjected})
		})
	}
}

func (w *watch) uuid(index int) string {
	for _, g := range w.m.GPUs() {
		if g.Index == index {
			return g.UUID
		}
	}
	return ""
}

// Simulated begins the name and the UUID of a GPU that is made up, for injected faults on a machine without one.
const Simulated = "SIMULATED"

// fake gives samples of made up GPUs: those that faults are injected into, on a machine without a driver.
func (w *watch) fake(now time.Time) {
	if w.none == "" || len(w.m.config.Inject) == 0 {
		return
	}
	if w.injected("hang", now) {
		if now.Sub(w.last) >= w.m.config.Silence && !w.silent {
			w.silence(now, fmt.Sprintf("the driver does not answer: no word for %s", now.Sub(w.last).Round(time.Second)))
		}
		return
	}
	w.last, w.silent = now, false
	w.serial++
	most := 0
	for _, in := range w.m.config.Inject {
		most = max(most, in.GPU)
	}
	for i := 0; i <= most; i++ {
		s := simulated(i, w.serial)
		w.alter(now, s)
		w.m.change(func(m *health.Machine) []health.Change { return m.Sample(now, s, true) })
	}
}

// simulated is a healthy sample with round figures.
func simulated(index int, serial uint64) *health.Sample {
	return &health.Sample{
		GPU: health.GPU{Index: index, UUID: fmt.Sprintf("%s-%d", Simulated, index),
			Name: Simulated + " (this machine has no GPU)", PCI: fmt.Sprintf("0000:%02x:00.0", index)},
		Temperature: ptr(60), ThermalMargin: ptr(25), Power: ptr(uint64(300000)), PowerLimit: ptr(uint64(700000)),
		Utilisation: ptr(uint64(50)),
		Energy:      ptr(serial),
		MemoryUsed:  ptr(uint64(8 << 30)), MemoryTotal: ptr(uint64(80 << 30)), SMClock: ptr(uint64(1500)),
		MemoryClock: ptr(uint64(2600)),
		Slower:      ptr(uint64(0)), RecoveryAction: ptr(uint64(0)), ECCCorrected: ptr(uint64(0)),
		ECCUncorrected: ptr(uint64(0)),
		RemapPending:   ptr(false), RemapFailed: ptr(false), PCIeReplays: ptr(uint64(0)), PCIeWidth: ptr(16),
		PCIeWidthMax: ptr(16),
	}
}
