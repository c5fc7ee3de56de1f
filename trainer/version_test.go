package trainer

import (
	"bytes"
	"encoding/binary"
	"testing"

	"gradbus/fabric"
	"gradbus/schema"
)

// A server whose frames are of another wire version is no server that does not answer: the trainer says which version
// is there.
func TestOtherWireVersionIsNamed(t *testing.T) {
	frame, err := schema.EncodeControl(schema.Head{Lanes: 1},
		schema.Control{Refused: &schema.Refused{Reason: schema.RefusedBusy, Text: "later"}})
	if err != nil {
		t.Fatal(err)
	}
	version := bytes.Index(frame, []byte("GBUS")) + 4
	binary.LittleEndian.PutUint16(frame[version:], schema.WireVersion+1)
	j := &joiner{answers: make(chan schema.Control, 1)}
	j.receive(fabric.Message{Data: frame})
	select {
	case c := <-j.answers:
		checkError(t, refusedError(c.Refused), ErrRefused, "unknown_version", "version 2: this program speaks 1",
			"equal versions")
	default:
		t.Error("the frame was passed over: the join would end with no answer")
	}
}
