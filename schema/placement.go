package schema

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	flatbuffers "github.com/google/flatbuffers/go"
)

// Sizes of buckets. The first bucket is small so that its gradient, the first that a backward pass finishes, is sent
// early.
const (
	firstBucketBytesMax = 1 << 20
	bucketBytesMax      = 25 << 20
	valueBytes          = 4
)

// Placement maps everything in a job to its owners: a pure function of the manifest and the number of shards, computed
// alike by trainers and shards. It is read-only once made, and may be shared.
//
// Dense buckets contain the parameters in reverse order of the manifest, because the last layer's gradient is ready
// first. A new bucket begins if the next parameter would exceed 1 MiB (the first bucket) or 25 MiB (the others), or
// Job.FirstBucketBytes and BucketBytes, and if it has another optimizer: a bucket has one optimizer. Only a parameter
// that exceeds that size by itself is cut, into consecutive buckets. Chunks are spread over the shards (frame.go). In
// grouped, all are on shard 0, which decides the membership of groups.
//
// Tables: a row is in a partition (Partitioning), whose shard is the partition modulo shards; or a shard has some
// columns of every row (Columns); or one shard has the whole table. All rows of shard k are one sparse bucket, whose id
// is the number of dense buckets plus k.
//
// Owners aggregate: the shards, and after them the trainers if anything is reduced between trainers. If dense gradients
// are, their chunks are spread over the trainers in the same way. The partitions of tables that trainers reduce go to
// the trainers in turn; all rows that trainer k aggregates are one sparse bucket, the k-th after those of the shards.
type Placement struct {
	Shards   int
	Trainers int           // trainers that aggregate: all if anything is reduced between trainers, else 0
	Buckets  []DenseBucket // by id

	Plan *Plan // of the job

	job           *Job
	trainers      *Placement // see OfTrainers
	chunkElements int
	spans         [][]Span      // by parameter, in its order
	firstChunks   []int         // by bucket: number of chunks in earlier buckets
	chunks        []placedChunk // of all dense buckets, in order
	owned         []int         // by owner: number of its chunks
	homes         []int         // by table: the shard of a table that is whole on one
	keys          []tableKeys
}

// DenseBucket is a stretch of dense values that a backward pass completes together.
type DenseBucket struct {
	ID       Bucket
	Elements int
	Spans    []Span // contents, in order, without gaps
}

// Span is a stretch of a parameter within a bucket.
type Span struct {
	Parameter int // index in the manifest
	From      int // first element, within the parameter
	bucket    Bucket
	Offset    int // of that element within the bucket
	Elements  int
}

// NewPlacement places a validated job on shards; shards is 0 if the job has no use for them (Job.NeedsShards).
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

// unplaced returns a placement without any buckets or owners.
func unplaced(job *Job, plan *Plan, shards int) *Placement {
	return &Placement{Shards: shards, Plan: plan, job: job, chunkElements: job.ChunkBytes / valueBytes,
		spans: make([][]Span, len(job.Parameters))}
}

// placeParameters puts the parameters into buckets.
func (p *Placement) placeParameters() {
	for i := len(p.job.Parameters) - 1; i >= 0; i-- {
		p.add(i, p.job.Parameters[i].Elements())
	}
}

// OfTrainers returns the placement by which shards request the state of trainers at one version, parameters and
// replicated tables: that of OnShards. It is nil if shards own the parameters, or trainers have no common version.
func (p *Placement) OfTrainers() *Placement { return p.trainers }

// OnShards returns the placement of Job.OnShards: the owners that shards would have if trainers aggregated nothing. It
// is p itself if trainers aggregate nothing.
func (p *Placement) OnShards() *Placement {
	job := p.job.OnShards()
	if job == p.job {
		return p
	}
	return NewPlacement(job, p.Shards)
}

// add places a parameter behind those already placed.
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

// Spans returns the places of a parameter, in the order of its elements. Read-only.
func (p *Placement) Spans(parameter int) []Span { return p.spans[parameter] }

// OptimizerOf returns the optimizer of a dense bucket, which all its parameters share.
func (p *Placement) OptimizerOf(b Bucket) Optimizer {
	return p.job.OptimizerOfParameter(p.Buckets[b].Spans[0].Parameter)
}

// ElementName names the value at a place of a bucket, for people: the parameter and the element.
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

