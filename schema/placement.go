package schema

import "fmt"

// Sizes at which parameters are gathered into buckets. The first bucket is small so that its gradient, the first that a
// backward pass finishes, is on its way early.
const (
	firstBucketBytesMax = 1 << 20
	bucketBytesMax      = 25 << 20
	valueBytes          = 4
)

// Placement is where everything of a job lies: a pure function of the manifest and the number of shards, computed alike
// by trainers and shards. Read only once it is made, so it may be shared.
//
// Dense buckets: the parameters in reverse order of the manifest (the last layer's gradient is ready first), one after
// the other, a new bucket being begun where the next parameter would make it larger than 1 MiB (the first bucket) or
// 25 MiB (the others). Only a parameter that is larger than that by itself is cut, into consecutive buckets. Bucket i is
// on shard i modulo shards.
//
// Tables: a row lies in partition PartitionOf(key), whose shard is the partition modulo shards. All rows on shard k are
// one sparse bucket, whose id is the number of dense buckets plus k.
type Placement struct {
	Shards  int
	Buckets []DenseBucket // by id

	job           *Job
	chunkElements int
	spans         [][]Span // by parameter, in its order
}

// DenseBucket is a stretch of dense values: the unit of aggregation.
type DenseBucket struct {
	ID       Bucket
	Elements int
	Spans    []Span // what it is made of, in order, without gaps
}

// Span is a stretch of a parameter within a bucket.
type Span struct {
	Parameter int // index in the manifest
	From      int // first element, within the parameter
	Bucket    Bucket
	Offset    int // of that element within the bucket
	Elements  int
}

// NewPlacement places a job that Validate has found right on one or more shards.
//
//	p := NewPlacement(job, 2)
//	for _, b := range p.Buckets { send(b, p.ShardOfBucket(b.ID)) }
func NewPlacement(job *Job, shards int) *Placement {
	if shards < 1 {
		panic(fmt.Sprintf("schema: placement on %d shards", shards))
	}
	p := &Placement{Shards: shards, job: job, chunkElements: job.ChunkBytes / valueBytes, spans: make([][]Span, len(job.Parameters))}
	for i := len(job.Parameters) - 1; i >= 0; i-- {
		p.add(i, job.Parameters[i].Elements())
	}
	return p
}

// add places a parameter behind what is there.
func (p *Placement) add(parameter, elements int) {
	if last := len(p.Buckets) - 1; last < 0 || p.Buckets[last].Elements+elements > elementsMax(last) {
		p.begin()
	}
	for from := 0; from < elements; {
		last := len(p.Buckets) - 1
		b := &p.Buckets[last]
		n := min(elements-from, elementsMax(last)-b.Elements)
		if n == 0 {
			p.begin()
			continue
		}
		s := Span{Parameter: parameter, From: from, Bucket: b.ID, Offset: b.Elements, Elements: n}
		b.Spans = append(b.Spans, s)
		b.Elements += n
		p.spans[parameter] = append(p.spans[parameter], s)
		from += n
	}
}

func (p *Placement) begin() {
	p.Buckets = append(p.Buckets, DenseBucket{ID: Bucket(len(p.Buckets))})
}

func elementsMax(bucket int) int {
	if bucket == 0 {
		return firstBucketBytesMax / valueBytes
	}
	return bucketBytesMax / valueBytes
}

// Spans is where a parameter lies, in the order of its elements. Read only.
func (p *Placement) Spans(parameter int) []Span { return p.spans[parameter] }

// SparseBucket is the bucket of all rows on a shard.
func (p *Placement) SparseBucket(shard int) Bucket { return Bucket(len(p.Buckets) + shard) }

// IsDense reports whether b is a dense bucket of the job.
func (p *Placement) IsDense(b Bucket) bool { return int(b) < len(p.Buckets) }

// Known reports whether b is a bucket of the job, dense or sparse.
func (p *Placement) Known(b Bucket) bool { return int(b) < len(p.Buckets)+p.Shards }

// ShardOfBucket is the shard that aggregates a known bucket.
func (p *Placement) ShardOfBucket(b Bucket) int {
	if p.IsDense(b) {
		return int(b) % p.Shards
	}
	return int(b) - len(p.Buckets)
}

// ShardOfPartition is the shard that owns a partition, of whichever table.
func (p *Placement) ShardOfPartition(part Partition) int { return int(part) % p.Shards }

// ShardOfKey is the shard that owns a row.
func (p *Placement) ShardOfKey(t Table, key uint64) int {
	return p.ShardOfPartition(PartitionOf(key, p.job.Tables[t].Partitions))
}

// Chunks is the number of frames that a dense bucket's values take.
func (p *Placement) Chunks(b Bucket) int {
	return (p.Buckets[b].Elements + p.chunkElements - 1) / p.chunkElements
}

// ChunkRange is the elements [offset, offset+elements) of a dense bucket that one of its chunks carries.
func (p *Placement) ChunkRange(b Bucket, c Chunk) (offset, elements int) {
	offset = int(c) * p.chunkElements
	return offset, min(p.chunkElements, p.Buckets[b].Elements-offset)
}

// LookupKeysMax is how many keys a lookup may have, whichever tables they are of, so that the rows fit one chunk: at
// least one, since a row is never cut.
func (p *Placement) LookupKeysMax() int {
	dim := 1
	for _, t := range p.job.Tables {
		dim = max(dim, t.Dim)
	}
	return max(1, p.chunkElements/dim)
}
