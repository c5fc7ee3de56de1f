// Package mnisttest writes a small data set as files, for tests of readers.
package mnisttest

import (
	"encoding/binary"
	"testing"

	"gradbus/examples/mnist"
	"gradbus/internal/testkit"
)

// Folder writes the idx files of 24 training and 6 test images into a folder of t's own.
func Folder(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	set := mnist.Synthetic(24, 6)
	for half, s := range map[string]mnist.Set{"train": set.Train, "t10k": set.Test} {
		images := header(0x803, s.Len(), mnist.Side, mnist.Side)
		testkit.File(t, folder, half+"-images-idx3-ubyte", append(images, s.Images...))
		testkit.File(t, folder, half+"-labels-idx1-ubyte", append(header(0x801, s.Len()), s.Labels...))
	}
	return folder
}

// header returns the beginning of an idx file: a magic number, and its sizes.
func header(magic uint32, sizes ...int) []byte {
	h := binary.BigEndian.AppendUint32(nil, magic)
	for _, n := range sizes {
		h = binary.BigEndian.AppendUint32(h, uint32(n))
	}
	return h
}
