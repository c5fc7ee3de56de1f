package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gradbus/schema"
)

// cpuSeconds is the processor time of all threads, in user and system.
func cpuSeconds() float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return float64(r.Utime.Sec+r.Stime.Sec) + float64(r.Utime.Usec+r.Stime.Usec)*1e-6
}

// openMemory is the file that says how much memory is in place, or nil. To open it takes longer than to read it.
func openMemory() *os.File {
	file, err := os.Open("/proc/self/statm")
	if err != nil {
		return nil
	}
	return file
}

// residentBytes is the memory that is in place: the second word of statm, in pages.
func residentBytes(statm *os.File) int64 {
	var text [256]byte // seven numbers of at most 20 digits
	n, err := statm.ReadAt(text[:], 0)
	if err != nil && !errors.Is(err, io.EOF) { // also where there is no file
		return 0
	}
	words := bytes.Fields(text[:n])
	if len(words) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(words[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// Disk is the file system under a path. Free is what a user without privileges may still write. It may hang where the
// file system does, and fails where the path is not there or cannot be asked.
func Disk(path string) (d schema.DiskReport, err error) {
	var s syscall.Statfs_t
	var file syscall.Stat_t
	if err := again(func() error { return syscall.Statfs(path, &s) }); err != nil {
		return d, fmt.Errorf("file system under %s: %w", path, err)
	}
	if err := again(func() error { return syscall.Stat(path, &file) }); err != nil {
		return d, fmt.Errorf("file system under %s: %w", path, err)
	}
	block := s.Frsize // of the counts, where the file system tells both; Bsize is what it likes to be given at once
	if block == 0 {
		block = s.Bsize
	}
	return schema.DiskReport{Path: path, FreeBytes: int64(s.Bavail) * block, TotalBytes: int64(s.Blocks) * block,
		Device: fmt.Sprintf("%d:%d", unix.Major(file.Dev), unix.Minor(file.Dev))}, nil
}

// again repeats a call that a signal interrupted.
func again(call func() error) (err error) {
	for {
		if err = call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// ReadClock asks the kernel about its clock, without changing anything.
func ReadClock() Clock {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return Clock{}
	}
	return Clock{Known: true, Synchronised: state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0,
		ErrorMax: time.Duration(t.Maxerror) * time.Microsecond}
}
