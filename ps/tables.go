package ps

import (
	"context"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/state"
)

// makeTables lays out every table's partitions that are here and draws their initial rows.
func (s *Shard) makeTables(ctx context.Context) error {
	s.tables, s.places = make([]state.Table, len(s.job.Tables)), make([]*state.Places, len(s.job.Tables))
	for i := range s.job.Tables {
		if err := s.makeTable(ctx, schema.Table(i), &s.job.Tables[i]); err != nil {
			return fmt.Errorf("table %q: %w", s.job.Tables[i].Name, err)
		}
	}
	return nil
}

func (s *Shard) makeTable(ctx context.Context, id schema.Table, spec *schema.TableSpec) (err error) {
	column, columns := s.place.Columns(id, s.index)
	if columns == 0 {
		return nil
	}
	places, err := state.NewPlaces(ctx, spec, func(p schema.Partition) bool { return s.place.Holds(id, p, s.index) })
	if err != nil || places.Rows() == 0 {
		return err
	}
	if s.places[id] = places; spec.Replicated {
		return nil // its rows are the trainers'; here it is only known whose they add up to
	}
	t, err := state.NewArray(ctx, state.ArrayConfig{Backend: s.backend, Spec: spec, Optimizer: s.job.OptimizerOf(id), LR: &s.lr, Seed: s.job.Seed,
		Places: places, Column: column, Columns: columns, Start: s.job.StartVersion()})
	if err == nil {
		s.tables[id] = t
	}
	return err
}

// commitRows moves every table to the version of the next batch.
func (s *Shard) commitRows() {
	for _, t := range s.tables {
		if t != nil {
			t.Commit()
		}
	}
}

// checkSections checks that the tables of a frame exist, that their rows are as wide as the frame says and that every key
// is on this shard. It does for sparse frames and lookups what Placement.CheckFrame does, by the index of slots instead
// of a hash of every key: 1300 keys take 1 us instead of 20. Order and lengths are schema.Verify's. It returns how many
// values the rows have, or those of the bags; with sums they are gradients.
func (s *Shard) checkSections(v *schema.View, sums bool) (values int, refused *refusal) {
	for _, part := range v.Parts() {
		if int(part.Table) >= len(s.job.Tables) {
			return 0, schema.Refuse(schema.ReasonUnknownTable, "table %d: job %s has %d tables", part.Table, s.job.Name, len(s.job.Tables))
		}
		_, dim := s.place.Columns(part.Table, s.index)
		if sums && s.job.Tables[part.Table].PerRow {
			dim++
		}
		if part.Dim != dim {
			return 0, schema.Refuse(schema.ReasonWrongShape, "rows of %d values for table %q: want %d", part.Dim, s.job.Tables[part.Table].Name, dim)
		}
		if r := s.checkKeys(part.Table, part.Keys); r != nil {
			return 0, r
		}
		rows := len(part.Keys)
		if part.Bags > 0 {
			rows = part.Bags
		}
		values += rows * part.Dim
	}
	return values, nil
}

func (s *Shard) checkKeys(id schema.Table, keys []uint64) *refusal {
	at, spec := s.places[id].Missing(keys), &s.job.Tables[id]
	if at < 0 {
		return nil
	}
	if key := keys[at]; key < spec.Rows {
		return schema.Refuse(schema.ReasonUnknownKey, "key %d of table %q: its partition %d is not on %s",
			key, spec.Name, schema.PartitionOf(key, spec.Partitions), s.member)
	}
	return schema.Refuse(schema.ReasonUnknownKey, "key %d of table %q: it has keys 0 to %d", keys[at], spec.Name, spec.Rows-1)
}
