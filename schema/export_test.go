package schema

import (
	"encoding/binary"
	"testing"
)

// What the tests in package schema_test use of this package's own.

var (
	Describe = describe
	HexText  = hexText
	Rewrite  = rewrite
)

const SampleRun = sampleRun

// WithoutSpeaks is a frame as it would be if control messages did not say who has sent them, which changes with every
// change of the protocol.
func WithoutSpeaks(t *testing.T, frame []byte) []byte {
	t.Helper()
	v, err := Verify(frame, Limits{})
	if err != nil || v.Head().Kind != KindControl {
		return frame
	}
	c, err := DecodeControl(&v)
	if err != nil {
		t.Fatal(err)
	}
	if frame, err = encodeBody(KindControl, v.Head(), c); err != nil {
		t.Fatal(err)
	}
	return frame
}

// WithRun is a copy of a frame as it would be in another run of its job.
func WithRun(t *testing.T, frame []byte, run RunID) []byte {
	t.Helper()
	frame = append(alignedBytes(len(frame))[:0], frame...)
	pos, ok := headAt(frame)
	if !ok {
		t.Fatal("not a frame")
	}
	h := readHead(frame, pos)
	if h.Job != 0 { // who joins does not know it yet
		h.Job = run
	}
	writeHead(frame, pos, h)
	binary.LittleEndian.PutUint32(frame[pos+checksumAt:], checksum(frame, pos))
	return frame
}
