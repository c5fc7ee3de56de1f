package schema

// tableKeys is where a table's keys lie, and who has them.
type tableKeys struct {
	Partitioning
	owners []uint16 // by partition; of a table that is cut by columns every shard has its own (Holds)
}

// placeKeys places partitions on the shards in turn, or, where trainers add up, to these. A table that is whole on a
// shard goes there.
func (p *Placement) placeKeys() {
	p.keys = make([]tableKeys, len(p.job.Tables))
	for t := range p.job.Tables {
		spec := &p.job.Tables[t]
		p.keys[t] = tableKeys{spec.Partitioning(), make([]uint16, spec.Partitions)}
		for part := range spec.Partitions {
			owner := p.homes[t]
			switch {
			case p.betweenTrainers(Table(t)):
				owner = p.Shards + part%p.Trainers
			case p.Plan.Tables[t].Cut != CutNone:
				owner = part % p.Shards
			}
			p.keys[t].owners[part] = uint16(owner)
		}
	}
}

// OwnerOfPartition is who adds up the gradients of a table's partition. Of a table that is cut by columns every shard
// does, for its own (Holds).
func (p *Placement) OwnerOfPartition(t Table, part Partition) int { return int(p.keys[t].owners[part]) }

// OwnerOfKey is who adds up the gradients of a row. The table has the key.
func (p *Placement) OwnerOfKey(t Table, key uint64) int {
	k := &p.keys[t]
	part, _ := k.At(key)
	return int(k.owners[part])
}

// elsewhere is the position of the first of keys that the table has not, or whose row an owner has not; -1 where there
// is none.
func (p *Placement) elsewhere(t Table, keys []uint64, owner int) int {
	k := &p.keys[t]
	all := p.Plan.Tables[t].Cut.PooledByShards() // then all rows are here, or columns of them, or none
	if _, columns := p.Columns(t, owner); all && columns == 0 {
		return min(len(keys), 1) - 1
	}
	for i, key := range keys {
		if key >= k.rows {
			return i
		}
		if all {
			continue
		}
		if part, _ := k.At(key); int(k.owners[part]) != owner {
			return i
		}
	}
	return -1
}
