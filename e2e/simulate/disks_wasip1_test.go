package simulate

import "testing"

// control has something become of a disk.
//
//go:wasmimport disk control
func control(disk, what uint32, arg int64)

// folder is that of a ps, on a disk of its own.
func folder(_ *testing.T, id string) string {
	path, _ := diskOf(id)
	return path + "/checkpoints"
}
