package ops

import (
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

const slowRequest = "GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"

// memory is what the process holds in live objects and stacks.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A thousand clients that never read hold a bounded piece of memory each, however many updates are made meanwhile, and
// neither the status nor a client that does read waits for them.
func TestThousandSlowClients(t *testing.T) { // not parallel: it measures the process
	const updates = 200
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	clients := int(min(1000, (files.Cur-200)/2)) // both ends are here
	// more than the kernel's buffers take, so that each client stands still in its first
	const updateBytes = 512 << 10
	s := start(t, func(c *Config) {
		c.limits.streamsMax, c.limits.connectionsMax, c.limits.streamTime = clients+1, clients+10, time.Hour
	})
	s.tracker.mu.Lock()
	s.tracker.status.Why.Text = strings.Repeat("x", updateBytes)
	s.tracker.mu.Unlock()
	s.tick(t)
	before := memory()
	var slow []net.Conn
	for range clients {
		slow = append(slow, s.dial(t, slowRequest))
	}
	eventually(t, "all are clients", func() bool { return s.Stats().Streams == clients })
	reader := s.open(t)
	reader.next(t)
	waiting := memory()
	for range updates {
		s.tick(t)
	}
	last := s.hub.Status().Serial
	for reader.next(t).Status.Serial < last {
	}
	after := memory()
	t.Logf("%d clients hold %d KiB each; %d updates of %d KiB later %d KiB each", clients,
		(waiting-before)/int64(clients)/1024, updates, updateBytes>>10, (after-before)/int64(clients)/1024)
	if each := (after - before) / int64(clients); each > 64<<10 {
		t.Errorf("each client holds %d bytes", each)
	}
	// What they hold of updates is one that all share, or a few where they came at different times.
	if grown := after - waiting; grown > 10*updateBytes {
		t.Errorf("%d updates made memory grow by %d bytes", updates, grown)
	}
	if n := s.Stats(); n.Streams != clients+1 || n.OverviewFaults > 0 {
		t.Errorf("%+v", n)
	}
	s.Close() // ends all at once
	for _, c := range slow {
		c.Close()
	}
}

// A client that takes nothing for longer than its time is cut off, and makes room.
func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) { c.limits.streamTime = 100 * time.Millisecond })
	s.tracker.mu.Lock()
	s.tracker.status.Why.Text = strings.Repeat("x", 1<<20)
	s.tracker.mu.Unlock()
	s.tick(t)
	for range 20 {
		s.dial(t, slowRequest)
	}
	eventually(t, "all have asked", func() bool { return s.Stats().Requests >= 20 })
	eventually(t, "all are cut off", func() bool { return s.Stats().Streams == 0 && s.Stats().Connections == 0 })
}
