package trainer

import (
	"context"
	"fmt"

	"gradbus/schema"
)

// Tables whose contributions are applied one by one (table_consistency async) have no results to wait for: a batch is
// complete when its dense rounds are. So the rows of the next batch are asked for as soon as this one's gradients have left,
// while the dense gradients are still being added up; the answer may or may not have what this trainer has just sent.

// waitedFor are the owners whose sparse rounds a batch waits for.
func waitedFor(job *schema.Job, sparse []rowOwner) []rowOwner {
	if job.RowsAlone() {
		return nil
	}
	return sparse
}

// prepareNextBatch prepares a batch while the results of the one before are under way.
func (r *run) prepareNextBatch(b schema.Batch) error {
	if err := r.prepare(b); err != nil || !r.job.RowsAlone() {
		return err
	}
	r.asked = true
	return r.askFor(r.lookups, b)
}

// fetchNext waits for the rows of the batch that begins.
func (r *run) fetchNext(ctx context.Context, b schema.Batch) error {
	if !r.asked {
		return r.fetch(ctx, r.lookups, b)
	}
	r.asked = false
	return r.answered(ctx, r.lookups, b)
}

// settleRows waits until shards have received, and so applied, every contribution to tables that no result speaks of.
func (s *Session) settleRows(ctx context.Context) error {
	for _, l := range s.links {
		if !l.alone {
			continue
		}
		if err := l.outbox.Drained(ctx); err != nil {
			return fmt.Errorf("wait for %s to take the last rows: %w", l.member, err)
		}
	}
	return nil
}
