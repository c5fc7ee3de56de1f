//go:build cgo

package timerslack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryThread holds that all threads of a program have it, also the monitor, which Go starts before main.
func TestEveryThread(t *testing.T) {
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %q, %v: want this one and the monitor at least", threads, err)
	}
	for _, path := range threads {
		id := filepath.Base(path)
		text, err := os.ReadFile("/proc/" + id + "/timerslack_ns")
		if errors.Is(err, fs.ErrPermission) {
			t.Skip("only a process with CAP_SYS_NICE may ask for the slack of another thread")
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if got := strings.TrimSpace(string(text)); err != nil || got != "1000000" {
			t.Errorf("thread %s has %q ns of slack, %v; want 1000000", id, got, err)
		}
	}
}