// Owners returns the number of members that aggregate: shards, then trainers if they reduce among themselves. Owner
// numbers run through both, so shard i is owner i.
func (p *Placement) Owners() int { return p.Shards + p.Trainers }

// Owner returns the member id of an owner.
func (p *Placement) Owner(i int) Member {
	if i < p.Shards {
		return ShardMember(i)
	}
	return TrainerMember(i - p.Shards)
}

// PartyOf returns the party of an owner.
func (p *Placement) PartyOf(owner int) Party {
	if owner < p.Shards {
		return ByShards
	}
	return ByTrainers
}

// SparseBucket returns the bucket of all rows whose gradients an owner aggregates.
func (p *Placement) SparseBucket(owner int) Bucket { return Bucket(len(p.Buckets) + owner) }

// HasRows reports whether an owner has a sparse round in every batch: a shard if any table is on shards, a trainer if
// any is reduced between trainers.
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

// betweenTrainers reports whether trainers aggregate a table's gradients.
func (p *Placement) betweenTrainers(t Table) bool {
	return p.Plan.Tables[t].Reducer == ByTrainers
}

// IsDense reports whether b is a dense bucket of the job.
func (p *Placement) IsDense(b Bucket) bool { return int(b) < len(p.Buckets) }

// known reports whether b is a bucket of the job, dense or sparse.
func (p *Placement) known(b Bucket) bool { return int(b) < len(p.Buckets)+p.Owners() }

// Chunks returns the number of frames of a dense bucket's values.
func (p *Placement) Chunks(b Bucket) int {
	return (p.Buckets[b].Elements + p.chunkElements - 1) / p.chunkElements
}

// ChunkRange returns the elements [offset, offset+elements) of a dense bucket that one of its chunks has.
func (p *Placement) ChunkRange(b Bucket, c Chunk) (offset, elements int) {
	offset = int(c) * p.chunkElements
	return offset, min(p.chunkElements, p.Buckets[b].Elements-offset)
}

// frameRule is the contents of a kind's frames in one job, in addition to rule. The zero value is that of a kind whose
// fields do not depend on the job.
type frameRule struct {
	names  named
	tables bool       // sections and keys must be of rows that the owner has
	stored bool       // likewise, and shards must own these tables
	flags  []flagRule // rules of flags that only some jobs have
}

// named is the meaning of bucket, chunk, chunks, offset and lengths of a frame.
type named uint8

const (
	namesNothing  named = iota
	namesChunk          // a dense chunk that the owner aggregates
	namesRows           // the rows that the owner aggregates
	namesResult         // either of both
	namesNoBucket       // none: keys are enough
	namesAnswer         // none, or the partition that a pull named
	namesPulled         // a result, parameters, or a partition
	namesModule
	namesState // a stretch of a parameter, or rows
)

// flagRule lists the jobs in which flags are legal, with and without a section.
type flagRule struct {
	flags uint32
	legal func(p *Placement, section bool) bool
}

// frameRules, together with rules, is the only description of what frames may contain.
var frameRules = [kindMax + 1]frameRule{
	KindDense:  {names: namesChunk},
	KindSparse: {names: namesRows, tables: true},
	KindMean: {names: namesResult,
		flags: []flagRule{{FlagParameters, (*Placement).haveParameters}, {FlagCopy, (*Placement).askTrainers}}},
	KindLookup: {names: namesNoBucket, tables: true, stored: true},
	KindRows: {names: namesAnswer, tables: true, stored: true,
		flags: []flagRule{{FlagCopy, (*Placement).askTrainers}}},
	KindPull:     {names: namesPulled, flags: []flagRule{{FlagParameters, (*Placement).giveParameters}}},
	KindForward:  {names: namesModule},
	KindBackward: {names: namesModule},
	KindStep:     {names: namesModule},
	KindWeights:  {names: namesModule},
	KindOutput:   {names: namesModule},
	KindState: {names: namesState,
		flags: []flagRule{{FlagMore, func(*Placement, bool) bool { return false }}}}, // only shards set it
}

// haveParameters reports whether shards own the parameters.
func (p *Placement) haveParameters(bool) bool { return p.Plan.Owner == ByShards }

// askTrainers reports whether shards request the state of trainers, and so announce the version to copy.
func (p *Placement) askTrainers(bool) bool { return p.trainers != nil }

