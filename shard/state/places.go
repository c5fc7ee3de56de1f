package state

import (
	"sort"

	"gradbus/schema"
)

// places say where the rows of a table's keys lie: one partition that is here after the other, and in each by position,
// so that keys ascend. They take 8 bytes a partition, and nothing for keys. Read only once made.
type places struct {
	keys schema.Partitioning
	// first is the first place of each partition, where one without rows here has that of the next one, and at the end the
	// number of rows.
	first []int
}

// newPlaces lays out the partitions of a table that are here.
func newPlaces(spec *schema.TableSpec, here func(schema.Partition) bool) places {
	l := places{keys: spec.Partitioning(), first: make([]int, spec.Partitions+1)}
	for p := range spec.Partitions {
		l.first[p+1] = l.first[p]
		if here(schema.Partition(p)) {
			l.first[p+1] += int(l.keys.Rows(schema.Partition(p)))
		}
	}
	return l
}

// count is how many rows are here.
func (l *places) count() int { return l.first[len(l.first)-1] }

// has says whether the row of a key of the table is here.
func (l *places) has(key uint64) bool {
	p, _ := l.keys.At(key)
	return l.first[p] < l.first[p+1]
}

// find writes the places of keys that are here to to, which is as long.
func (l *places) find(keys []uint64, to []int64) {
	for i, key := range keys {
		p, at := l.keys.At(key)
		to[i] = int64(l.first[p]) + int64(at)
	}
}

// partition is the one that a place is in.
func (l *places) partition(at int) schema.Partition {
	return schema.Partition(sort.Search(len(l.first)-1, func(p int) bool { return l.first[p+1] > at }))
}

// key is that of the row at a place.
func (l *places) key(at int) uint64 {
	p := l.partition(at)
	return l.keys.Key(p, uint64(at-l.first[p]))
}

// list writes the keys of rows of a partition, from a place on, to keys.
func (l *places) list(p schema.Partition, at int, keys []uint64) {
	for i := range keys {
		keys[i] = l.keys.Key(p, uint64(at+i-l.first[p]))
	}
}

// from is the places of a partition from a key on; none where it is not here.
func (l *places) from(p schema.Partition, cursor uint64) (first, end int) {
	return min(l.first[p]+int(l.keys.From(p, cursor)), l.first[p+1]), l.first[p+1]
}
