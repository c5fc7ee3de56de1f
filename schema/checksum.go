package schema

import (
	"encoding/binary"

	"gradbus/schema/crc32c"
)

// sealedZeros stands in for sequence and checksum. Read only.
var sealedZeros [afterSealed - sequenceAt]byte

// checksum is the CRC-32C of a frame whose head is at pos, with the head's sequence and checksum taken as zero, and
// with that of the sequence on top: a frame may be numbered, and numbered again, after it was sealed, without another
// pass.
func checksum(data []byte, pos int) uint32 {
	sum := crc32c.Update(0, data[:pos+sequenceAt])
	sum = crc32c.Update(sum, sealedZeros[:])
	return crc32c.Update(sum, data[pos+afterSealed:]) ^ numberSum(data[pos+sequenceAt:])
}

// numberSum is what a sequence number adds to a checksum: the CRC-32C of its eight bytes, less that of eight zeros, so
// that number 0 adds nothing. A number that was changed on the way would otherwise mark another frame as received,
// which would then never be taken.
func numberSum(sequence []byte) uint32 {
	const zeros = 0x8c28b28a // the CRC-32C of eight zero bytes
	return crc32c.Update(0, sequence[:8]) ^ zeros
}

// number writes a sequence number into a frame whose head is at pos, and into its checksum.
func number(data []byte, pos int, sequence Sequence) {
	le, at := binary.LittleEndian, data[pos+sequenceAt:]
	sum := le.Uint32(data[pos+checksumAt:]) ^ numberSum(at)
	le.PutUint64(at, uint64(sequence))
	le.PutUint32(data[pos+checksumAt:], sum^numberSum(at))
}

// Envelope gives fabric the only field of a frame that it needs. Both methods may be called on frames that Verify or
// Seal returned, while no other goroutine writes to them.
type Envelope struct{}

// Sequence is sequenceOf in the form that fabric asks for.
func (Envelope) Sequence(frame []byte) (uint64, bool) {
	s, ok := sequenceOf(frame)
	return uint64(s), ok
}

// SetSequence numbers one of the caller's own frames. It panics where that is not a frame, which is a defect.
func (Envelope) SetSequence(frame []byte, sequence uint64) {
	if !SetSequence(frame, Sequence(sequence)) {
		panic("schema: sequence set on bytes that are not a frame")
	}
}

// sequenceOf reads the sequence number of a frame, and is false where the bytes cannot be one. It checks no more than
// it needs, so any bytes may be given; only Verify says that the frame is whole.
func sequenceOf(frame []byte) (Sequence, bool) {
	pos, ok := headAt(frame)
	if !ok {
		return 0, false
	}
	return Sequence(binary.LittleEndian.Uint64(frame[pos+sequenceAt:])), true
}

// SetSequence writes the sequence number of a frame in place and leaves its checksum valid. It is false, with nothing
// written, where the bytes cannot be a frame.
func SetSequence(frame []byte, sequence Sequence) bool {
	pos, ok := headAt(frame)
	if ok {
		number(frame, pos, sequence)
	}
	return ok
}