// giveParameters reports whether parameters, or rows that trainers own, may be requested.
func (p *Placement) giveParameters(section bool) bool {
	return p.trainers != nil || p.Plan.Owner == ByShards && !section
}

// CheckFrame checks every field of a verified frame to or from an owner against the job: its bucket exists and belongs
// to the owner; chunk, offset and lengths fit the placement; tables, dims and keys exist and belong to the owner; and
// its flags are legal in the job. The receiver checks batch, generation and sender. Kinds without such fields pass. It
// reads every key once and no value. Errors are *FrameError.
func (p *Placement) CheckFrame(v *View, owner int) error {
	if err := p.checkFrame(v, owner); err != nil {
		return err
	}
	return nil
}

// checkWire checks a frame's form: gradients have the manifest's type, and only those tables that may are sent as bags.
func (p *Placement) checkWire(v *View) *FrameError {
	if want := p.Plan.DType; rules[v.head.Kind].half && v.head.DType != want {
		return Refuse(ReasonWrongDType, "%v values: the job's gradients travel as %v", v.head.DType, want)
	}
	if v.bags.bytes() != 0 {
		return p.checkBagTables(v)
	}
	return nil
}

func (p *Placement) checkFrame(v *View, owner int) *FrameError {
	h, r := &v.head, &frameRules[v.head.Kind]
	if needed := rules[h.Kind].node != never; !rules[h.Kind].repeats && int(h.Lanes) != p.job.Lanes &&
		(needed || h.Lanes != 0) {
		return Refuse(ReasonWrongNode, "%d lanes: the job has %d", h.Lanes, p.job.Lanes)
	}
	if err := p.checkWire(v); err != nil {
		return err
	}
	for _, f := range r.flags {
		if h.Flags&f.flags != 0 && !f.legal(p, v.sections.bytes() != 0) {
			return Refuse(ReasonMalformed, "flags %#x of a %v frame: not in a job that is %v", h.Flags&f.flags, h.Kind, p.Plan)
		}
	}
	if err := p.checkNames(r.names, v, owner); err != nil || !r.tables {
		return err
	}
	return p.checkTables(v, owner, r.stored)
}

// checkNames checks what a frame names. It is no table of functions, because views would escape through them.
func (p *Placement) checkNames(n named, v *View, owner int) *FrameError {
	switch n {
	case namesChunk:
		return p.checkDense(v, owner)
	case namesRows:
		return p.checkSparse(v, owner)
	case namesResult:
		return p.checkMean(v, owner)
	case namesNoBucket:
		return p.checkLookup(v)
	case namesAnswer:
		return p.checkRows(v, owner)
	case namesPulled:
		return p.checkPull(v, owner)
	case namesModule:
		return p.checkModule(v, owner)
	case namesState:
		return p.checkState(v, owner)
	}
	return nil
}

// checkDense checks a contribution to a dense chunk.
func (p *Placement) checkDense(v *View, owner int) *FrameError {
	h := &v.head
	if err := p.checkBucket(h.Bucket, h.Chunk, owner); err != nil {
		return err
	}
	if !p.IsDense(h.Bucket) {
		return Refuse(ReasonUnknownBucket, "bucket %d of a %v frame with values is sparse", h.Bucket, h.Kind)
	}
	return p.checkChunk(v)
}

// checkSparse checks the bucket of a contribution to an owner's rows.
func (p *Placement) checkSparse(v *View, owner int) *FrameError {
	if b := v.head.Bucket; b != p.SparseBucket(owner) || !p.HasRows(owner) {
		return Refuse(ReasonUnknownBucket, "sparse bucket %d is not on %s", b, p.Owner(owner))
	}
	return nil
}

// checkMean checks the result of a round, dense or sparse.
func (p *Placement) checkMean(v *View, owner int) *FrameError {
	h, rows := &v.head, v.sections.bytes() != 0
	if err := p.checkBucket(h.Bucket, h.Chunk, owner); err != nil {
		return err
	}
	switch {
	case p.IsDense(h.Bucket) && rows:
		return Refuse(ReasonUnknownBucket, "bucket %d of a %v frame with rows is dense", h.Bucket, h.Kind)
	case p.IsDense(h.Bucket):
		return p.checkChunk(v)
	case v.values.bytes() != 0 && !rows:
		return Refuse(ReasonUnknownBucket, "bucket %d of a %v frame with values is sparse", h.Bucket, h.Kind)
	}
	return p.checkMeans(v, owner)
}

