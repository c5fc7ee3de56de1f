package pages

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// Memory of any size is zeroed, as long as asked for, and aligned: large memory to a huge page.
func TestMemory(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 4096, 2*hugeBytes - 4, 2 * hugeBytes, 5*hugeBytes + 12} {
		b, align := Bytes(n), 64
		if n >= 2*hugeBytes {
			align = hugeBytes
		}
		if len(b) != n || cap(b) != n || n > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(align) != 0 {
			t.Errorf("%d bytes: %d at %p", n, len(b), b)
		}
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("%d bytes: byte %d is %d", n, i, b[i])
			}
			b[i] = 1 // all of it can be written
		}
		if f := Float32s(n / 4); len(f) != n/4 || len(f) > 0 && f[len(f)-1] != 0 {
			t.Errorf("%d values, want %d", len(f), n/4)
		}
	}
}

// The system has been asked for huge pages for large memory, which /proc shows as the flag hg of the mapping.
func TestLargeMemoryIsAdvised(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil {
		t.Skipf("this system has no huge pages to ask for: %v", err)
	}
	b := Bytes(8 * hugeBytes)
	b[0] = 1
	maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(os.Getpid()), "smaps"))
	if err != nil {
		t.Skipf("the mappings of this process cannot be read: %v", err)
	}
	at, within := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), false
	for line := range strings.Lines(string(maps)) {
		field, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if lo, hi, ok := strings.Cut(field, "-"); ok {
			first, err1 := strconv.ParseUint(lo, 16, 64)
			end, err2 := strconv.ParseUint(hi, 16, 64)
			within = err1 == nil && err2 == nil && first <= at && at < end
		}
		if within && field == "VmFlags:" {
			if !strings.Contains(rest, " hg") {
				t.Errorf("flags of the mapping: %s, want hg among them", rest)
			}
			return
		}
	}
	t.Error("no mapping holds the memory")
}
