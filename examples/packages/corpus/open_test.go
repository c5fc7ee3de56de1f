//go:build unix

package corpus

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A named pipe that nobody writes to does not outlast ctx, neither while it is opened nor while it is read.
func TestPipeEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Load(stopped, path); !errors.Is(err, context.Canceled) {
		t.Errorf("opening: %v, want %v", err, context.Canceled)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	loaded := make(chan error, 1)
	go func() {
		_, err := Load(ctx, path)
		loaded <- err
	}()
	w, err := os.OpenFile(path, os.O_WRONLY, 0) // returns when somebody reads
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cancel()
	if err := <-loaded; err == nil {
		t.Error("loaded from a pipe that nobody wrote to")
	}
}
