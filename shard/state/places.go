package state

import (
	"context"
	"fmt"
	"math"
	"sort"

	"gradbus/schema"
)

// absent marks a key whose partition is elsewhere. Places are 32 bits, so a table has fewer than 2^32-1 rows.
const absent = math.MaxUint32

// RowsMax bounds an array table by what places and keys of 32 bits can name.
const RowsMax = math.MaxUint32 - 1

// lookEvery is after how many keys, or values of rows, work on a table looks whether it is still wanted.
const lookEvery = 1 << 12

// Places say where the rows of an array table's keys lie: one partition that is here after the other, keys ascending within
// each. A key takes 4 bytes, and 4 more where its row is here. Read only once made.
//
// Invariant: keys[places[k]] == k for every key k that is here, and places[k] == absent for every other.
type Places struct {
	partitions []partition // that are here, ascending
	places     []uint32    // by key
	keys       []uint32    // by place
}

// partition is the places [first, end) of one partition.
type partition struct {
	id         schema.Partition
	first, end int
}

// NewPlaces lays out the partitions of a table that are here, unless ctx ends before.
func NewPlaces(ctx context.Context, spec *schema.TableSpec, here func(schema.Partition) bool) (*Places, error) {
	if spec.Rows > RowsMax {
		return nil, fmt.Errorf("%d rows: want at most %d", spec.Rows, uint64(RowsMax))
	}
	l, counts := &Places{}, make([]int, spec.Partitions)
	for key := range spec.Rows {
		if key%lookEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		counts[schema.PartitionOf(key, spec.Partitions)]++
	}
	next, total := make([]int, spec.Partitions), 0
	for p, n := range counts {
		next[p] = -1
		if here(schema.Partition(p)) {
			l.partitions = append(l.partitions, partition{schema.Partition(p), total, total + n})
			next[p] = total
			total += n
		}
	}
	l.places, l.keys = make([]uint32, spec.Rows), make([]uint32, total)
	for key := range spec.Rows {
		if key%lookEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p := schema.PartitionOf(key, spec.Partitions)
		if next[p] < 0 {
			l.places[key] = absent
			continue
		}
		l.places[key], l.keys[next[p]] = uint32(next[p]), uint32(key)
		next[p]++
	}
	return l, nil
}

// Rows is how many rows are here.
func (l *Places) Rows() int { return len(l.keys) }

// Missing is the position of the first key whose row is not here, or -1. In nil Places nothing is.
func (l *Places) Missing(keys []uint64) int {
	if l == nil {
		return min(len(keys), 1) - 1
	}
	for i, key := range keys {
		if key >= uint64(len(l.places)) || l.places[key] == absent {
			return i
		}
	}
	return -1
}

// from is the places of a partition from a key on; none where it is not here.
func (l *Places) from(id schema.Partition, cursor uint64) (first, end int, here bool) {
	for _, p := range l.partitions {
		if p.id == id {
			keys := l.keys[p.first:p.end]
			return p.first + sort.Search(len(keys), func(i int) bool { return uint64(keys[i]) >= cursor }), p.end, true
		}
	}
	return 0, 0, false
}
