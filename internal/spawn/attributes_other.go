//go:build unix && !linux

package spawn

import "syscall"

// attributes put a process in a group of its own, so that Ctrl-C reaches it through the caller only.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
