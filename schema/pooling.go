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

// Columns is the columns [first, first+count) of a table that a shard holds: all where the table is cut by rows, none
// where it is whole on another shard. Shard k of S has columns [k*dim/S, (k+1)*dim/S), rounded down, of one that is cut
// by columns.
func (p *Placement) Columns(t Table, shard int) (first, count int) {
	spec := &p.job.Tables[t]
	switch p.Plan.Tables[t].Cut {
	case CutColumns:
		if shard >= p.Shards {
			return 0, 0
		}
		first = shard * spec.Dim / p.Shards
		return first, (shard+1)*spec.Dim/p.Shards - first
	case CutNone:
		if shard != p.homes[t] {
			return 0, 0
		}
	}
	return 0, spec.Dim
}

// Holds reports whether an owner has rows of a partition, or columns of them.
func (p *Placement) Holds(t Table, part Partition, owner int) bool {
	if p.Plan.Tables[t].Cut.PooledByShards() {
		_, n := p.Columns(t, owner)
		return n > 0
	}
	return p.OwnerOfPartition(t, part) == owner
}

// SumTables are the job's tables as the rounds of an owner see them: dim is what gradients of rows have there
// (TableSpec.SumDim), and 0 where it has no columns.
func (p *Placement) SumTables(owner int) []TableSpec {
	local := slices.Clone(p.job.Tables)
	for i := range local {
		if _, local[i].Dim = p.Columns(Table(i), owner); local[i].Dim > 0 && local[i].PerRow { // has all columns
			local[i].Dim++
		}
	}
	return local
}

// placeHomes places the tables that are whole on one shard on the shards in turn.
func (p *Placement) placeHomes() {
	p.homes = make([]int, len(p.job.Tables))
	next := 0
	for i := range p.job.Tables {
		if p.Plan.Tables[i].Cut == CutNone && p.Shards > 0 {
			p.homes[i] = next % p.Shards
			next++
		}
	}
}

// checkPooled checks one section of an answer that has pooled rows in place of rows by key.
func checkPooled(i int, s Section, offsets int) *FrameError {
	if s.Count != 0 || offsets != 0 {
		return Refuse(ReasonWrongShape, "section %d: pooled rows with %d keys and %d offsets: want none", i, s.Count, offsets)
	}
	return nil
}

// checkBagTables checks that only those tables travel as bags that may: gradients of any but those whose rows have
// their count behind them, and lookups of those that shards pool.
func (p *Placement) checkBagTables(v *View) *FrameError {
	bags := v.Bags()
	for i, s := range v.Sections() {
		known := uint64(s.Table) < uint64(len(p.job.Tables))
		switch {
		case bags[i].Count == 0:
		case v.head.Kind != KindSparse && !(known && p.Plan.Tables[s.Table].Cut.PooledByShards()):
			return Refuse(ReasonWrongShape, "bags of table %d: shards pool tables of placement %s or %s", s.Table,
				PlacementColumns, PlacementTables)
		case v.head.Kind == KindSparse && known && p.job.Tables[s.Table].PerRow:
			return Refuse(ReasonWrongShape, "bags of table %q: its rows have counts behind them", p.job.Tables[s.Table].Name)
		}
	}
	return nil
}