// checkLookup checks a request for rows by key.
func (p *Placement) checkLookup(v *View) *FrameError {
	if b := v.head.Bucket; b != 0 {
		return Refuse(ReasonUnknownBucket, "bucket %d: a lookup has none", b)
	}
	return nil
}

// checkRows checks that rows that answer a pull are of the partition that it named.
func (p *Placement) checkRows(v *View, owner int) *FrameError {
	b := v.head.Bucket
	if b == 0 {
		return nil
	}
	if v.sections.bytes() != sectionBytes {
		return Refuse(ReasonUnknownBucket, "partition %d of rows of %d tables: want one", b, v.sections.bytes()/sectionBytes)
	}
	return p.checkTablePull(b, v.Section(0), owner)
}

// checkState checks a piece of a trainer's state that the owner, a shard, has requested. The reader checks the slots
// and so the number of values.
func (p *Placement) checkState(v *View, owner int) *FrameError {
	h, sections := &v.head, v.Sections()
	parameter := h.Flags&FlagParameters != 0
	switch {
	case p.trainers == nil || owner >= p.Shards:
		return Refuse(ReasonUnknownKind, "state, which %s asks no trainer for", p.Owner(owner))
	case h.Chunks == 0:
		return Refuse(ReasonWrongChunk, "chunk %d of state without their number", h.Chunk)
	case h.Weight > WeightMax || h.Weight != math.Trunc(h.Weight):
		return Refuse(ReasonWrongWeight, "%v steps: want a whole number", h.Weight)
	case parameter && len(sections) == 0:
		return p.trainers.checkStretch(h, owner)
	case h.Bucket != 0 || h.Offset != 0:
		return Refuse(ReasonUnknownBucket, "bucket %d, element %d: want them of a parameter alone", h.Bucket, h.Offset)
	case parameter || len(sections) > 1 || len(sections) == 0 && v.values.bytes() != 0:
		return Refuse(ReasonWrongShape, "%d sections and %d bytes of values: want those of a parameter or of one table",
			len(sections), v.values.bytes())
	case len(sections) == 0: // the trainer no longer has the version
		return nil
	}
	if t := sections[0].Table; uint64(t) < uint64(len(p.job.Tables)) && !p.job.Tables[t].Replicated {
		return Refuse(ReasonUnknownTable, "rows of table %q, which shards keep", p.job.Tables[t].Name)
	}
	return p.trainers.checkTables(v, owner, false)
}

// checkStretch checks that a stretch of a parameter begins in a chunk that the owner has.
func (p *Placement) checkStretch(h *Head, owner int) *FrameError {
	if uint64(h.Bucket) >= uint64(len(p.job.Parameters)) {
		return Refuse(ReasonUnknownBucket, "parameter %d of %d", h.Bucket, len(p.job.Parameters))
	}
	for _, s := range p.Spans(int(h.Bucket)) {
		if h.Offset < uint64(s.From) || h.Offset >= uint64(s.From+s.Elements) {
			continue
		}
		c := Chunk((s.Offset + int(h.Offset) - s.From) / p.chunkElements)
		return p.checkBucket(s.bucket, c, owner)
	}
	return Refuse(ReasonWrongShape, "element %d of parameter %q: it has %d", h.Offset, p.job.Parameters[h.Bucket].Name,
		p.job.Parameters[h.Bucket].Elements())
}

// checkMeans checks the result of a sparse round: rows of tables that trainers own.
func (p *Placement) checkMeans(v *View, owner int) *FrameError {
	for _, s := range v.Sections() {
		if uint64(s.Table) < uint64(len(p.job.Tables)) && !p.job.Tables[s.Table].Replicated {
			return Refuse(ReasonUnknownTable, "means of table %q, whose rows are on shards", p.job.Tables[s.Table].Name)
		}
	}
	return p.checkTables(v, owner, false)
}

func (p *Placement) checkBucket(b Bucket, c Chunk, owner int) *FrameError {
	switch {
	case !p.known(b):
		return Refuse(ReasonUnknownBucket, "bucket %d: the job has %d", b, len(p.Buckets)+p.Owners())
	case p.IsDense(b) && int64(c) >= int64(p.Chunks(b)):
		return Refuse(ReasonWrongChunk, "chunk %d of bucket %d: it has %d", c, b, p.Chunks(b))
	case p.OwnerOfChunk(b, c) != owner:
		return Refuse(ReasonUnknownBucket, "chunk %d of bucket %d is on %s, not on %s", c, b, p.Owner(p.OwnerOfChunk(b, c)),
			p.Owner(owner))
	}
	return nil
}

