package schema

import (
	"strings"
	"testing"
)

// A text for people that is too long is cut when it is written: a reader would refuse the whole message, and never
// learn that its job has failed.
func TestLongTextsAreCut(t *testing.T) {
	for _, long := range []string{strings.Repeat("x", 2*TextBytesMax), strings.Repeat("\xff", TextBytesMax)} {
		for _, c := range []Control{
			{Join: &Join{Job: &Job{Name: "x"}, Host: long}},
			{Refused: &Refused{Reason: "job_differs", Field: long, Have: long, Want: long, Text: long}},
			{Leave: &Leave{Reason: long}},
			{Ended: &Ended{Member: "t1", Text: "trainer t1: " + long}},
		} {
			frame, err := EncodeControl(Head{}, c)
			if err != nil {
				t.Fatal(err)
			}
			v, err := Verify(frame, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeControl(&v)
			if err != nil {
				t.Errorf("%s: %v", c.Name(), err)
			}
			if c.Ended != nil && (got.Ended == nil || !strings.HasPrefix(got.Ended.Text, "trainer t1: ")) {
				t.Errorf("%s: the beginning is lost", c.Name())
			}
		}
	}
	if f := (&Ended{Text: strings.Repeat("x", 2*TextBytesMax)}); true {
		if _, err := EncodeControl(Head{}, Control{Ended: f}); err != nil || len(f.Text) != 2*TextBytesMax {
			t.Errorf("the caller's message was changed: %v", err)
		}
	}
}
