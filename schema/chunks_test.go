package schema

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// The placement of chunks is part of the protocol.
func TestChunksLiteral(t *testing.T) {
	ten := slices.Repeat([]int{4}, 10)
	for _, c := range []struct {
		sizes  []int
		owners int
		want   []int
	}{
		{nil, 3, []int{}},
		{[]int{7}, 3, []int{0}},
		{[]int{7, 7}, 3, []int{0, 1}},
		{[]int{4, 4, 4, 4, 1}, 2, []int{0, 1, 0, 1, 0}},
		{ten, 1, slices.Repeat([]int{0}, 10)},
		{ten, 2, []int{0, 1, 0, 1, 0, 1, 0, 1, 0, 1}},
		{ten, 3, []int{0, 2, 2, 1, 0, 1, 2, 1, 0, 1}},
		{ten, 4, []int{0, 2, 2, 1, 3, 1, 2, 1, 0, 3}},
	} {
		if got := spread(c.sizes, c.owners); !slices.Equal(got, c.want) {
			t.Errorf("%v on %d: %v, want %v", c.sizes, c.owners, got, c.want)
		}
	}
	if got := bitOrder(6); !slices.Equal(got, []int{0, 4, 2, 1, 5, 3}) {
		t.Errorf("bit order of 6: %v", got)
	}
}

// However chunks are cut, the fullest owner has at most the largest chunk more than the emptiest. An owner more moves
// nothing between the others, and gets at most its share and one chunk.
func TestChunksAreSpreadEvenly(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 17))
	for range 200 {
		most := 1 + random.IntN(1000)
		sizes := make([]int, 1+random.IntN(300))
		for i := range sizes {
			if sizes[i] = most; random.IntN(4) == 0 {
				sizes[i] = 1 + random.IntN(most)
			}
		}
		var before []int
		for owners := 1; owners <= 40; owners++ {
			placed, loads := spread(sizes, owners), make([]int, owners)
			for i, k := range placed {
				loads[k] += sizes[i]
				if owners > 1 && k != before[i] && k != owners-1 {
					t.Fatalf("seed %d: of %d owners, chunk %d moved from %d to %d", seed, owners, i, before[i], k)
				}
			}
			largest, total := slices.Max(sizes), sumOf(sizes)
			if least := slices.Min(loads); slices.Max(loads)-least > largest {
				t.Fatalf("seed %d: %v on %d owners: loads %v with chunks of up to %d", seed, sizes, owners, loads, largest)
			}
			if moved := loads[owners-1]; moved > total/owners+largest {
				t.Fatalf("seed %d: %d of %d moved to owner %d with chunks of up to %d", seed, moved, total, owners, largest)
			}
			before = placed
		}
	}
}

func sumOf(of []int) (n int) {
	for _, x := range of {
		n += x
	}
	return n
}

// Rounds are sent in the order of chunks: while any tenth of them is sent, every owner has some of it.
func TestChunksOfEachOwnerAreSpreadOverAll(t *testing.T) {
	sizes := slices.Repeat([]int{1}, 400)
	for owners := 2; owners <= 8; owners++ {
		placed := spread(sizes, owners)
		for at := range slices.Chunk(placed, 40) {
			for k := range owners {
				if !slices.Contains(at, k) {
					t.Errorf("%d owners: %d has none of 40 chunks: %v", owners, k, at)
				}
			}
		}
	}
}

// Every chunk is in one list, that of its owner, where its index says; in grouped all are on shard 0.
func TestOwnedChunks(t *testing.T) {
	for _, c := range []struct {
		set    func(j *Job)
		owners []int // who have any, of two shards and three trainers
	}{
		{func(j *Job) {}, []int{0, 1}},
		{func(j *Job) { j.Consistency = ConsistencyGrouped }, []int{0}},
		{func(j *Job) { j.Reduce = ReduceTrainers }, []int{2, 3, 4}},
	} {
		j := placementJob(26*mib, 3) // 1 MiB and 25 MiB in chunks of 256 KiB: 4, 100, and 1 with the 3 values
		j.Trainers, j.Apply = 3, ApplyMean
		c.set(j)
		p := NewPlacement(j, 2)
		n := 0
		for owner := range 5 {
			owned := p.OwnedChunks(owner)
			if n += len(owned); (len(owned) > 0) != slices.Contains(c.owners, owner) {
				t.Errorf("%s has %d chunks, want some of %v", ShardMember(owner), len(owned), c.owners)
			}
			for i, ref := range owned {
				if p.OwnerOfChunk(ref.Bucket, ref.Chunk) != owner || p.IndexOfChunk(ref.Bucket, ref.Chunk) != i {
					t.Fatalf("owner %d: chunk %+v at %d is that of %d at %d", owner, ref, i, p.OwnerOfChunk(ref.Bucket, ref.Chunk),
						p.IndexOfChunk(ref.Bucket, ref.Chunk))
				}
			}
		}
		if n != 105 {
			t.Errorf("%d chunks are owned, want 105", n)
		}
	}
}
