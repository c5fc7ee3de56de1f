// Package machine describes the machine of a measurement, for the head of a benchmark's output.
//
// It reads what the operating system shows to every user. It must not know any benchmark.
package machine

import (
	"os"
	"runtime"
	"strings"
)

// Machine is where a measurement ran.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"` // that the process may use
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// This is the machine of this process.
func This() Machine {
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.NumCPU(), Kernel: runtime.GOOS, Go: runtime.Version()}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel += " " + strings.TrimSpace(string(release))
	}
	return m
}
