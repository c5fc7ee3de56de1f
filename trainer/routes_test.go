package trainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// A trainer that evaluates for longer than the deadline, while its heartbeats continue, ends nothing: its loss would
// end the job. The other one logs its name.
func TestEvaluationOutlastsTheDeadline(t *testing.T) {
	testkit.Waits(t, func(t *testing.T) {
		server := startServerWith(t, ps.Config{Shards: 1, Deadline: shortDeadline})
		job := toyJob("evaluates", 2, 2, schema.ApplyUpdate)
		config := testConfig(t, server)
		var logged testkit.Text
		config.Log = slog.New(slog.NewTextHandler(&logged, nil))
		w := newToy(t, job)
		var evaluates sync.Once
		w.enter = func(b schema.Batch, l lane.Lane) {
			if b > 0 && l == 1 { // t1 computes it
				evaluates.Do(func() { time.Sleep(2 * shortDeadline) })
			}
		}
		for i, err := range runAll(testContext(t), joinAll(t, config, job), w, 5) {
			if err != nil {
				t.Errorf("t%d: %v", i, err)
			}
		}
		if text := logged.String(); !strings.Contains(text, `msg="batch waits for a trainer"`) ||
			!strings.Contains(text, "waits_for=t1") || strings.Contains(text, "waits_for=t0") {
			t.Errorf("the trainers logged %s, want that a batch waits for t1", text)
		}
	})
}

// Whoever adds up, a trainer that lives and sends nothing ends the job within the deadline, by its name.
func TestSilentTrainerIsNamedOnEveryRoute(t *testing.T) {
	testkit.Beside(t)
	for _, route := range []string{"shards, tables replicated", "trainers, tables replicated",
		"trainers, tables by shards"} {
		t.Run(route, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { silentTrainerIsNamed(t, route) }) })
	}
}

func silentTrainerIsNamed(t *testing.T, route string) {
	server := startServerWith(t, ps.Config{Shards: 1, Deadline: shortDeadline, StallTimeout: shortDeadline})
	at := 0
	for routes[at].name != route {
		at++
	}
	sessions := joinAll(t, testConfig(t, server), routeJob(fmt.Sprintf("silent-%d", at), at, 2, 4))
	ctx, cancel := context.WithCancel(testContext(t))
	w := newToy(t, sessions[0].Job())
	w.enter = func(b schema.Batch, l lane.Lane) {
		if b == 2 && l == 2 { // t1 computes it
			<-ctx.Done()
		}
	}
	failed := make(chan error, 1)
	go func() {
		failed <- sessions[0].Run(ctx, w, 5, nil)
		cancel()
	}()
	_ = sessions[1].Run(ctx, w, 5, nil)
	err := <-failed
	if !errors.Is(err, ErrJobFailed) || !strings.Contains(err.Error(), "trainer t1") ||
		!strings.Contains(err.Error(), "alive but sends no gradients") {
		t.Errorf("t0: %v, want that t1 is alive but sends no gradients", err)
	}
}
