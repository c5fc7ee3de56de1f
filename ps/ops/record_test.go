package ops

import (
	"log/slog"
	"strings"
	"testing"

	"gradbus/internal/testkit"
	"gradbus/ps/ops/overview"
)

// What goes wrong is in the log of the ps that it concerns, once when it begins and once when it is over.
func TestProblemsAreLogged(t *testing.T) {
	t.Parallel()
	log := &testkit.Text{}
	h := NewHub(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
	h.self = "p-p1"
	status := overview.Status{Server: "p1", Jobs: []overview.Job{{Name: "ours", Coordinator: "p1"}, {Name: "theirs", Coordinator: "p2"}}}
	for _, c := range []struct {
		event overview.Event
		want  string
	}{
		{overview.Event{Level: overview.Critical, Code: overview.CodeSilent, Job: "ours", Member: "t1", Text: "it waits"},
			`level=ERROR msg=problem code=trainer-silent job=ours member=t1 text="it waits"`},
		{overview.Event{Level: overview.Warning, Code: overview.CodeTrainerLost, Job: "ours", Member: "t1", Text: "without it"},
			`level=WARN msg=problem code=trainer-lost job=ours member=t1 text="without it"`},
		{overview.Event{Level: overview.OK, Code: overview.CodeSilent, Job: "ours", Member: "t1", Text: "over after 7 s"},
			`level=INFO msg="problem over" code=trainer-silent job=ours member=t1 text="over after 7 s"`},
		{overview.Event{Level: overview.Critical, Code: overview.CodeControlLost, Member: "p-p1", Text: "lost"}, `level=ERROR msg=problem code=control-lost member=p-p1 text=lost`},
		{overview.Event{Level: overview.Critical, Code: overview.CodeCoordinator, Job: "theirs", Member: "p-p2", Text: "not heard"}, `level=ERROR msg=problem code=coordinator-lost job=theirs member=p-p2 text="not heard"`},
		{overview.Event{Level: overview.Critical, Code: overview.CodeServerSilent, Member: "p-p2", Text: "not heard"}, `level=ERROR msg=problem code=server-silent member=p-p2 text="not heard"`},
		{overview.Event{Level: overview.Info, Code: overview.EventJoined, Job: "ours", Member: "t1", Text: "joined"}, ""},
		{overview.Event{Level: overview.Critical, Code: overview.CodeSilent, Job: "theirs", Member: "t1", Text: "it waits"}, ""},
		{overview.Event{Level: overview.Warning, Code: overview.CodeDiskLow, Member: "p-p2", Text: "low"}, ""},
		{overview.Event{Level: overview.Critical, Code: overview.CodeGPUUnhealthy, GPU: "GPU-1", Text: "XID 79"}, ""},
	} {
		before := log.String()
		h.record(&overview.Update{Status: status, Events: []overview.Event{c.event}})
		if got := strings.TrimSpace(strings.TrimPrefix(log.String(), before)); got != c.want {
			t.Errorf("%+v:\nlogged %s\nwant   %s", c.event, got, c.want)
		}
	}
	before := strings.Count(log.String(), "\n")
	many := make([]overview.Event, 1000)
	for i := range many {
		many[i] = overview.Event{Level: overview.Warning, Code: overview.CodeBehind, Job: "ours"}
	}
	h.record(&overview.Update{Status: status, Events: many})
	if n := strings.Count(log.String(), "\n") - before; n != recordsMax+1 {
		t.Errorf("%d records of 1000 problems at once, want %d and one that says so", n, recordsMax)
	}
}
