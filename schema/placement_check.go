package schema

// CheckFrame checks a verified frame to or from a shard against the job: that its bucket is known and on that shard,
// that chunk, offset and lengths are what the placement says, and that tables, dims and keys exist and are on that
// shard. Kinds that have none of these pass. It reads every key once and no value. Errors are *FrameError.
func (p *Placement) CheckFrame(v *View, shard int) error {
	if err := p.checkFrame(v, shard); err != nil {
		return err
	}
	return nil
}

func (p *Placement) checkFrame(v *View, shard int) *FrameError {
	h := v.Head()
	if rules[h.Kind].node != never && int(h.Lanes) != p.job.Lanes {
		return refused(ReasonWrongNode, "%d lanes: the job has %d", h.Lanes, p.job.Lanes)
	}
	switch h.Kind {
	case KindDense, KindMean:
		if err := p.checkBucket(h.Bucket, shard); err != nil {
			return err
		}
		if p.IsDense(h.Bucket) {
			return p.checkChunk(v)
		}
		if h.Kind == KindDense || v.values.bytes() != 0 {
			return refused(ReasonUnknownBucket, "bucket %d of a %v frame with values is sparse", h.Bucket, h.Kind)
		}
		return nil
	case KindSparse:
		if h.Bucket != p.SparseBucket(shard) {
			return refused(ReasonUnknownBucket, "bucket %d: the sparse bucket of shard %d is %d", h.Bucket, shard, p.SparseBucket(shard))
		}
		return p.checkTables(v, shard)
	case KindLookup, KindRows:
		return p.checkTables(v, shard)
	case KindPull:
		return p.checkPull(v, shard)
	}
	return nil
}

func (p *Placement) checkBucket(b Bucket, shard int) *FrameError {
	switch {
	case !p.Known(b):
		return refused(ReasonUnknownBucket, "bucket %d: the job has %d", b, len(p.Buckets)+p.Shards)
	case p.ShardOfBucket(b) != shard:
		return refused(ReasonUnknownBucket, "bucket %d is on shard %d, not on %d", b, p.ShardOfBucket(b), shard)
	}
	return nil
}

// checkChunk checks a dense chunk. Without weight it may have no values: nobody contributed.
func (p *Placement) checkChunk(v *View) *FrameError {
	h := &v.head
	if have, want := int64(h.Chunks), int64(p.Chunks(h.Bucket)); have != want {
		return refused(ReasonWrongChunk, "%d chunks of bucket %d: it has %d", have, h.Bucket, want)
	}
	offset, elements := p.ChunkRange(h.Bucket, h.Chunk)
	if h.Offset != uint64(offset) {
		return refused(ReasonWrongShape, "chunk %d of bucket %d at element %d: want %d", h.Chunk, h.Bucket, h.Offset, offset)
	}
	have := v.values.bytes() / valueBytes
	if have == elements || (have == 0 && h.Weight == 0) {
		return nil
	}
	return refused(ReasonWrongShape, "chunk %d of bucket %d with %d values: want %d", h.Chunk, h.Bucket, have, elements)
}

func (p *Placement) checkTables(v *View, shard int) *FrameError {
	for _, part := range v.Parts() {
		if err := p.checkTable(part.Table, part.Dim); err != nil {
			return err
		}
		spec := &p.job.Tables[part.Table]
		for _, key := range part.Keys {
			switch {
			case key >= spec.Rows:
				return refused(ReasonUnknownKey, "key %d of table %q: it has %d rows", key, spec.Name, spec.Rows)
			case p.ShardOfPartition(PartitionOf(key, spec.Partitions)) != shard:
				return refused(ReasonUnknownKey, "key %d of table %q is on shard %d, not on %d", key, spec.Name, p.ShardOfKey(part.Table, key), shard)
			}
		}
	}
	return nil
}

func (p *Placement) checkTable(t Table, dim int) *FrameError {
	if uint64(t) >= uint64(len(p.job.Tables)) {
		return refused(ReasonUnknownTable, "table %d: the job has %d", t, len(p.job.Tables))
	}
	if spec := &p.job.Tables[t]; dim != spec.Dim {
		return refused(ReasonWrongShape, "dim %d of table %q: want %d", dim, spec.Name, spec.Dim)
	}
	return nil
}

// checkPull: without a section, bucket and chunk say which result is asked for; with one, bucket is a partition.
func (p *Placement) checkPull(v *View, shard int) *FrameError {
	h := &v.head
	if v.sections.bytes() != 0 {
		return p.checkTablePull(h.Bucket, v.Section(0), shard)
	}
	if err := p.checkBucket(h.Bucket, shard); err != nil {
		return err
	}
	if p.IsDense(h.Bucket) && int64(h.Chunk) >= int64(p.Chunks(h.Bucket)) {
		return refused(ReasonWrongChunk, "chunk %d of bucket %d: it has %d", h.Chunk, h.Bucket, p.Chunks(h.Bucket))
	}
	return nil
}

func (p *Placement) checkTablePull(partition Bucket, s Section, shard int) *FrameError {
	if err := p.checkTable(s.Table, int(s.Dim)); err != nil {
		return err
	}
	spec := &p.job.Tables[s.Table]
	switch {
	case uint64(partition) >= uint64(spec.Partitions):
		return refused(ReasonUnknownBucket, "partition %d of table %q: it has %d", partition, spec.Name, spec.Partitions)
	case p.ShardOfPartition(Partition(partition)) != shard:
		return refused(ReasonUnknownBucket, "partition %d is on shard %d, not on %d", partition, p.ShardOfPartition(Partition(partition)), shard)
	}
	return nil
}