// checkChunk checks a dense chunk. With weight 0 it may have no values: no lane contributed.
func (p *Placement) checkChunk(v *View) *FrameError {
	h := &v.head
	if have, want := int64(h.Chunks), int64(p.Chunks(h.Bucket)); have != want {
		return Refuse(ReasonWrongChunk, "%d chunks of bucket %d: it has %d", have, h.Bucket, want)
	}
	offset, elements := p.ChunkRange(h.Bucket, h.Chunk)
	if h.Offset != uint64(offset) {
		return Refuse(ReasonWrongShape, "chunk %d of bucket %d at element %d: want %d", h.Chunk, h.Bucket, h.Offset, offset)
	}
	have := v.values.bytes() / h.DType.Bytes()
	if have == elements || (have == 0 && h.Weight == 0) {
		return nil
	}
	return Refuse(ReasonWrongShape, "chunk %d of bucket %d with %d values: want %d", h.Chunk, h.Bucket, have, elements)
}

// checkTables checks the tables and keys of a frame. With stored, shards must own the tables.
func (p *Placement) checkTables(v *View, owner int, stored bool) *FrameError {
	for _, part := range v.Parts() {
		if err := p.checkTable(part.Table, part.Dim, owner, v.head.Kind == KindSparse); err != nil {
			return err
		}
		if spec := &p.job.Tables[part.Table]; stored && spec.Replicated {
			return Refuse(ReasonUnknownTable, "table %q is kept by the trainers", spec.Name)
		}
		if at := p.elsewhere(part.Table, part.Keys, owner); at >= 0 {
			return p.refuseKey(part.Table, part.Keys[at], owner)
		}
	}
	return nil
}

func (p *Placement) refuseKey(t Table, key uint64, owner int) *FrameError {
	spec := &p.job.Tables[t]
	if key >= spec.Rows {
		return Refuse(ReasonUnknownKey, "key %d of table %q: it has %d rows", key, spec.Name, spec.Rows)
	}
	return Refuse(ReasonUnknownKey, "key %d of table %q is on %s, not on %s", key, spec.Name,
		p.Owner(p.OwnerOfKey(t, key)), p.Owner(owner))
}

// checkTable checks the width of rows, or, with sums, of their gradients.
func (p *Placement) checkTable(t Table, dim, owner int, sums bool) *FrameError {
	if uint64(t) >= uint64(len(p.job.Tables)) {
		return Refuse(ReasonUnknownTable, "table %d: the job has %d", t, len(p.job.Tables))
	}
	_, want := p.Columns(t, owner)
	if sums && p.job.Tables[t].PerRow {
		want++
	}
	if dim != want {
		return Refuse(ReasonWrongShape, "dim %d of table %q: want %d", dim, p.job.Tables[t].Name, want)
	}
	return nil
}

// checkPull checks a pull. Without a section, bucket and chunk name the requested result; with a section, the bucket is
// a partition. State of trainers is requested from the shard that would own it without them, and is passed on under a
// number that contains the sequence.
func (p *Placement) checkPull(v *View, owner int) *FrameError {
	h, place := &v.head, p
	parameters, rows := h.Flags&FlagParameters != 0, v.sections.bytes() != 0
	if parameters && p.trainers != nil {
		place = p.trainers
		if most := math.MaxUint64/uint64(p.job.Trainers+1) - 1; uint64(h.Sequence) > most {
			return Refuse(ReasonMalformed, "pull number %d: want at most %d", h.Sequence, most)
		}
	}
	if rows {
		s := v.Section(0)
		if parameters && uint64(s.Table) < uint64(len(p.job.Tables)) && !p.job.Tables[s.Table].Replicated {
			return Refuse(ReasonUnknownTable, "table %q is kept by the shards", p.job.Tables[s.Table].Name)
		}
		return place.checkTablePull(h.Bucket, s, owner)
	}
	if err := place.checkBucket(h.Bucket, h.Chunk, owner); err != nil {
		return err
	}
	switch dense := place.IsDense(h.Bucket); {
	case !dense && parameters:
		return Refuse(ReasonUnknownBucket, "bucket %d is sparse: parameters are in dense ones", h.Bucket)
	case !dense && !place.HasRows(owner):
		return Refuse(ReasonUnknownBucket, "bucket %d: no rows are added up on %s", h.Bucket, place.Owner(owner))
	}
	return nil
}

