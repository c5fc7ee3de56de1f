package schema

import "math/bits"

// Partitioning is where the keys of a table lie: each in a partition, at a position, as PartitionOf says. It goes both
// ways, and keeps nothing of the keys. Positions of a partition rise with its keys and have no gaps. The groups that
// are whole give each partition a row; a last one of r keys gives one more to r of them. It is read only, and for keys
// that the table has.
//
//	p, at := partitioning.At(65)    // of 64 partitions: 22, 1
//	key := partitioning.Key(22, 1)  // 65
type Partitioning struct {
	rows, partitions uint64
	inverse          uint64 // 2^63/partitions, rounded up: see group
}

// Partitioning is that of the table's keys.
func (t *TableSpec) Partitioning() Partitioning {
	p := uint64(t.Partitions)
	return Partitioning{rows: t.Rows, partitions: p, inverse: (1<<63 + p - 1) / p}
}

// group is key div partitions. The product is less than key/2^63 above the quotient, and only 1/partitions would
// matter: keys are below 2^40 and partitions below 2^16.
func (p *Partitioning) group(key uint64) uint64 {
	high, _ := bits.Mul64(key<<1, p.inverse)
	return high
}

// At is the partition of a key, and its position there.
func (p *Partitioning) At(key uint64) (Partition, uint64) {
	group := p.group(key)
	return Partition(p.wrapped(key - (group+1)*p.partitions + rotation(group, p.partitions))), group
}

// Key is the key at a position of a partition.
func (p *Partitioning) Key(part Partition, position uint64) uint64 {
	return position*p.partitions + p.within(uint64(part), position)
}

// within is which key of a group is in a partition.
func (p *Partitioning) within(part, group uint64) uint64 {
	return p.wrapped(part - rotation(group, p.partitions))
}

// wrapped adds partitions to a number that is negative, without a branch, which would be guessed wrong half of the
// time.
func (p *Partitioning) wrapped(i uint64) uint64 { return i + p.partitions&uint64(int64(i)>>63) }

// Rows is how many keys a partition has.
func (p *Partitioning) Rows(part Partition) uint64 {
	whole := p.rows / p.partitions
	if p.within(uint64(part), whole) < p.rows%p.partitions {
		return whole + 1
	}
	return whole
}

// From is the position of a partition's first key from a cursor on, or Rows where there is none.
func (p *Partitioning) From(part Partition, cursor uint64) uint64 {
	if cursor >= p.rows {
		return p.Rows(part)
	}
	group := p.group(cursor)
	if group*p.partitions+p.within(uint64(part), group) < cursor {
		group++
	}
	return min(group, p.Rows(part))
}
