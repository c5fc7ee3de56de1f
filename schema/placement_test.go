package schema

import (
	"reflect"
	"slices"
	"testing"
)

const mib = 1 << 20 / 4 // elements

func placementJob(elements ...int) *Job {
	j := &Job{ChunkBytes: 256 << 10, Lanes: 4}
	for _, n := range elements {
		j.Parameters = append(j.Parameters, Parameter{Shape: []int{n}})
	}
	return j
}

func TestBucketsLiteral(t *testing.T) {
	for _, c := range []struct {
		name       string
		parameters []int
		want       [][]Span
	}{
		{"none", nil, nil},
		{"reversed", []int{10, 20}, [][]Span{{{1, 0, 0, 0, 20}, {0, 0, 0, 20, 10}}}},
		{"first bucket is small", []int{5, mib - 1, 1},
			[][]Span{{{2, 0, 0, 0, 1}, {1, 0, 0, 1, mib - 1}}, {{0, 0, 1, 0, 5}}}},
		{"a parameter is not cut", []int{mib, 1}, [][]Span{{{1, 0, 0, 0, 1}}, {{0, 0, 1, 0, mib}}}},
		{"unless it is large", []int{7, 27 * mib}, [][]Span{
			{{1, 0, 0, 0, mib}}, {{1, mib, 1, 0, 25 * mib}}, {{1, 26 * mib, 2, 0, mib}, {0, 0, 2, mib, 7}},
		}},
		{"exactly full", []int{1, 26 * mib}, [][]Span{{{1, 0, 0, 0, mib}}, {{1, mib, 1, 0, 25 * mib}}, {{0, 0, 2, 0, 1}}}},
	} {
		p := NewPlacement(placementJob(c.parameters...), 2)
		var got [][]Span
		for i, b := range p.Buckets {
			if b.ID != Bucket(i) {
				t.Errorf("%s: bucket %d has id %d", c.name, i, b.ID)
			}
			got = append(got, b.Spans)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Every element of every parameter lies in one place, and every element of a bucket is one parameter's.
func TestSpansCoverEveryElementOnce(t *testing.T) {
	sizes := []int{3, 2 * mib, 1, 30 * mib, mib, mib, 60 * mib, 5}
	p := NewPlacement(placementJob(sizes...), 3)
	total := 0
	for i, n := range sizes {
		next := 0
		for _, s := range p.Spans(i) {
			if s.Parameter != i || s.From != next || s.Elements < 1 {
				t.Fatalf("span %+v of parameter %d: want it to start at %d", s, i, next)
			}
			next += s.Elements
		}
		if next != n {
			t.Errorf("spans cover %d of %d elements of parameter %d", next, n, i)
		}
		total += n
	}
	for _, b := range p.Buckets {
		next := 0
		for _, s := range b.Spans {
			if s.bucket != b.ID || s.Offset != next {
				t.Fatalf("span %+v of bucket %d: want it at %d", s, b.ID, next)
			}
			next += s.Elements
		}
		if next != b.Elements || next > p.elementsMax(int(b.ID)) || next == 0 {
			t.Errorf("bucket %d has %d elements, its spans %d", b.ID, b.Elements, next)
		}
		total -= b.Elements
		next = 0
		for c := range p.Chunks(b.ID) {
			offset, elements := p.ChunkRange(b.ID, Chunk(c))
			if offset != next || elements < 1 || elements > 65536 {
				t.Fatalf("chunk %d of bucket %d is %d elements at %d", c, b.ID, elements, offset)
			}
			next += elements
		}
		if next != b.Elements {
			t.Errorf("chunks cover %d of %d elements of bucket %d", next, b.Elements, b.ID)
		}
	}
	if total != 0 {
		t.Errorf("buckets lack %d elements", total)
	}
}

func TestPlacementOfTables(t *testing.T) {
	j := placementJob(8)
	j.Tables = []TableSpec{{Rows: 100, Dim: 64, Partitions: 64}, {Rows: 100, Dim: 100, Partitions: 3}}
	p := NewPlacement(j, 2)
	if p.SparseBucket(0) != 1 || p.SparseBucket(1) != 2 || p.OwnerOfChunk(2, 0) != 1 || p.IsDense(1) || !p.known(2) ||
		p.known(3) {
		t.Error("sparse buckets are not those after the dense one")
	}
	if p.OwnerOfPartition(0, 63) != 1 || p.OwnerOfPartition(1, 2) != 0 {
		t.Error("partition is not placed modulo shards")
	}
	for key := range uint64(100) {
		if got, want := p.OwnerOfKey(1, key), int(PartitionOf(key, 3))%2; got != want {
			t.Fatalf("key %d is on shard %d, want %d", key, got, want)
		}
	}
}

// The placement of keys is part of the protocol: these are the values of docs/protocol.md.
func TestPartitionOfLiteral(t *testing.T) {
	for key, want := range map[uint64]Partition{0: 0, 1: 1, 63: 63, 64: 21, 65: 22, 128: 54, 191: 53, 1<<40 - 1: 20,
		1<<64 - 1: 11} {
		if got := PartitionOf(key, 64); got != want {
			t.Errorf("key %d is in partition %d of 64, want %d", key, got, want)
		}
	}
	for p, want := range [][]uint64{{0, 5, 7, 9}, {1, 3, 8}, {2, 4, 6}} {
		if got, _ := rowsOf(TableSpec{Rows: 10, Dim: 1, Partitions: 3}, Partition(p), make([]float32, 10)); !slices.Equal(got,
			want) {
			t.Errorf("partition %d of 3 has keys %v, want %v", p, got, want)
		}
	}
}

// Where trainers reduce, chunks are spread over them, and partitions of replicated tables go to them in turn; other
// tables stay on shards.
func TestPlacementBetweenTrainers(t *testing.T) {
	j := placementJob(26*mib, 3) // 1 MiB and 25 MiB in chunks of 256 KiB: 4, 100, and 1 with the 3 values
	j.Reduce, j.Trainers = ReduceTrainers, 3
	j.Tables = []TableSpec{{Rows: 10, Dim: 1, Partitions: 8}, {Rows: 10, Dim: 1, Partitions: 8, Replicated: true}}
	p := NewPlacement(j, 2)
	if p.Owners() != 5 || p.Owner(1) != "s1" || p.Owner(2) != "t0" || p.Owner(4) != "t2" {
		t.Fatalf("%d owners, the third being %s", p.Owners(), p.Owner(2))
	}
	for owner, want := range []int{0, 0, 35, 35, 35} {
		if got := len(p.OwnedChunks(owner)); got != want {
			t.Errorf("%s has %d chunks, want %d", p.Owner(owner), got, want)
		}
	}
	for part := range Partition(8) {
		if p.OwnerOfPartition(0, part) != int(part)%2 || p.OwnerOfPartition(1, part) != 2+int(part)%3 {
			t.Errorf("partition %d is on %s and %s", part, p.Owner(p.OwnerOfPartition(0, part)),
				p.Owner(p.OwnerOfPartition(1, part)))
		}
	}
	sparse := Bucket(len(p.Buckets))
	if p.SparseBucket(2) != sparse+2 || p.OwnerOfChunk(sparse+4, 7) != 4 || !p.known(sparse+4) || p.known(sparse+5) {
		t.Error("sparse buckets are not those of the owners in turn")
	}
	if !p.HasRows(0) || !p.HasRows(4) || !j.NeedsShards() {
		t.Error("each kind of owner has rows, and shards are needed")
	}
	j.Tables = j.Tables[1:]
	if p = NewPlacement(j, 0); p.Owners() != 3 || p.Owner(0) != "t0" || !p.HasRows(0) || j.NeedsShards() {
		t.Error("a job whose tables are all replicated needs no shard")
	}
	j.Tables = nil
	if p = NewPlacement(j, 0); p.HasRows(0) || j.NeedsShards() {
		t.Error("a job without tables has rows")
	}
}

// Dense gradients and those of each replicated table go their own ways.
func TestPlacementOfRoutes(t *testing.T) {
	for _, c := range []struct {
		dense, table     string
		shards, trainers bool // have something to add up
	}{
		{ReduceShards, "", true, false},
		{ReduceShards, ReduceTrainers, true, true},
		{ReduceTrainers, ReduceShards, true, true},
		{ReduceTrainers, "", false, true},
	} {
		j := placementJob(2*mib, 3)
		j.Reduce, j.Trainers = c.dense, 2
		j.Tables = []TableSpec{{Rows: 10, Dim: 1, Partitions: 8, Replicated: true, Reduce: c.table}}
		if p := j.Plan(); p.Reduces(ByShards) != c.shards || p.Reduces(ByTrainers) != c.trainers {
			t.Errorf("%+v: on shards %v, between trainers %v", c, p.Reduces(ByShards), p.Reduces(ByTrainers))
		}
		p := NewPlacement(j, 3)
		denseOwner, rowsOwner := 2, 2 // of chunk 0 of bucket 1 and of partition 5, where shards add up
		if c.dense == ReduceTrainers {
			denseOwner = 4 // of two trainers
		}
		if p.Plan.Tables[0].Reducer == ByTrainers {
			rowsOwner = 4
		}
		if got := p.OwnerOfChunk(1, 0); got != denseOwner {
			t.Errorf("%+v: bucket 1 begins on %s", c, p.Owner(got))
		}
		if got := p.OwnerOfPartition(0, 5); got != rowsOwner || !p.HasRows(rowsOwner) || p.HasRows(3) != (rowsOwner > 2) ||
			p.HasRows(0) == p.HasRows(3) {
			t.Errorf("%+v: partition 5 is on %s", c, p.Owner(got))
		}
	}
}

// Buckets are cut at the sizes that the manifest says.
func TestPlacementBucketBytes(t *testing.T) {
	j := placementJob(3*mib, 1)
	j.FirstBucketBytes, j.BucketBytes = 4096, 1<<20
	p := NewPlacement(j, 1)
	var sizes []int
	for _, b := range p.Buckets {
		sizes = append(sizes, 4*b.Elements)
	}
	if !slices.Equal(sizes, []int{4, 1 << 20, 1 << 20, 1 << 20}) {
		t.Errorf("buckets of %v bytes", sizes)
	}
}
