package schema

import (
	"cmp"
	"container/heap"
	"math/bits"
	"slices"
)

// ChunkRef names a dense chunk of a job.
type ChunkRef struct {
	Bucket Bucket
	Chunk  Chunk
}

// placedChunk says where a dense chunk is.
type placedChunk struct {
	owner int
	index int // among the chunks of its owner, in their order
}

// placeChunks cuts the buckets into chunks and gives each its owner.
func (p *Placement) placeChunks() {
	owners, base := p.Plan.DenseShards(p.Shards), 0
	if p.Plan.Reducer == ByTrainers {
		owners, base = p.Trainers, p.Shards
	}
	p.owned = make([]int, p.Owners())
	for _, k := range spread(p.chunkSizes(), owners) {
		p.chunks = append(p.chunks, placedChunk{owner: base + k, index: p.owned[base+k]})
		p.owned[base+k]++
	}
}

// chunkSizes cuts the buckets into chunks, and gives their elements.
func (p *Placement) chunkSizes() (sizes []int) {
	for _, b := range p.Buckets {
		p.firstChunks = append(p.firstChunks, len(sizes))
		for c := range p.Chunks(b.ID) {
			_, elements := p.ChunkRange(b.ID, Chunk(c))
			sizes = append(sizes, elements)
		}
	}
	return sizes
}

// OwnerOfChunk is who adds up a chunk of a known bucket.
func (p *Placement) OwnerOfChunk(b Bucket, c Chunk) int {
	if !p.IsDense(b) {
		return int(b) - len(p.Buckets)
	}
	return p.chunks[p.firstChunks[b]+int(c)].owner
}

// IndexOfChunk is the place of a dense chunk in OwnedChunks of its owner.
func (p *Placement) IndexOfChunk(b Bucket, c Chunk) int {
	return p.chunks[p.firstChunks[b]+int(c)].index
}

// OwnedChunks is the dense chunks that an owner adds up, bucket by bucket, in the order in which their rounds are sent.
func (p *Placement) OwnedChunks(owner int) []ChunkRef {
	var owned []ChunkRef
	for _, b := range p.Buckets {
		for c := range p.Chunks(b.ID) {
			if p.OwnerOfChunk(b.ID, Chunk(c)) == owner {
				owned = append(owned, ChunkRef{b.ID, Chunk(c)})
			}
		}
	}
	return owned
}

// spread places chunks of these sizes on owners, evenly by size, and says which chunk is where. It does so as if owners
// came one by one: the first has all chunks, and to each that comes the fullest (the first of equals) gives chunks
// until no owner exceeds the newcomer by more than the largest chunk.
//
//	spread([]int{4, 4, 4, 4, 1}, 2) == []int{0, 1, 0, 1, 0}
//
// Let M be the largest size, T the sum of all and S the owners. Then
//   - the fullest has at most M above the emptiest: a chunk goes over only from a fullest with more than M above the
//     newcomer, and so leaves it at most M below all others, and the newcomer at most M above any of them;
//   - chunks move to the newcomer only, and at most T/S + M of them, since it ends at most M above any other.
//
// What is given is the last of the chunks in bitOrder, so that those of each owner are spread over all of them: rounds
// are sent in the order of chunks, and at any time all owners shall have work.
func spread(sizes []int, owners int) []int {
	placed := make([]int, len(sizes))
	if len(sizes) == 0 {
		return placed
	}
	largest := slices.Max(sizes)
	first := load{chunks: bitOrder(len(sizes))}
	for _, n := range sizes {
		first.size += n
	}
	loads := loads{first}
	for k := 1; k < owners; k++ {
		newcomer := load{owner: k}
		for loads[0].size-newcomer.size > largest {
			from := &loads[0]
			last := len(from.chunks) - 1
			c := from.chunks[last]
			from.chunks, from.size = from.chunks[:last], from.size-sizes[c]
			newcomer.chunks, newcomer.size = append(newcomer.chunks, c), newcomer.size+sizes[c]
			placed[c] = k
			heap.Fix(&loads, 0)
		}
		heap.Push(&loads, newcomer)
	}
	return placed
}

// bitOrder is the numbers below n ordered by their binary digits read from the last one on: any stretch of it is spread
// over all of them.
//
//	bitOrder(6) == []int{0, 4, 2, 1, 5, 3}
func bitOrder(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(bits.Reverse64(uint64(a)), bits.Reverse64(uint64(b))) })
	return order
}

// load is what an owner has while chunks are placed.
type load struct {
	owner, size int
	chunks      []int
}

// loads is a heap. The first is the fullest, of equals the one that came first.
type loads []load

func (l loads) Len() int { return len(l) }

func (l loads) Less(i, j int) bool {
	return l[i].size > l[j].size || l[i].size == l[j].size && l[i].owner < l[j].owner
}

func (l loads) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

func (l *loads) Push(x any) { *l = append(*l, x.(load)) }

func (l *loads) Pop() any { panic("schema: an owner left while chunks were placed") }
