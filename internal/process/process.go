// Package process reads what this process is and uses: the common part of the reports of trainers and ps. A Meter reads
// its resources.
//
// A reading takes some microseconds, mostly in the kernel, and stops no goroutine: it uses getrusage, /proc/self/statm
// and runtime/metrics, which need no pause of the program. Values that a platform does not have are 0. The package
// knows the schema's ProcessReport and nothing of jobs, subjects or time.
package process

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"time"

	"gradbus/schema"
)

// Host returns the machine's name, for people. HostNames returns the machine's names: in full, and without its domain
// if it has one.
func Host() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown host"
	}
	return name
}

// HostNames are the names that the machine gives itself: in full, and without its domain where it has one.
func HostNames() []string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return nil
	}
	if short, _, long := strings.Cut(name, "."); long && short != "" {
		return []string{name, short}
	}
	return []string{name}
}

// HostAndID names this process for people: "box (pid 71)".
func HostAndID() string { return fmt.Sprintf("%s (pid %d)", Host(), os.Getpid()) }

// Meter reads the resources of this process. It keeps an open file of the kernel; not for concurrent use.
type Meter struct {
	samples [1]metrics.Sample
	memory  *os.File // nil where there is none
}

// NewMeter makes a Meter.
func NewMeter() *Meter {
	m := &Meter{memory: openMemory()}
	m.samples[0].Name = "/gc/heap/live:bytes" // that the last collection has found alive
	return m
}

// Close closes the file. A closed Meter reads a resident memory of 0. It may be called again, and on nil.
func (m *Meter) Close() {
	if m != nil && m.memory != nil {
		_ = m.memory.Close() // it was only read
	}
}

// Read returns the current resources of the process.
func (m *Meter) Read() schema.ProcessReport {
	metrics.Read(m.samples[:])
	heap := int64(0)
	if v := m.samples[0].Value; v.Kind() == metrics.KindUint64 {
		heap = int64(v.Uint64())
	}
	return schema.ProcessReport{
		CPUSeconds: schema.Real(cpuSeconds()), ResidentBytes: residentBytes(m.memory), HeapBytes: heap,
		Goroutines: runtime.NumGoroutine(), CPUs: min(runtime.GOMAXPROCS(0), runtime.NumCPU()),
	}
}

// Clock is the kernel's state of its clock.
type Clock struct {
	Known        bool // the rest is known
	Synchronised bool
	ErrorMax     time.Duration
}
