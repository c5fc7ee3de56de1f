package schema

import (
	"cmp"
	"fmt"
)

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
// 25 MiB (the others), or what Job.FirstBucketBytes and BucketBytes say, and where its optimizer is another one, so
// that a bucket has one optimizer. Only a parameter that is larger than that by itself is cut, into consecutive
// buckets. Chunks are spread over the shards (chunks.go); in grouped all are on shard 0, since one shard decides who
// belongs to a group.
//
// Tables: a row lies in a partition (Partitioning), whose shard is the partition modulo shards; or a shard holds some
// columns of every row (Columns), or a table is whole on one. All rows on shard k are
// one sparse bucket, whose id is the number of dense buckets plus k.
//
// Owners are who adds up: the shards, and after them, where anything is reduced between trainers, the trainers. Where
// dense gradients are, their chunks are spread over the trainers in the same way. The partitions of tables that are go
// to the trainers in turn; all rows that trainer k adds up are one sparse bucket, the k-th after those of the shards.
type Placement struct {
	Shards   int
	Trainers int           // that add up: those of the job where anything is reduced between trainers, else 0
	Buckets  []DenseBucket // by id

	Plan *Plan // of the job

	job           *Job
	trainers      *Placement // see OfTrainers
	chunkElements int
	spans         [][]Span      // by parameter, in its order
	firstChunks   []int         // by bucket: how many chunks the buckets before it have
	chunks        []placedChunk // of all dense buckets, counted through in their order
	owned         []int         // by owner: how many chunks it has
	homes         []int         // by table: the shard of one that is whole on one
	keys          []tableKeys
}

// DenseBucket is a stretch of dense values: what a backward pass finishes at a time.
type DenseBucket struct {
	ID       Bucket
	Elements int
	Spans    []Span // what it is made of, in order, without gaps
}

// Span is a stretch of a parameter within a bucket.
type Span struct {
	Parameter int // index in the manifest
	From      int // first element, within the parameter
	bucket    Bucket
	Offset    int // of that element within the bucket
	Elements  int
}

// NewPlacement places a job that Validate has found right on one or more shards; on none where the job has no use for
// them (Job.NeedsShards).
//
//	p := NewPlacement(job, 2)
//	for _, c := range p.OwnedChunks(0) { accept(c.Bucket, c.Chunk) }
func NewPlacement(job *Job, shards int) *Placement {
	if shards < 0 || shards == 0 && job.NeedsShards() {
		panic(fmt.Sprintf("schema: placement on %d shards", shards))
	}
	p := unplaced(job, job.Plan(), shards)
	p.placeHomes()
	if p.Plan.Reduces(ByTrainers) {
		p.Trainers = job.Trainers
	}
	p.placeKeys()
	p.placeParameters()
	p.placeChunks()
	if shards > 0 && p.Plan.Owner == ByTrainers && p.Plan.Clock.Common() {
		p.trainers = p.OnShards()
	}
	return p
}

// unplaced is a placement before anything is placed.
func unplaced(job *Job, plan *Plan, shards int) *Placement {
	return &Placement{Shards: shards, Plan: plan, job: job, chunkElements: job.ChunkBytes / valueBytes,
		spans: make([][]Span, len(job.Parameters))}
}

// placeParameters gathers the parameters into buckets.
func (p *Placement) placeParameters() {
	for i := len(p.job.Parameters) - 1; i >= 0; i-- {
		p.add(i, p.job.Parameters[i].Elements())
	}
}

// OfTrainers is where shards are asked for what trainers have at one version, parameters and replicated tables, and ask
// for it: OnShards. It is nil where shards have the parameters, or trainers have them at no common version.
func (p *Placement) OfTrainers() *Placement { return p.trainers }

// OnShards is the placement of Job.OnShards: where what trainers add up would be if shards did. It is p itself where
// there is nothing of that.
func (p *Placement) OnShards() *Placement {
	job := p.job.OnShards()
	if job == p.job {
		return p
	}
	return NewPlacement(job, p.Shards)
}

