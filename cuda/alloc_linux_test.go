//go:build linux

package cuda

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// mappingFlags are the kernel's two-letter flags of the mapping that an address lies in.
func mappingFlags(t *testing.T, at uintptr) string {
	t.Helper()
	file, err := os.Open("/proc/self/smaps")
	must(t, err)
	defer file.Close()
	inside := false
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
		}
		if flags, found := strings.CutPrefix(lines.Text(), "VmFlags:"); found && inside {
			return flags
		}
	}
	return ""
}

// TestAllocIsHuge: large memory begins at a huge page, asks for such, and all of it is the caller's.
func TestAllocIsHuge(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		if b.Name() == "cuda" || b.Name() == "emu" {
			return // pinned
		}
		for _, bytes := range []int{4, 4096, hugePage - 4, hugePage, hugePage + 4, 9<<20 + 12} {
			m, err := b.Alloc(bytes / 4)
			must(t, err)
			values := m.Float32s()
			at := uintptr(unsafe.Pointer(unsafe.SliceData(values)))
			if len(values)*4 != bytes || at%64 != 0 {
				t.Errorf("%d bytes: %d values at %#x", bytes, len(values), at)
			}
			values[0], values[len(values)-1] = 1, 2
			if bytes >= hugePage {
				if at%hugePage != 0 {
					t.Errorf("%d bytes at %#x, not at a multiple of a huge page", bytes, at)
				}
				if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); errors.Is(err, os.ErrNotExist) {
					t.Log("this kernel has no transparent huge pages")
				} else if flags := mappingFlags(t, at); !strings.Contains(flags, " hg") {
					t.Errorf("%d bytes: flags %q, want hg", bytes, flags)
				}
			}
			v := m.vector(Uint8, bytes-3, 3)
			if v.Len() != 3 || v.DType() != Uint8 {
				t.Errorf("vector of %d %v", v.Len(), v.DType())
			}
			m.Free()
			m.Free()
		}
	})
}
