package trainer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// A trainer that ends without a word is named to the others within the deadline, whether tables wait for everybody or
// for nobody: the dense part waits in either.
func TestLostTrainerIsNamedWhereTablesArePooled(t *testing.T) {
	testkit.Beside(t)
	for _, tables := range []string{"", schema.ConsistencyAsync} {
		t.Run("tables "+tables, func(t *testing.T) {
			testkit.Waits(t, func(t *testing.T) {
				c := testConfig(t, startServerWith(t, ps.Config{Shards: 2, Deadline: shortDeadline}))
				job := bagJob("lost", schema.PlacementColumns, 3, 3)
				job.TableConsistency = tables
				sessions := joinAll(t, c, job)
				w := &bagToy{toy: newToy(t, job)}
				w.same = true
				dies, gone := &bagToy{toy: newToy(t, job)}, make(chan struct{})
				dies.same = true
				var died sync.WaitGroup
				dies.enterBags = func(b schema.Batch, _ lane.Lane) {
					if b == 2 {
						died.Go(sessions[1].close)
						<-gone
					}
				}
				errs := make([]error, 3)
				var all sync.WaitGroup
				for i, s := range sessions {
					if i == 1 {
						continue
					}
					all.Go(func() { errs[i] = s.Run(testContext(t), w, 20, nil) })
				}
				died.Go(func() { _ = sessions[1].Run(context.Background(), dies, 20, nil) })
				all.Wait()
				close(gone)
				died.Wait()
				for _, i := range []int{0, 2} {
					if !errors.Is(errs[i], ErrJobFailed) || !strings.Contains(errs[i].Error(), "t1") {
						t.Errorf("t%d: %v, want that the job failed by t1", i, errs[i])
					}
				}
			})
		})
	}
}
