//go:build !linux

package process

import (
	"errors"
	"fmt"
	"os"

	"gradbus/schema"
)

func cpuSeconds() float64 { return 0 }

func openMemory() *os.File { return nil }

func residentBytes(*os.File) int64 { return 0 }

// Disk is the file system under a path, which is asked of Linux alone.
func Disk(path string) (schema.DiskReport, error) {
	return schema.DiskReport{}, fmt.Errorf("file system under %s: %w", path, errors.ErrUnsupported)
}

// ReadClock knows no way to ask.
func ReadClock() Clock { return Clock{} }
