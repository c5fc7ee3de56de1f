package ps

import (
	"strings"
	"testing"

	"gradbus/fabric"
	"gradbus/schema"
)

// A job that comes when a ps was killed, and its announcement has not run out, is admitted without that ps as soon as it has. Until then
// who joins is told which ps may be dead.
func TestNewJobBesideADeadServer(t *testing.T) {
	t.Parallel()
	control := startControl(t, fabric.ServerConfig{})
	a := mustStart(t, Config{NATS: control.URL(), ID: "a"})
	b := mustStart(t, Config{NATS: control.URL(), ID: "b", Shards: 2})
	kill(b)
	l := newLetters(t, control.URL(), smallJob("new", 1, 1), "j-a")
	for busy := false; ; {
		c := l.hear("an answer", func(c schema.Control) bool { return c.Refused != nil || c.Joined != nil || c.Failed != nil })
		if r := c.Refused; r != nil && r.Reason == schema.RefusedBusy && strings.Contains(r.Text, "ps b") && strings.Contains(r.Text, "dead") {
			busy = true
			continue
		}
		if j := c.Joined; j == nil || len(j.Servers) != 1 || j.Servers[0].ID != "a" || !busy {
			t.Errorf("%+v %+v %+v, want that it is put off, then joined, on a alone", c.Joined, c.Refused, c.Failed)
		}
		break
	}
	eventually(t, "the job that had been registered first is free", func() bool { return a.Stats().Memory == JobBytes(a.config, l.job, 1) })
}
