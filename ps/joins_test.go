package ps

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// A job that comes when a ps was killed, and its lease has not run out, is admitted without that ps as soon as it has.
// Until then who joins is told which ps may be dead.
func TestNewJobBesideADeadServer(t *testing.T) {
	t.Parallel()
	control := startControl(t, fabric.ServerConfig{})
	a := mustStart(t, Config{NATS: control.URL(), ID: "a"})
	b := mustStart(t, Config{NATS: control.URL(), ID: "b", Shards: 2})
	kill(b)
	c := newControlClient(t, control.URL(), shardtest.SmallJob("new", 1, 1), "j-a")
	for busy := false; ; {
		c := c.hear("an answer", func(c schema.Control) bool {
			return c.Refused != nil || c.Joined != nil ||
				c.Ended != nil
		})
		if r := c.Refused; r != nil && r.Reason == schema.RefusedBusy && strings.Contains(r.Text, "ps b") &&
			strings.Contains(r.Text, "dead") {
			busy = true
			continue
		}
		if j := c.Joined; j == nil || len(j.Servers) != 1 || j.Servers[0].ID != "a" || !busy {
			t.Errorf("%+v %+v %+v, want that it is put off, then joined, on a alone", c.Joined, c.Refused, c.Ended)
		}
		break
	}
	eventually(t, "the job that had been registered first is free",
		func() bool { return a.Stats().Memory == JobBytes(a.config, c.job, 1) })
}

// A flood of messages, which the control loop reads before each tick, does not keep it from what the registry has found
// out: who waits for that is answered.
func TestFloodLeavesRoomForAcquisitions(t *testing.T) {
	s := &Server{log: slog.New(slog.DiscardHandler),
		registry: &registry{results: make(chan acquisition, 1), news: make(chan registryNews, 1)}}
	l := newControlLoop(s)
	refusal := schema.EncodeRefusal(schema.Head{}, schema.ReasonDamaged, "x")
	for range 10 {
		l.inbox.receive(fabric.NewMessage(fabric.At("flood", "t0", fabric.KindCtl, string(schema.Coordinator)).String(), refusal))
	}
	l.jobs["wanted"] = &job{name: "wanted", waiting: []*message{{job: "wanted", from: "j-a",
		control: &schema.Control{Join: &schema.Join{}}}}}
	s.registry.results <- acquisition{job: shardtest.SmallJob("wanted", 1, 1), err: fabric.ErrLost}
	s.registry.news <- registryNews{}
	l.readAll(t.Context())
	joins, _ := l.jobs.waiting()
	if len(l.inbox.messages)+len(s.registry.news) > 0 || joins > 0 {
		t.Errorf("%d messages, %d joins and %d looks wait, want that all are read", len(l.inbox.messages), joins,
			len(s.registry.news))
	}
}

// A state that is to change illegally ends its job, and the log has both states. The loop and other jobs continue.
func TestIllegalTransitionEndsTheJob(t *testing.T) {
	var logged bytes.Buffer
	s := &Server{log: slog.New(slog.NewTextHandler(&logged, nil)), registry: &registry{results: make(chan acquisition, 1)}}
	l := newControlLoop(s)
	l.jobs["other"], l.jobs["ended"] = &job{name: "other"}, &job{name: "ended", state: coordinator.Ended}
	s.registry.results <- acquisition{job: shardtest.SmallJob("ended", 1, 1)}
	ticker, ask := time.NewTicker(time.Hour), time.NewTimer(time.Hour)
	defer ticker.Stop()
	if !l.turn(t.Context(), ticker, ask) || l.jobs["ended"] != nil || l.jobs["other"] == nil ||
		!strings.Contains(logged.String(), "from ended to ended") || !strings.Contains(logged.String(), "job=ended") {
		t.Errorf("the loop has the jobs %v and logs %q, want that one has ended", l.jobs, logged.String())
	}
}
