//go:build cgo && linux

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
)

// ours says whether a process belongs to gradbus: it is the one that started the probe, or its program lies beside the
// probe's. known is false where the process cannot be seen.
func ours(pid, parent int) (mine, known bool) {
	if pid == parent && parent != 0 || pid == os.Getpid() {
		return true, true
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return false, false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil { // of another user, who does not run our jobs
		return false, true
	}
	own, err := os.Executable()
	return err == nil && filepath.Dir(theirs) == filepath.Dir(own), true
}
