package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Self names this process so that another one on the same machine can watch it: "boot/namespace/pid/start". Empty where
// the kernel does not say.
func Self() string {
	where, err := here()
	if err != nil {
		return ""
	}
	began, err := startOf(os.Getpid())
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s/%d/%d", where, os.Getpid(), began)
}

// here returns what processes that see each other by their ids share: the boot of the kernel, and the namespace.
func here() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(boot)) + "/" + namespace, nil
}

// startOf returns when a process began, in ticks since the machine did.
func startOf(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	const field = 22 - 3 // after the name, which may have spaces and ends with the last bracket
	words := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(words) <= field {
		return 0, fmt.Errorf("stat of process %d has %d fields", pid, len(words))
	}
	return strconv.ParseUint(string(words[field]), 10, 64)
}

// ErrElsewhere reports that a process cannot be watched from here.
var ErrElsewhere = errors.New("the process is of another machine or namespace")

// Watch calls ended once the process that Self names has ended, unless stop is called before. Errors: ErrElsewhere, and
// the system's. A process that has ended already is no error.
func Watch(self string, ended func()) (stop func(), err error) {
	where, err := here()
	if err != nil {
		return nil, err
	}
	rest, found := strings.CutPrefix(self, where+"/")
	id, start, both := strings.Cut(rest, "/")
	pid, wrong := strconv.Atoi(id)
	if began, bad := strconv.ParseUint(start, 10, 64); !found || !both || wrong != nil || bad != nil || pid < 1 {
		return nil, ErrElsewhere
	} else if fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err == nil {
		return watch(fd, pid, began, ended)
	} else if !errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	go ended()
	return func() {}, nil
}

// watch waits for the end of a process, unless its number is another one's by now.
func watch(fd, pid int, began uint64, ended func()) (stop func(), err error) {
	file := os.NewFile(uintptr(fd), "pidfd")
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	if now, err := startOf(pid); err != nil || now != began {
		file.Close()
		go ended()
		return func() {}, nil
	}
	go func() {
		over := false
		if err := conn.Read(func(fd uintptr) bool {
			all := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(all, 0)
			over = err == nil && n > 0
			return over
		}); err == nil && over {
			ended()
		}
	}()
	return func() { file.Close() }, nil
}
