package trainer

import (
	"context"
	"errors"
	"fmt"

	"gradbus/fabric"
	"gradbus/schema"
)

// Tables whose contributions are applied one by one (table_consistency async) have no results to wait for: a batch is
// complete when its dense rounds are. So the rows of the next batch are asked for as soon as this one's gradients have left,
// while the dense gradients are still being added up; the answer may or may not have what this trainer has just sent.

// waitedFor are the owners whose sparse rounds a batch waits for.
func waitedFor(plan *schema.Plan, sparse []rowOwner) []rowOwner {
	if plan.AsyncTables {
		return nil
	}
	return sparse
}

// hold makes what goes to shards wait for letGo, so that a shard gets a batch's rows and the lookups of the next in one read.
func (r *run) hold() {
	if !r.place.Plan.AsyncTables {
		return
	}
	for _, d := range r.servers {
		if d.peer == "" {
			d.conn.Hold()
		}
	}
}

func (r *run) letGo() (err error) {
	if !r.place.Plan.AsyncTables {
		return nil
	}
	for _, d := range r.servers {
		if d.peer != "" {
			continue
		}
		if e := d.conn.Release(); e != nil && !errors.Is(e, fabric.ErrLost) {
			err = e
		}
	}
	return err
}

// fetchNext waits for the rows of the batch that begins.
func (r *run) fetchNext(ctx context.Context, b schema.Batch) error {
	if !r.asked {
		return r.fetch(ctx, r.lookups, b)
	}
	r.asked = false
	return r.answered(ctx, r.lookups, b)
}

// applied tells a shard's window that the shard has this trainer's contributions up to those of batch b: the answer to a lookup
// of batch asked said so, which spares an ack.
func (s *Session) applied(shard int, asked, b schema.Batch) {
	l := s.links[shard]
	if b+schema.Batch(len(l.marks)) <= asked {
		return // long received, and its mark is gone
	}
	if err := l.outbox.Received(l.marks[int(b)%len(l.marks)]); err != nil {
		s.fail(fmt.Errorf("answer from %s: %w", l.member, err))
	}
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
