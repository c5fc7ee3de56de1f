package trainer

import (
	"strings"
	"testing"

	"gradbus/ps"
	"gradbus/schema"
)

// A program that names no backend gets one, and one that names hardly anything of its job gets the usual rest. The
// session ends its own backend, and leaves that of others alone.
func TestJoinWithDefaults(t *testing.T) {
	ctx := testContext(t)
	server, err := ps.Start(ctx, ps.Config{}, ps.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	job := &schema.Job{Name: "short", Parameters: []schema.Parameter{{Name: "p", Shape: []int{2}, Init: schema.Zeros()}}}
	session, err := Join(ctx, Config{Server: server.URL(), Bus: busOf(server.URL())}, job)
	if err != nil {
		t.Fatal(err)
	}
	if got := session.Job(); got.Lanes != 8 || got.Workload != "short" || job.Lanes != 0 {
		t.Errorf("%+v of %+v", got, job)
	}
	own := session.opened == session.Backend()
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	if !own || session.opened != nil {
		t.Errorf("the session does not own the backend it opened, or has not closed it")
	}
	if err := (Config{}).Validate(); err != nil || !strings.HasSuffix(Config{}.withDefaults().Server, "127.0.0.1:4222") {
		t.Errorf("a Config that says nothing: %v", err)
	}
}
