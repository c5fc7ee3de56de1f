package tap

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
)

// golden is a frame of the protocol's documentation.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../../schema/testdata/v1/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func subject(t *testing.T, text string) fabric.Subject {
	t.Helper()
	s, err := fabric.ParseSubject("gradbus.v1." + text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 250_000_000, time.UTC)

// Lines of the documented frames, as people read them.
func TestLines(t *testing.T) {
	for _, c := range []struct {
		frame, subject string
		want           string
	}{
		{"dense", "demo.t1.dense.s0.7.2",
			"12:00:00.250000 demo t1 > s0 dense batch 7 bucket 2 chunk 2/2 3 float32 140 B ok"},
		{"dense-bfloat16", "demo.t1.dense.s0.7.2",
			"12:00:00.250000 demo t1 > s0 dense batch 7 bucket 2 chunk 2/2 3 bfloat16 134 B ok"},
		{"dense-float16", "demo.t1.dense.s0.7.2",
			"12:00:00.250000 demo t1 > s0 dense batch 7 bucket 2 chunk 2/2 3 float16 134 B ok"},
		{"lookup", "demo.t1.lookup.s0.7", "12:00:00.250000 demo t1 > s0 lookup batch 7"},
		{"ack", "demo.s0.ack.t1", "12:00:00.250000 demo s0 > t1 ack"},
		{"pull", "demo.t1.pull.s0", "12:00:00.250000 demo t1 > s0 pull batch 7"},
		{"control", "demo.t1.ctl.coord", "12:00:00.250000 demo t1 > coord ctl"},
		{"forward", "demo.t1.module.s0.net", "12:00:00.250000 demo t1 > s0 module (forward) net"},
	} {
		f := Read(noon, subject(t, c.subject), golden(t, c.frame))
		if got := f.String(); !f.OK || !strings.HasPrefix(got, c.want) || strings.HasPrefix(c.frame, "dense") &&
			got != c.want {
			t.Errorf("%s: %q, want %q", c.frame, got, c.want)
		}
	}
}

// What is wrong with a frame is said, and nothing of it is shown.
func TestBadFrames(t *testing.T) {
	whole := golden(t, "dense")
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   string
	}{
		"value":   {func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, "BAD damaged: checksum"},
		"half":    {func(b []byte) []byte { return b[:len(b)/2] }, "BAD malformed"},
		"empty":   {func([]byte) []byte { return nil }, "0 B BAD malformed"},
		"version": {func(b []byte) []byte { b[36]++; return b }, "BAD unknown_version: wire version 2"},
		"text":    {func([]byte) []byte { return []byte("hello, world") }, "BAD malformed"},
	} {
		f := Read(noon, subject(t, "demo.t1.dense.s0.7.2"), c.change(append([]byte(nil), whole...)))
		if got := f.String(); f.OK || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// One object for a program.
func TestJSON(t *testing.T) {
	f := Read(noon, subject(t, "demo.t1.dense.s0.7.2"), golden(t, "dense"))
	line, err := json.Marshal(&f)
	want := `{"time":"2026-01-02T12:00:00.25Z","job":"demo","from":"t1","kind":"dense","to":"s0","batch":7,"bucket":2,"bytes":140,"ok":true,` +
		`"is":"dense","chunk":1,"chunks":2,"dtype":"float32","count":3}`
	if err != nil || string(line) != want {
		t.Errorf("%s, %v, want\n%s", line, err, want)
	}
}
