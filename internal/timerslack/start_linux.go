package timerslack

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// standard is the default slack of a process, in nanoseconds (man 2 PR_SET_TIMERSLACK).
const standard = 50_000

// Standard runs start on a thread with the kernel's own slack, so that processes which it starts have that as well:
// programs of others that are measured.
func Standard(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && before > standard && unix.Prctl(unix.PR_SET_TIMERSLACK, standard, 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0) }() // it could be set just now
	}
	return start()
}
