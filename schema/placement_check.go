package schema

// CheckFrame checks a verified frame to or from an owner against the job: that its bucket is known and is that owner's,
// that chunk, offset and lengths are what the placement says, and that tables, dims and keys exist and are that
// owner's. Kinds that have none of these pass. It reads every key once and no value. Errors are *FrameError.
func (p *Placement) CheckFrame(v *View, owner int) error {
	if err := p.checkFrame(v, owner); err != nil {
		return err
	}
	return nil
}

// CheckWire checks a verified frame's form alone, which CheckFrame does too: gradients are of the type that the job's
// manifest names, and tables travel as bags only where it says so. Errors are *FrameError.
func (p *Placement) CheckWire(v *View) error {
	if err := p.checkWire(v); err != nil {
		return err
	}
	return nil
}

func (p *Placement) checkWire(v *View) *FrameError {
	if want := p.Plan.DType; rules[v.head.Kind].half && v.head.DType != want {
		return Refuse(ReasonWrongDType, "%v values: the job's gradients travel as %v", v.head.DType, want)
	}
	if v.bags.bytes() != 0 && (v.head.Kind != KindSparse || p.Plan.Sparse == AsRows) {
		return p.checkBagTables(v)
	}
	return nil
}

func (p *Placement) checkFrame(v *View, owner int) *FrameError {
	h := v.Head()
	if rules[h.Kind].node != never && int(h.Lanes) != p.job.Lanes {
		return Refuse(ReasonWrongNode, "%d lanes: the job has %d", h.Lanes, p.job.Lanes)
	}
	if err := p.checkWire(v); err != nil {
		return err
	}
	switch h.Kind {
	case KindDense, KindMean:
		if err := p.checkBucket(h.Bucket, h.Chunk, owner); err != nil {
			return err
		}
		rows := v.sections.bytes() != 0
		switch {
		case p.IsDense(h.Bucket) && rows:
			return Refuse(ReasonUnknownBucket, "bucket %d of a %v frame with rows is dense", h.Bucket, h.Kind)
		case p.IsDense(h.Bucket):
			return p.checkChunk(v)
		case h.Kind == KindDense || v.values.bytes() != 0 && !rows:
			return Refuse(ReasonUnknownBucket, "bucket %d of a %v frame with values is sparse", h.Bucket, h.Kind)
		}
		return p.checkMeans(v, owner)
	case KindSparse:
		if h.Bucket != p.SparseBucket(owner) {
			return Refuse(ReasonUnknownBucket, "bucket %d: the sparse bucket of %s is %d", h.Bucket, p.Owner(owner),
				p.SparseBucket(owner))
		}
		_, err := p.CheckTables(v, owner)
		return err
	case KindLookup, KindRows:
		_, err := p.CheckTables(v, owner)
		return err
	case KindPull:
		return p.checkPull(v, owner)
	case KindForward, KindBackward, KindStep, KindWeights, KindOutput:
		return p.checkModule(v, owner)
	}
	return nil
}

// checkMeans checks the result of a sparse round: rows of tables that trainers keep.
func (p *Placement) checkMeans(v *View, owner int) *FrameError {
	for _, s := range v.Sections() {
		if uint64(s.Table) < uint64(len(p.job.Tables)) && !p.job.Tables[s.Table].Replicated {
			return Refuse(ReasonUnknownTable, "means of table %q, whose rows are on shards", p.job.Tables[s.Table].Name)
		}
	}
	_, err := p.CheckTables(v, owner)
	return err
}

func (p *Placement) checkBucket(b Bucket, c Chunk, owner int) *FrameError {
	switch {
	case !p.Known(b):
		return Refuse(ReasonUnknownBucket, "bucket %d: the job has %d", b, len(p.Buckets)+p.Owners())
	case p.IsDense(b) && int64(c) >= int64(p.Chunks(b)):
		return Refuse(ReasonWrongChunk, "chunk %d of bucket %d: it has %d", c, b, p.Chunks(b))
	case p.OwnerOfChunk(b, c) != owner:
		return Refuse(ReasonUnknownBucket, "chunk %d of bucket %d is on %s, not on %s", c, b, p.Owner(p.OwnerOfChunk(b, c)),
			p.Owner(owner))
	}
	return nil
}

// checkChunk checks a dense chunk. Without weight it may have no values: nobody contributed.
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

// CheckTables is what CheckFrame does with the tables and keys of a frame. values is how many its rows have, or those
// of its bags: in a lookup those that are asked for.
func (p *Placement) CheckTables(v *View, owner int) (values int, refused *FrameError) {
	for _, part := range v.Parts() {
		if err := p.checkTable(part.Table, part.Dim, owner, v.head.Kind == KindSparse); err != nil {
			return 0, err
		}
		if at := p.Elsewhere(part.Table, part.Keys, owner); at >= 0 {
			return 0, p.refuseKey(part.Table, part.Keys[at], owner)
		}
		rows := len(part.Keys)
		if part.Bags > 0 {
			rows = part.Bags
		}
		values += rows * part.Dim
	}
	return values, nil
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

// checkPull: without a section, bucket and chunk say which result is asked for; with one, bucket is a partition.
func (p *Placement) checkPull(v *View, owner int) *FrameError {
	h := &v.head
	if v.sections.bytes() != 0 {
		return p.checkTablePull(h.Bucket, v.Section(0), owner)
	}
	return p.checkBucket(h.Bucket, h.Chunk, owner)
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