func (p *Placement) checkTablePull(partition Bucket, s Section, owner int) *FrameError {
	if err := p.checkTable(s.Table, int(s.Dim), owner, false); err != nil {
		return err
	}
	spec := &p.job.Tables[s.Table]
	switch {
	case uint64(partition) >= uint64(spec.Partitions):
		return Refuse(ReasonUnknownBucket, "partition %d of table %q: it has %d", partition, spec.Name, spec.Partitions)
	case spec.Replicated:
		return Refuse(ReasonUnknownTable, "table %q is kept by the trainers", spec.Name)
	case !p.Holds(s.Table, Partition(partition), owner):
		return Refuse(ReasonUnknownBucket, "partition %d is on %s, not on %s", partition,
			p.Owner(p.OwnerOfPartition(s.Table, Partition(partition))), p.Owner(owner))
	}
	return nil
}

// tableKeys maps the keys of a table to its owners.
type tableKeys struct {
	Partitioning
	owners []uint16 // by partition; if the table is cut by columns, every shard has its own columns (Holds)
}

// placeKeys assigns partitions to the shards in turn, or to the trainers if they aggregate. A table that is whole on a
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

// OwnerOfPartition returns the owner that aggregates the gradients of a table's partition. If the table is cut by
// columns, every shard does, for its own columns (Holds).
func (p *Placement) OwnerOfPartition(t Table, part Partition) int { return int(p.keys[t].owners[part]) }

// OwnerOfKey returns the owner that aggregates the gradients of a row. The table must have the key.
func (p *Placement) OwnerOfKey(t Table, key uint64) int {
	k := &p.keys[t]
	part, _ := k.At(key)
	return int(k.owners[part])
}

