package gpu

import (
	"testing"
	"time"
)

// Probes that hang in the kernel, where nothing can kill them, do not pile up: with three of them no further one is
// started, until one has ended.
func TestHungProbesAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	m := &Monitor{config: Config{Probe: []string{"/nonexistent/probe"}}.withDefaults(), hear: func() {}}
	m.machine = New(m.config.Expected)
	w := &watch{m: m, start: now}
	for range hungMax {
		w.hung = append(w.hung, &child{ended: make(chan struct{})})
	}
	if w.drive(now); m.Unavailable() != "" {
		t.Errorf("a further one was to be started: %s", m.Unavailable())
	}
	close(w.hung[1].ended)
	if w.drive(now); m.Unavailable() == "" || len(w.hung) != hungMax-1 {
		t.Errorf("none is started although one has ended; %d hang", len(w.hung))
	}
}
