package trainer

import (
	"sync"

	"gradbus/internal/planted"
	"gradbus/schema"
	"gradbus/shard/state"
)

// sharedRows is a replicated table at a version that is written down, which shards ask this trainer for: each for the
// rows in its part. Old rows are kept of those that later batches change.
type sharedRows struct {
	lock  *sync.Mutex // that of the table, which guards what follows
	rows  state.RowsCopy
	left  map[int]bool // shards that have not got all of theirs
	ended bool         // nothing is asked for any more, or old rows take too much
}

// copyRows begins to copy the tables that are asked of this trainer, which are at a version that is to be copied. Those
// that were copied for the same purpose before are not any more.
func (r *run) copyRows(wanted []int) map[schema.Table]*sharedRows {
	r.share.mu.Lock()
	for _, i := range wanted {
		for _, t := range r.share.copies[i].rows {
			t.endIf(func() bool { return true })
		}
	}
	r.share.mu.Unlock()
	if len(r.replicas.kept()) == 0 {
		return nil
	}
	all, place := map[schema.Table]*sharedRows{}, r.place.OnShards()
	for i, t := range r.replicas.tables {
		id := schema.Table(i)
		if t == nil || schema.TrainerMember(place.TableKeptBy(id)) != r.joined.Member {
			continue
		}
		shared := &sharedRows{lock: &r.replicas.locks[i], left: map[int]bool{}}
		for p := range schema.Partition(r.replicas.specs[i].Partitions) {
			if t.Left(p, 0) > 0 {
				shared.left[place.OwnerOfPartition(id, p)] = true
			}
		}
		shared.lock.Lock()
		shared.rows = t.Copy(0, true)
		if planted.Is(planted.CloseSharedRows) {
			shared.rows.Close()
		}
		shared.lock.Unlock()
		if !planted.Is(planted.SkipSharedRows) {
			all[id] = shared
		}
	}
	return all
}

// endIf gives up what is copied where a condition holds.
func (t *sharedRows) endIf(holds func() bool) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if !t.ended && holds() {
		t.ended = true
		t.rows.Close()
	}
}

// limit ends copies whose old rows take more than they may. It is called after each step.
func (s *share) limit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.copies {
		for _, t := range s.copies[i].rows {
			t.endIf(func() bool { return t.rows.Bytes() > state.CopyBytesMax })
		}
	}
}

// sharedAt is a stretch of the rows of a partition from a key on, at a version that a shard asks for. It is not known
// before the version is whole here, and nothing where the version is over and was not copied. A key behind the last one
// of the table says that the shard has got all of its rows, and is not answered.
func (s *membership) sharedAt(owner int, h *schema.Head, table schema.Table, from []uint64) (rows *state.Rows,
	known bool) {
	if int(table) >= len(s.replicas.tables) || s.replicas.tables[table] == nil || len(from) != 1 ||
		int(h.Bucket) >= s.replicas.specs[table].Partitions {
		return nil, false
	}
	v := schema.Version(h.Batch)
	known = s.newest() >= v || v < s.joined.Version // before it is looked for
	s.share.mu.Lock()
	var shared *sharedRows
	for i := range s.share.copies {
		if c := &s.share.copies[i]; c.version == v {
			shared = c.rows[table]
		}
	}
	s.share.mu.Unlock()
	if shared == nil {
		return nil, known
	}
	return shared.stretch(owner, schema.Partition(h.Bucket), from[0], s.share.pieces.ValuesMax(),
		s.replicas.specs[table].Rows)
}

// stretch answers a shard.
func (t *sharedRows) stretch(owner int, p schema.Partition, from uint64, valuesMax int, end uint64) (rows *state.Rows,
	known bool) {
	if from >= end {
		t.endIf(func() bool {
			delete(t.left, owner)
			return len(t.left) == 0
		})
		return nil, false
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.ended {
		return nil, true
	}
	r := t.rows.Stretch(p, from, valuesMax)
	return &r, true
}
