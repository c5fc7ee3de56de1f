package crc32c

import (
	"encoding/binary"
	"hash/crc32"
	"unsafe"

	"golang.org/x/sys/cpu"
)

const (
	blockBytes   = 64             // of one register
	foldBytesMin = 2048           // below it the ends cost more than folding saves
	strideBytes  = 4 * blockBytes // that the control loop takes at once
)

// folds says that this processor can. Read only.
var folds = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VPCLMULQDQ

// keys are the multipliers of a block: by how far it moves on, low half first. Read only.
var keys = [4]uint64{
	power(8*strideBytes + 32), power(8*strideBytes - 32), // to the block one stride on
	power(8*blockBytes + 32), power(8*blockBytes - 32), // to the next block
}

// power is x^n modulo the polynomial, with its bits reversed as the CRC's are, and one place up, as the carry-less
// product of two reversed numbers comes out one place low.
func power(n int) uint64 {
	const polynomial = 0x82f63b78 // 0x1edc6f41 reversed
	r := uint32(1 << 31)
	for range n {
		r = r>>1 ^ polynomial&-(r&1)
	}
	return uint64(r) << 1
}

// fold writes to state 64 bytes with the remainder of state xor the first 64 bytes of data, and what follows them.
// blocks is the number of 64-byte blocks in data, at least 4. The processor must have what folds asks for.
//
//go:noescape
func fold(state *[blockBytes]byte, data *byte, blocks int, keys *[4]uint64)

// updateFolded is Update for at least foldBytesMin bytes.
func updateFolded(sum uint32, data []byte) uint32 {
	if before := int(-uintptr(unsafe.Pointer(&data[0])) % blockBytes); before > 0 { // aligned reads are faster
		sum, data = crc32.Update(sum, castagnoli, data[:before]), data[before:]
	}
	var state [blockBytes]byte
	binary.LittleEndian.PutUint32(state[:], ^sum)
	blocks := len(data) / blockBytes
	fold(&state, &data[0], blocks, &keys)
	register := uint32(0) // the library would have state escape: an allocation a frame
	for _, b := range state {
		register = castagnoli[byte(register)^b] ^ register>>8
	}
	return crc32.Update(^register, castagnoli, data[blocks*blockBytes:])
}
