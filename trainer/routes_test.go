package trainer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// Whoever adds up, a trainer that lives and sends nothing ends the job within the deadline, by its name.
func TestSilentTrainerIsNamedOnEveryRoute(t *testing.T) {
	server := startServerWith(t, ps.Config{Shards: 1, Deadline: shortDeadline})
	for _, route := range []string{"shards, tables replicated", "trainers, tables replicated",
		"trainers, tables by shards", "shards, tables by trainers"} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			at := 0
			for routes[at].name != route {
				at++
			}
			job := routeJob(fmt.Sprintf("silent-%d", at), at, 2, 4)
			sessions := joinAll(t, testConfig(t, server), job)
			ctx, cancel := context.WithCancel(testContext(t))
			w := newToy(t, job)
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
		})
	}
}
