package schema

import (
	"math/rand/v2"
	"testing"
)

// shapes are tables of any size: the least ones all, and random ones up to the largest.
func shapes() (all []TableSpec) {
	for partitions := 1; partitions <= 9; partitions++ {
		for rows := range uint64(40) {
			all = append(all, TableSpec{Rows: 1 + rows, Partitions: partitions})
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		all = append(all, TableSpec{Rows: 1 + r.Uint64()>>(24+r.IntN(40)), Partitions: 1 + r.IntN(partitionsMax)>>r.IntN(17)})
	}
	most := TableSpec{Rows: tableRowsMax, Partitions: partitionsMax}
	return append(all, most, TableSpec{Rows: tableRowsMax, Partitions: 1})
}

// Each key is at a place of its own, where PartitionOf says; places have no gaps, rise with keys, and lead back to
// them.
func TestPartitioning(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, spec := range shapes() {
		p, rows := spec.Partitioning(), uint64(0)
		for part := range Partition(spec.Partitions) {
			n := p.Rows(part)
			if whole := spec.Rows / uint64(spec.Partitions); n != whole && n != whole+1 {
				t.Fatalf("%d rows in %d partitions: %d are in partition %d", spec.Rows, spec.Partitions, n, part)
			}
			rows += n
		}
		if rows != spec.Rows {
			t.Fatalf("%d rows in %d partitions have %d places", spec.Rows, spec.Partitions, rows)
		}
		for i := range uint64(100) {
			key := r.Uint64N(spec.Rows)
			if i < 2 {
				key = (spec.Rows - 1) * i // the ends
			}
			part, at := p.At(key)
			right := part == PartitionOf(key, spec.Partitions) && at == key/uint64(spec.Partitions) && at < p.Rows(part)
			if !right || p.Key(part, at) != key {
				t.Fatalf("%d rows in %d partitions: key %d is at %d of partition %d, where key %d is",
					spec.Rows, spec.Partitions, key, at, part, p.Key(part, at))
			}
			if at > 0 && p.Key(part, at-1) >= key {
				t.Fatalf("%d rows in %d partitions: key %d is behind key %d",
					spec.Rows, spec.Partitions, key, p.Key(part, at-1))
			}
		}
	}
}

// From goes on behind whatever key was read last, as counting does.
func TestPartitioningFrom(t *testing.T) {
	for _, spec := range shapes() {
		if spec.Rows > 40 {
			continue
		}
		p := spec.Partitioning()
		for part := range Partition(spec.Partitions) {
			below := uint64(0)
			for cursor := range spec.Rows + 70 {
				if got := p.From(part, cursor); got != below {
					t.Fatalf("%d rows in %d partitions: from key %d on partition %d begins at %d, want %d",
						spec.Rows, spec.Partitions, cursor, part, got, below)
				}
				if cursor < spec.Rows && PartitionOf(cursor, spec.Partitions) == part {
					below++
				}
			}
		}
	}
}
