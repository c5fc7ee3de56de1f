package spawn

import "syscall"

// attributes put a process in a group of its own, so that Ctrl-C reaches it through the caller only, and have the
// kernel kill it when the caller dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
