package ops

import (
	"log/slog"
	"strings"
	"testing"

	"gradbus/internal/testkit"
	"gradbus/ps/ops/status"
)

// What goes wrong is in the log of the ps that it concerns, once when it begins and once when it is over.
func TestProblemsAreLogged(t *testing.T) {
	t.Parallel()
	log := &testkit.Text{}
	h := NewHub(
		slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
	h.self = "p-p1"
	view := status.Status{Server: "p1",
		Jobs: []status.Job{{Name: "ours", Coordinator: "p1"}, {Name: "theirs", Coordinator: "p2"}}}
	for _, c := range []struct {
		event status.Event
		want  string
	}{
		{status.Event{Level: status.Critical, Code: status.CodeSilent, Job: "ours", Member: "t1", Text: "it waits"},
			`level=ERROR msg=problem code=trainer-silent job=ours member=t1 text="it waits"`},
		{status.Event{Level: status.Warning, Code: status.CodeTrainerLost, Job: "ours", Member: "t1", Text: "without it"},
			`level=WARN msg=problem code=trainer-lost job=ours member=t1 text="without it"`},
		{status.Event{Level: status.OK, Code: status.CodeSilent, Job: "ours", Member: "t1", Text: "over after 7 s"},
			`level=INFO msg="problem over" code=trainer-silent job=ours member=t1 text="over after 7 s"`},
		{status.Event{Level: status.Critical, Code: status.CodeControlLost, Member: "p-p1", Text: "lost"},
			`level=ERROR msg=problem code=control-lost member=p-p1 text=lost`},
		{status.Event{Level: status.Critical, Code: status.CodeCoordinator, Job: "theirs", Member: "p-p2", Text: "not heard"},
			`level=ERROR msg=problem code=coordinator-lost job=theirs member=p-p2 text="not heard"`},
		{status.Event{Level: status.Critical, Code: status.CodeServerSilent, Member: "p-p2", Text: "not heard"},
			`level=ERROR msg=problem code=server-silent member=p-p2 text="not heard"`},
		{status.Event{Level: status.Info, Code: status.EventJoined, Job: "ours", Member: "t1", Text: "joined"}, ""},
		{status.Event{Level: status.Critical, Code: status.CodeSilent, Job: "theirs", Member: "t1", Text: "it waits"}, ""},
		{status.Event{Level: status.Warning, Code: status.CodeDiskLow, Member: "p-p2", Text: "low"}, ""},
		{status.Event{Level: status.Critical, Code: status.CodeGPUUnhealthy, GPU: "GPU-1", Text: "XID 79"}, ""},
	} {
		before := log.String()
		h.record(&status.Update{Status: view, Events: []status.Event{c.event}})
		if got := strings.TrimSpace(strings.TrimPrefix(log.String(), before)); got != c.want {
			t.Errorf("%+v:\nlogged %s\nwant   %s", c.event, got, c.want)
		}
	}
	before := strings.Count(log.String(), "\n")
	many := make([]status.Event, 1000)
	for i := range many {
		many[i] = status.Event{Level: status.Warning, Code: status.CodeRefusals, Job: "ours"}
	}
	h.record(&status.Update{Status: view, Events: many})
	if n := strings.Count(log.String(), "\n") - before; n != recordsMax+1 {
		t.Errorf("%d records of 1000 problems at once, want %d and one that says so", n, recordsMax)
	}
}
