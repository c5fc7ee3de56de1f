package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The files of addresses are removed; what was named instead of a file, such as a device, stays.
func TestRemovePorts(t *testing.T) {
	file, pipe := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "pipe")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f := flags{portFile: pipe}
	f.page.portFile = file
	f.removePorts()
	if _, err := os.Lstat(file); err == nil {
		t.Error("the file is there")
	}
	if _, err := os.Lstat(pipe); err != nil {
		t.Error("the pipe is gone:", err)
	}
}
