package simulate

import (
	"testing"
	_ "unsafe" // for go:linkname
)

// control has something become of a disk.
//
//go:wasmimport disk control
func control(disk, what uint32, arg int64) uint32

// folder is that of a ps, on a disk of its own.
func folder(_ *testing.T, id string) string {
	path, _ := diskOf(id)
	return path + "/checkpoints"
}

// setClock has the goroutine that calls it, and all that this one begins from then on, read dates that are so many
// seconds off, by a clock that may be set. nil is the one that is right. host_test.go has what it does.
//
//go:linkname setClock simulate.setClock
func setClock(off *int64)
