package main

import (
	"io"
	"strings"
	"testing"
)

// Doctor takes a password of NATS from a file, and never from its command line, where others see it.
func TestDoctorTakesNoPasswordOnItsCommandLine(t *testing.T) {
	t.Parallel()
	c := command()
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	c.SetArgs([]string{"doctor", "--gpu", "off", "--nats", "nats://ann:secret@127.0.0.1:1"})
	err := c.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "for --config, as nats: ADDRESS") ||
		strings.Contains(err.Error(), "secret@") {
		t.Errorf("error %v", err)
	}
}
