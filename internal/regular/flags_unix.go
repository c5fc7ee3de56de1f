//go:build unix

package regular

import (
	"os"
	"syscall"
)

// openFlags open without waiting for the writer of a pipe, and without making a terminal the process's own.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