// elsewhere returns the position of the first key that the table does not have, or whose row an owner does not have; -1
// if there is none.
func (p *Placement) elsewhere(t Table, keys []uint64, owner int) int {
	k := &p.keys[t]
	all := p.Plan.Tables[t].Cut.PooledByShards() // then all rows, or columns of all rows, are here, or none
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

// Partitioning maps the keys of a table to partitions and positions, by PartitionOf, and back, without an index.
// Positions in a partition rise with its keys and have no gaps. Every whole group gives each partition a row; a last
// one of r keys gives one more to r of them. It is read-only, and only for keys that the table has.
//
//	p, at := partitioning.At(65)    // of 64 partitions: 22, 1
//	key := partitioning.Key(22, 1)  // 65
type Partitioning struct {
	rows, partitions uint64
	inverse          uint64 // 2^63/partitions, rounded up: see group
}

// Partitioning returns the partitioning of the table's keys.
func (t *TableSpec) Partitioning() Partitioning {
	p := uint64(t.Partitions)
	return Partitioning{rows: t.Rows, partitions: p, inverse: (1<<63 + p - 1) / p}
}

// group returns key div partitions. The product is less than key/2^63 above the quotient, and only 1/partitions would
// matter: keys are below 2^40 and partitions below 2^16.
func (p *Partitioning) group(key uint64) uint64 {
	high, _ := bits.Mul64(key<<1, p.inverse)
	return high
}

// At returns the partition of a key, and its position there.
func (p *Partitioning) At(key uint64) (Partition, uint64) {
	group := p.group(key)
	return Partition(p.wrapped(key - (group+1)*p.partitions + rotation(group, p.partitions))), group
}

// Key returns the key at a position of a partition.
func (p *Partitioning) Key(part Partition, position uint64) uint64 {
	return position*p.partitions + p.within(uint64(part), position)
}

// within returns the index, within a group, of the key in a partition.
func (p *Partitioning) within(part, group uint64) uint64 {
	return p.wrapped(part - rotation(group, p.partitions))
}

// wrapped adds partitions to a negative number, without a branch, which would be mispredicted half of the time.
func (p *Partitioning) wrapped(i uint64) uint64 { return i + p.partitions&uint64(int64(i)>>63) }

// Rows returns the number of keys of a partition.
func (p *Partitioning) Rows(part Partition) uint64 {
	whole := p.rows / p.partitions
	if p.within(uint64(part), whole) < p.rows%p.partitions {
		return whole + 1
	}
	return whole
}

// From returns the position of a partition's first key from a cursor on, or Rows if there is none.
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

// Slots of table Frame, and the parts around it. A frame of version 1 has no others.
const (
	fieldHead = iota
	fieldValues
	fieldKeys
	fieldSections
	fieldAck
	fieldBody
	fieldBags
	fieldOffsets
	fieldCount

	identifier   = "GB01"
	identifierAt = 4
	vtableMax    = 4 + 2*fieldCount
)

func flatOffset(pos int) flatbuffers.UOffsetT { return flatbuffers.UOffsetT(pos) }

// flatTable is a FlatBuffers table whose own bounds have been checked, but not those of what its fields refer to.
// Errors are constant texts, so that checking allocates nothing.
type flatTable struct {
	data    []byte
	at      int // of the table
	bytes   int // of the table's inline part
	vtable  int
	vfields int // fields the vtable has room for
}

func rootTable(data []byte) (t flatTable, problem string) {
	if len(data) < 8+4+4 {
		return t, "shorter than any frame"
	}
	if string(data[identifierAt:identifierAt+len(identifier)]) != identifier {
		return t, "no file identifier " + identifier + " at byte 4"
	}
	at := uint64(binary.LittleEndian.Uint32(data))
	if at < 8 || at%4 != 0 || at+4 > uint64(len(data)) {
		return t, "root offset outside the frame or not a multiple of 4"
	}
	// The vtable may be before or after its table.
	vtable := int64(at) - int64(int32(binary.LittleEndian.Uint32(data[at:])))
	if vtable < 8 || vtable%2 != 0 || vtable+4 > int64(len(data)) {
		return t, "vtable offset outside the frame or odd"
	}
	vbytes := int64(binary.LittleEndian.Uint16(data[vtable:]))
	tbytes := uint64(binary.LittleEndian.Uint16(data[vtable+2:]))
	switch {
	case vbytes < 4 || vbytes%2 != 0 || vtable+vbytes > int64(len(data)):
		return t, "vtable size odd, below 4 or beyond the frame"
	case vbytes > vtableMax:
		return t, "vtable with fields that version 1 does not have"
	case tbytes < 4 || at+tbytes > uint64(len(data)):
		return t, "table size below 4 or beyond the frame"
	}
	return flatTable{data, int(at), int(tbytes), int(vtable), int(vbytes-4) / 2}, ""
}

// field returns the position of a field with an inline size, 0 if it is absent.
func (t *flatTable) field(slot, size, align int) (pos int, problem string) {
	if slot >= t.vfields {
		return 0, ""
	}
	off := int(binary.LittleEndian.Uint16(t.data[t.vtable+4+2*slot:]))
	switch {
	case off == 0:
		return 0, ""
	case off < 4 || off+size > t.bytes:
		return 0, "field outside its table"
	case (t.at+off)%align != 0:
		return 0, "field not aligned"
	}
	return t.at + off, ""
}

// vector returns the bytes [lo, hi) of a vector's elements. An absent vector is an empty one.
func (t *flatTable) vector(slot, size, align int) (lo, hi int, problem string) {
	pos, problem := t.field(slot, 4, 4)
	if pos == 0 {
		return 0, 0, problem
	}
	rel := binary.LittleEndian.Uint32(t.data[pos:])
	start := uint64(pos) + uint64(rel)
	if rel == 0 || start%4 != 0 || start+4 > uint64(len(t.data)) {
		return 0, 0, "vector offset zero, outside the frame or not a multiple of 4"
	}
	end := start + 4 + uint64(binary.LittleEndian.Uint32(t.data[start:]))*uint64(size)
	switch {
	case end > uint64(len(t.data)):
		return 0, 0, "vector longer than the frame"
	case (start+4)%uint64(align) != 0:
		return 0, 0, "vector not aligned"
	}
	return int(start + 4), int(end), ""
}

// headAt finds the head of any bytes; ok is false if there is none. It is Verify's first step, and enough for the
// sequence number.
func headAt(data []byte) (pos int, ok bool) {
	t, problem := rootTable(data)
	if problem != "" {
		return 0, false
	}
	pos, _ = t.field(fieldHead, headBytes, headAlign)
	return pos, pos != 0
}
