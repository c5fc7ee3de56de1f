package process

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

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

// residentBytes is the memory that is in place: the second word of statm, in pages.
func residentBytes() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	words := bytes.Fields(text)
	if len(words) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(words[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// Disk is the file system under a path; false where it cannot be asked. Free is what a user without privileges may still write.
func Disk(path string) (schema.DiskPulse, bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return schema.DiskPulse{}, false
	}
	return schema.DiskPulse{Path: path, FreeBytes: int64(s.Bavail) * s.Bsize, TotalBytes: int64(s.Blocks) * s.Bsize}, true
}
