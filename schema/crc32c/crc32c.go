package crc32c

import "hash/crc32"

// castagnoli is the table with which the standard library computes, by instruction on amd64 and arm64. Read-only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Update adds bytes to a checksum: Update(0, data) is the CRC-32C of data, and Update(Update(0, a), b) that of a and b.
//
//	crc32c.Update(0, []byte("123456789")) == 0xe3069283
func Update(sum uint32, data []byte) uint32 {
	if folds && len(data) >= foldBytesMin {
		return updateFolded(sum, data)
	}
	return crc32.Update(sum, castagnoli, data)
}
