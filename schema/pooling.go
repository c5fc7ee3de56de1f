package schema

import "slices"

// The words of a table's placement and pooling.
const (
	PlacementRows    = "rows"    // rows are cut over the shards by their partitions; the default
	PlacementColumns = "columns" // every shard holds some columns of every row
	PlacementTables  = "tables"  // the table is whole on one shard
	PoolingSum       = "sum"     // a bag's output is the sum of its rows
	PoolingMean      = "mean"    // the same, divided by the number of the bag's keys
)

// OnShardsWhole reports whether a shard that holds anything of the table holds it of every row, so that it can pool whole
// bags: then bags go there in lookups, pooled rows come back, and gradients travel as bags.
func (t *TableSpec) OnShardsWhole() bool {
	return t.Placement == PlacementColumns || t.Placement == PlacementTables
}

// RowsAlone reports whether every trainer's contribution to tables is applied when it arrives, by itself, while dense
// gradients are averaged over all trainers.
func (j *Job) RowsAlone() bool { return j.TableConsistency == ConsistencyAsync }

// RowsAloneAhead is how many batches a trainer may be ahead of its own contributions to tables where RowsAlone: its lookups
// of the next batch may overtake them, and frames are refilled only when they have been received.
const RowsAloneAhead = 4

// RoundsAhead is how many batches a trainer may be ahead of the oldest open round of a shard.
func (j *Job) RoundsAhead() int {
	if j.RowsAlone() {
		return RowsAloneAhead
	}
	return j.Ahead
}

// RowsInStep reports whether rows of shards change from batch to batch, when all of a batch's rounds have closed, and not with
// their own round.
func (j *Job) RowsInStep() bool { return j.Consistency == ConsistencySync && !j.RowsAlone() }

// SparseAlone reports whether the sparse rounds of shards are each of one trainer.
func (j *Job) SparseAlone() bool { return j.Consistency == ConsistencyAsync || j.RowsAlone() }

// Columns is the columns [first, first+count) of a table that a shard holds: all where the table is cut by rows, none
// where it is whole on another shard. Shard k of S has columns [k*dim/S, (k+1)*dim/S), rounded down, of one that is cut by
// columns.
func (p *Placement) Columns(t Table, shard int) (first, count int) {
	spec := &p.job.Tables[t]
	switch spec.Placement {
	case PlacementColumns:
		if shard >= p.Shards {
			return 0, 0
		}
		first = shard * spec.Dim / p.Shards
		return first, (shard+1)*spec.Dim/p.Shards - first
	case PlacementTables:
		if shard != p.homes[t] {
			return 0, 0
		}
	}
	return 0, spec.Dim
}

// Holds reports whether an owner has rows of a partition, or columns of them.
func (p *Placement) Holds(t Table, part Partition, owner int) bool {
	if p.job.Tables[t].OnShardsWhole() {
		_, n := p.Columns(t, owner)
		return n > 0
	}
	return p.OwnerOfPartition(t, part) == owner
}

// LocalTables are the job's tables as an owner has them: dim is the number of columns there, and 0 where it has none.
func (p *Placement) LocalTables(owner int) []TableSpec {
	local := slices.Clone(p.job.Tables)
	for i := range local {
		_, local[i].Dim = p.Columns(Table(i), owner)
	}
	return local
}

// placeHomes deals the tables that are whole on one shard to the shards in turn.
func (p *Placement) placeHomes() {
	p.homes = make([]int, len(p.job.Tables))
	next := 0
	for i := range p.job.Tables {
		if p.job.Tables[i].Placement == PlacementTables && p.Shards > 0 {
			p.homes[i] = next % p.Shards
			next++
		}
	}
}

// pooling checks what placement and pooling of a table ask of each other and of the job.
func (c *jobCheck) pooling(j *Job, field string, t *TableSpec) {
	if t.Placement != "" {
		c.oneOf(field+".placement", t.Placement, PlacementRows, PlacementColumns, PlacementTables)
	}
	if t.Pooling != "" || t.OnShardsWhole() {
		c.oneOf(field+".pooling", t.Pooling, PoolingSum, PoolingMean)
	}
	if t.Replicated && t.OnShardsWhole() {
		c.add(field+".placement", t.Placement, "%s where every trainer keeps the table", PlacementRows)
	}
	if t.Replicated && j.RowsAlone() {
		c.add(field+".replicated", t.Replicated, "false where table_consistency is %s", ConsistencyAsync)
	}
	if t.OnShardsWhole() && j.Consistency != ConsistencySync {
		c.add(field+".placement", t.Placement, "consistency %s with it", ConsistencySync)
	}
}

// tableConsistency checks how tables are kept beside dense parameters.
func (c *jobCheck) tableConsistency(j *Job) {
	if j.TableConsistency == "" {
		return
	}
	c.oneOf("table_consistency", j.TableConsistency, ConsistencySync, ConsistencyAsync)
	if j.RowsAlone() && (j.Consistency != ConsistencySync || j.Reduce != ReduceTrainers) {
		c.add("table_consistency", j.TableConsistency, "consistency %s and reduce %s with it", ConsistencySync, ReduceTrainers)
	}
	if !j.RowsAlone() && j.Consistency != ConsistencySync {
		c.add("table_consistency", j.TableConsistency, "left out: it is that of the job, %s", j.Consistency)
	}
}

// checkPooled checks one section of an answer that has pooled rows in place of rows by key.
func checkPooled(i int, s Section, offsets int) *FrameError {
	if s.Count != 0 || offsets != 0 {
		return Refuse(ReasonWrongShape, "section %d: pooled rows with %d keys and %d offsets: want none", i, s.Count, offsets)
	}
	return nil
}

// checkBagTables checks that only those tables travel as bags that may.
func (p *Placement) checkBagTables(v *View) *FrameError {
	bags := v.Bags()
	for i, s := range v.Sections() {
		if bags[i].Count == 0 || uint64(s.Table) < uint64(len(p.job.Tables)) && p.job.Tables[s.Table].OnShardsWhole() {
			continue
		}
		if v.head.Kind != KindSparse {
			return Refuse(ReasonWrongShape, "bags of table %d: shards pool tables of placement %s or %s", s.Table, PlacementColumns, PlacementTables)
		}
		return Refuse(ReasonWrongShape, "bags: the job's sparse gradients travel as %s", SparseRows)
	}
	return nil
}
