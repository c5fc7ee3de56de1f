//go:build !linux

package process

import "gradbus/schema"

func cpuSeconds() float64 { return 0 }

func residentBytes() int64 { return 0 }

// Disk is the file system under a path; false where it cannot be asked.
func Disk(string) (schema.DiskPulse, bool) { return schema.DiskPulse{}, false }
