//go:build !amd64

package crc32c

const (
	folds        = false
	foldBytesMin = 0
)

func updateFolded(uint32, []byte) uint32 { panic("crc32c: folding on a processor that cannot") }
