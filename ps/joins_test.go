package ps

import (
	"log/slog"
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

// A flood of messages, which the desk reads before each tick, does not keep it from what the registry has found out: who waits for that
// is answered.
func TestFloodLeavesRoomForClaims(t *testing.T) {
	s := &Server{log: slog.New(slog.DiscardHandler), registry: &registry{results: make(chan claim, 1), news: make(chan registryNews, 1)}}
	d := newDesk(s)
	refusal, err := schema.EncodeRefusal(schema.Head{}, schema.ReasonDamaged, "x")
	must(t, err)
	for range 10 {
		d.receive(fabric.NewMessage(fabric.At("flood", "t0", fabric.KindCtl, string(schema.Coordinator)).String(), refusal))
	}
	d.waiting["wanted"], d.joins = []letter{{job: "wanted", from: "j-a"}}, 1
	s.registry.results <- claim{job: smallJob("wanted", 1, 1), err: fabric.ErrLost}
	s.registry.news <- registryNews{}
	d.readAll(t.Context())
	if len(d.letters)+len(s.registry.news) > 0 || d.joins > 0 {
		t.Errorf("%d letters, %d joins and %d looks wait, want that all are read", len(d.letters), d.joins, len(s.registry.news))
	}
}
