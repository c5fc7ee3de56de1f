package trainer

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"gradbus/fabric"
	"gradbus/internal/client"
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
		checkError(t, refusedBy(c.Refused), &Refused{}, "unknown_version", "wire version 2",
			schema.ThisProgram().String()+" speaks 1", "equal versions")
	default:
		t.Error("the frame was passed over: the join would end with no answer")
	}
}

// A ps of another version is told apart from none: whatever form its answer has, both versions are named.
func TestOtherVersionsAreNamed(t *testing.T) {
	control := func(body string) []byte {
		f, err := schema.NewFrame(schema.Layout{Kind: schema.KindControl, Body: len(body)})
		if err != nil {
			t.Fatal(err)
		}
		copy(f.Body(), body)
		return f.Seal()
	}
	refusal := func(r schema.Reason, text string) []byte { return schema.EncodeRefusal(schema.Head{}, r, text) }
	for _, c := range []struct {
		name   string
		answer []byte
		want   string // empty: it is no answer
	}{
		{"a ps from before fingerprints", refusal(schema.ReasonMalformed, `control: json: unknown field "speaks"`),
			schema.ThisProgram().String() + " does not speak with " + schema.OlderProgram + ", which the ps is: update the ps"},
		{"another malformed message", refusal(schema.ReasonMalformed, "control join: no job"), ""},
		{"a job that is not there", refusal(schema.ReasonJobUnknown, "it has ended"), ""},
		{"a ps of a later version", control(`{"refused":{"reason":"unknown_version","text":"gradbus 7 does not speak"}}`),
			"gradbus 7 does not speak"},
		{"a word of a later version", control(`{"speaks":{"version":"7.8.9","fingerprint":"ab"},"joined":{"new":1}}`),
			"does not speak with gradbus 7.8.9 (protocol ab), which sent joined: update the older one"},
	} {
		got, ok := client.Answer(c.answer)
		if ok != (c.want != "") {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
			continue
		}
		if r := got.Refused; ok && (r == nil || r.Reason != "unknown_version" || !strings.Contains(r.Text, c.want)) {
			t.Errorf("%s: %+v, want a refusal saying %q", c.name, got.Refused, c.want)
		}
	}
}