// add places a parameter behind what is there.
func (p *Placement) add(parameter, elements int) {
	last := len(p.Buckets) - 1
	if last < 0 || p.Buckets[last].Elements+elements > p.elementsMax(last) || !p.job.oneOptimizer(parameter, parameter+1) {
		p.begin()
	}
	for from := 0; from < elements; {
		last := len(p.Buckets) - 1
		b := &p.Buckets[last]
		n := min(elements-from, p.elementsMax(last)-b.Elements)
		if n == 0 {
			p.begin()
			continue
		}
		s := Span{Parameter: parameter, From: from, bucket: b.ID, Offset: b.Elements, Elements: n}
		b.Spans = append(b.Spans, s)
		b.Elements += n
		p.spans[parameter] = append(p.spans[parameter], s)
		from += n
	}
}

func (p *Placement) begin() {
	p.Buckets = append(p.Buckets, DenseBucket{ID: Bucket(len(p.Buckets))})
}

func (p *Placement) elementsMax(bucket int) int {
	if bucket == 0 {
		return cmp.Or(p.job.FirstBucketBytes, firstBucketBytesMax) / valueBytes
	}
	return cmp.Or(p.job.BucketBytes, bucketBytesMax) / valueBytes
}

// Spans is where a parameter lies, in the order of its elements. Read only.
func (p *Placement) Spans(parameter int) []Span { return p.spans[parameter] }

// OptimizerOf is the optimizer of a dense bucket: that of each of its parameters.
func (p *Placement) OptimizerOf(b Bucket) Optimizer {
	return p.job.OptimizerOfParameter(p.Buckets[b].Spans[0].Parameter)
}

// ElementName names the value at a place of a bucket, for people: the parameter, and which element of it.
func (p *Placement) ElementName(b Bucket, at int) string {
	if int(b) < len(p.Buckets) {
		for _, s := range p.Buckets[b].Spans {
			if at >= s.Offset && at < s.Offset+s.Elements {
				return fmt.Sprintf("parameter %q, element %d", p.job.Parameters[s.Parameter].Name, s.From+at-s.Offset)
			}
		}
	}
	return fmt.Sprintf("bucket %d, element %d", b, at)
}

// Owners is how many members add up: shards, then trainers where they reduce among themselves. Owner numbers run
// through both, so that shard i is owner i.
func (p *Placement) Owners() int { return p.Shards + p.Trainers }

// Owner is the member id of an owner.
func (p *Placement) Owner(i int) Member {
	if i < p.Shards {
		return ShardMember(i)
	}
	return TrainerMember(i - p.Shards)
}

// PartyOf is which party an owner belongs to.
func (p *Placement) PartyOf(owner int) Party {
	if owner < p.Shards {
		return ByShards
	}
	return ByTrainers
}

// SparseBucket is the bucket of all rows whose gradients an owner adds up.
func (p *Placement) SparseBucket(owner int) Bucket { return Bucket(len(p.Buckets) + owner) }

// HasRows reports whether an owner has a sparse round in every batch: a shard has one where any table is on shards, a
// trainer where any is reduced between trainers.
func (p *Placement) HasRows(owner int) bool {
	for i := range p.job.Tables {
		if p.betweenTrainers(Table(i)) != (owner >= p.Shards) {
			continue
		}
		if _, columns := p.Columns(Table(i), owner); columns > 0 {
			return true
		}
	}
	return false
}

// betweenTrainers reports whether the trainers add up a table's gradients.
func (p *Placement) betweenTrainers(t Table) bool {
	return p.Plan.Tables[t].Reducer == ByTrainers
}

// IsDense reports whether b is a dense bucket of the job.
func (p *Placement) IsDense(b Bucket) bool { return int(b) < len(p.Buckets) }

// known reports whether b is a bucket of the job, dense or sparse.
func (p *Placement) known(b Bucket) bool { return int(b) < len(p.Buckets)+p.Owners() }

// Chunks is the number of frames that a dense bucket's values take.
func (p *Placement) Chunks(b Bucket) int {
	return (p.Buckets[b].Elements + p.chunkElements - 1) / p.chunkElements
}

// ChunkRange is the elements [offset, offset+elements) of a dense bucket that one of its chunks carries.
func (p *Placement) ChunkRange(b Bucket, c Chunk) (offset, elements int) {
	offset = int(c) * p.chunkElements
	return offset, min(p.chunkElements, p.Buckets[b].Elements-offset)
}
