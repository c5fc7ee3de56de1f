package process

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestMeterReads(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skipf("what a process takes is asked of Linux alone; this is %s", runtime.GOOS)
	}
	m := NewMeter()
	debug.FreeOSMemory() // what an earlier test took would be used again, and nothing more be resident
	before := m.Read()
	if before.ResidentBytes < 1<<20 || before.HeapBytes < 1 || before.Goroutines < 2 || before.CPUs < 1 ||
		before.CPUSeconds <= 0 {
		t.Errorf("a running process takes %+v", before)
	}
	kept := make([]byte, 64<<20)
	for i := range kept {
		kept[i] = byte(i)
	}
	runtime.GC()
	after := m.Read()
	if more := after.ResidentBytes - before.ResidentBytes; more < 60<<20 {
		t.Errorf("64 MiB more are %d bytes more", more)
	}
	if more := after.HeapBytes - before.HeapBytes; more < 60<<20 {
		t.Errorf("64 MiB more are %d bytes of heap more", more)
	}
	if after.CPUSeconds <= before.CPUSeconds {
		t.Errorf("processor time went from %v to %v", before.CPUSeconds, after.CPUSeconds)
	}
	runtime.KeepAlive(kept)
	m.Close()
	if closed := m.Read(); closed.ResidentBytes != 0 || closed.CPUSeconds <= 0 {
		t.Errorf("a closed one reads %+v", closed)
	}
}

func TestDisk(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skipf("file systems are asked of Linux alone; this is %s", runtime.GOOS)
	}
	dir := t.TempDir()
	d, err := Disk(dir)
	if err != nil || d.Device == "" || d.Path != dir || d.FreeBytes < 0 || d.TotalBytes < 1<<20 ||
		d.FreeBytes > d.TotalBytes {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := Disk(filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path that is not there has %+v, %v", d, err)
	}
}

func TestHostAndID(t *testing.T) {
	if s := HostAndID(); !strings.HasPrefix(s, Host()+" (pid ") {
		t.Errorf("%q", s)
	}
}

func BenchmarkRead(b *testing.B) {
	m := NewMeter()
	for b.Loop() {
		_ = m.Read()
	}
}

// A server has more scheduler slots than a small machine has processors; it may use no more than there are.
func TestProcessorsThereAre(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	runtime.GOMAXPROCS(runtime.NumCPU() + 3)
	if got := NewMeter().Read().CPUs; got != runtime.NumCPU() {
		t.Errorf("%d processors on a machine of %d", got, runtime.NumCPU())
	}
}
