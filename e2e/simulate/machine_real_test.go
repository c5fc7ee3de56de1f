//go:build !wasip1

package simulate

import (
	"path/filepath"
	"testing"
)

// control has nothing become of real disks.
func control(uint32, uint32, int64) uint32 { return 0 }

// folder is that of a ps, on this machine's disk.
func folder(t *testing.T, id string) string { return filepath.Join(t.TempDir(), id) }

// setClock has no effect: real clocks stay as they are.
func setClock(*int64) {}
