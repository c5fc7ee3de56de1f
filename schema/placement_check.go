package schema

import "math"

// frameRule is what a kind's frames hold in one job, beside what all frames of the kind hold (rule). The zero value is
// of a kind without any field that depends on the job.
type frameRule struct {
	names  named
	tables bool       // sections and keys are of rows that the owner has
	stored bool       // likewise, and shards keep these tables
	flags  []flagRule // of flags that not every job has
}

// named is what bucket, chunk, chunks, offset and lengths of a frame say.
type named uint8

const (
	namesNothing  named = iota
	namesChunk          // a dense chunk that the owner adds up
	namesRows           // the rows that the owner adds up
	namesResult         // either
	namesNoBucket       // none: keys say it all
	namesAnswer         // none, or the partition that a pull has named
	namesPulled         // a result, parameters, or a partition
	namesModule
	namesState // a stretch of a parameter, or rows
)

// flagRule is the jobs in which flags are legal, with a section and without.
type flagRule struct {
	flags uint32
	legal func(p *Placement, section bool) bool
}

// frameRules is, with rules, the one place that says what frames may hold.
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
		flags: []flagRule{{FlagMore, func(*Placement, bool) bool { return false }}}}, // which shards alone tell
}

// haveParameters reports whether shards have the parameters.
func (p *Placement) haveParameters(bool) bool { return p.Plan.Owner == ByShards }

// askTrainers reports whether shards ask trainers for what these have, and so say which version is to be copied.
func (p *Placement) askTrainers(bool) bool { return p.trainers != nil }

// giveParameters reports whether parameters may be asked for, or rows that trainers have.
func (p *Placement) giveParameters(section bool) bool {
	return p.trainers != nil || p.Plan.Owner == ByShards && !section
}

// CheckFrame checks every field of a verified frame to or from an owner against the job: that its bucket is known and
// is that owner's, that chunk, offset and lengths are what the placement says, that tables, dims and keys exist and are
// that owner's, and that its flags are legal in the job. Batch, generation and sender are the receiver's to check.
// Kinds that have none of these pass. It reads every key once and no value. Errors are *FrameError.
func (p *Placement) CheckFrame(v *View, owner int) error {
	if err := p.checkFrame(v, owner); err != nil {
		return err
	}
	return nil
}

// checkWire checks a frame's form: gradients are of the type that the job's manifest names, and only those tables
// travel as bags that may.
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

// checkNames calls the check of what a frame names. It is no table of functions, through which views would escape.
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

// checkLookup: rows are asked for by their keys alone.
func (p *Placement) checkLookup(v *View) *FrameError {
	if b := v.head.Bucket; b != 0 {
		return Refuse(ReasonUnknownBucket, "bucket %d: a lookup has none", b)
	}
	return nil
}

// checkRows: rows that answer a pull are of the partition that it named.
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

// checkState checks a piece of what a trainer has, which the owner, a shard, has asked for. What slots the optimizer
// has, and so how many values there are, is for its reader to check.
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
	case len(sections) == 0: // the trainer has nothing of the version any more
		return nil
	}
	if t := sections[0].Table; uint64(t) < uint64(len(p.job.Tables)) && !p.job.Tables[t].Replicated {
		return Refuse(ReasonUnknownTable, "rows of table %q, which shards keep", p.job.Tables[t].Name)
	}
	return p.trainers.checkTables(v, owner, false)
}

// checkStretch checks where a stretch of a parameter begins: in a chunk that the owner has.
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

// checkMeans checks the result of a sparse round: rows of tables that trainers keep.
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

// checkChunk checks a dense chunk. Without weight it may have no values: no lane contributed.
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

// checkTables checks the tables and keys of a frame; stored: the tables are those that shards keep.
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

// checkPull: without a section, bucket and chunk say which result is asked for; with one, bucket is a partition. What
// trainers have is asked for where it would be if shards had it, and passed on under a number made of the sequence.
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
