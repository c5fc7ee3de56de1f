package ps

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/state"
)

// answerBytesMax bounds the values in one answer: frames above 4 MiB are slower, not faster.
const answerBytesMax = 4 << 20

// stepLookup answers with the rows of the keys asked for, at the version of the batch named.
func (s *Shard) stepLookup(host int, h *schema.Head, v *schema.View) (*refusal, error) {
	l := s.line(host)
	_, refused := s.reach(l, h.Batch)
	if refused != nil {
		return refused, nil
	}
	values, refused := s.checkSections(v, false)
	if refused != nil {
		return refused, nil
	}
	for _, part := range v.Parts() {
		if spec := &s.job.Tables[part.Table]; spec.Replicated {
			return schema.Refuse(schema.ReasonUnknownTable, "table %q is kept by the trainers", spec.Name), nil
		}
	}
	if v.Bags() != nil {
		if err := s.place.CheckWire(v); err != nil {
			return schema.Refusing(err), nil
		}
	}
	rows, layout := len(v.Keys()), answerLayout(v, values)
	if 4*values > answerBytesMax && (layout.Keys > 1 || layout.Pooled) {
		return schema.Refuse(schema.ReasonOversized, "%d keys ask for %d bytes of rows: want at most %d in one lookup", rows, 4*values, answerBytesMax), nil
	}
	if bytes := 4*values + len(v.Bytes()) + frameBytesOver; bytes > schema.FrameBytesMax {
		return schema.Refuse(schema.ReasonOversized, "%d keys and their rows take %d bytes: want at most %d in one lookup", rows, bytes, schema.FrameBytesMax), nil
	}
	s.advance(l, h.Batch)
	if err := s.fillAnswer(v, layout); err != nil {
		return nil, err
	}
	s.outputRows(host, h, 0)
	if s.journal != nil {
		s.journal(Journal{Kind: schema.KindLookup, From: s.hosts[host].Member, Batch: h.Batch})
	}
	return nil, nil
}

// answerLayout is the room that the answer to a lookup takes. Bags are answered without their keys.
func answerLayout(v *schema.View, values int) schema.Layout {
	l := schema.Layout{Kind: schema.KindRows, Values: 4 * values, Keys: len(v.Keys()), Sections: len(v.Sections()), Pooled: v.Bags() != nil}
	for i, b := range v.Bags() {
		if b.Count > 0 {
			l.Keys -= int(v.Section(i).Count)
		}
	}
	return l
}

// fillAnswer puts rows, and pooled rows of bags, into the answer to a lookup.
func (s *Shard) fillAnswer(v *schema.View, layout schema.Layout) error {
	f, err := s.answer(layout)
	if err != nil {
		return err
	}
	sections, keys, out := f.Sections(), f.Keys(), f.Float32s()
	copy(sections, v.Sections())
	copy(f.Bags(), v.Bags())
	for i, part := range v.Parts() {
		t := s.tables[part.Table] // nil only where the part has no keys
		if part.Bags > 0 {
			sections[i].Count = 0
			if err := s.pool(t, &part, out[:part.Bags*part.Dim]); err != nil {
				return err
			}
			out = out[part.Bags*part.Dim:]
			continue
		}
		keys = keys[copy(keys, part.Keys):]
		if n := len(part.Keys) * part.Dim; n > 0 {
			if err := t.Gather(part.Keys, out[:n]); err != nil {
				return fmt.Errorf("read %d rows of table %q: %w", len(part.Keys), s.job.Tables[part.Table].Name, err)
			}
			out = out[n:]
		}
	}
	return nil
}

// pool writes a pooled row for each bag of a part: the sum over its keys in the order of their positions, or their mean.
func (s *Shard) pool(t state.Table, part *schema.Part, out []float32) error {
	spec, mode := &s.job.Tables[part.Table], cuda.Sum
	if spec.Mean() {
		mode = cuda.Mean
	}
	if err := t.Pool(state.Bags{Mode: mode, Keys: part.Keys, Offsets: part.Offsets}, out); err != nil {
		return fmt.Errorf("pool %d bags of table %q: %w", part.Bags, spec.Name, err)
	}
	return nil
}

// answer readies the frame of rows for a layout.
func (s *Shard) answer(l schema.Layout) (f *schema.Frame, err error) {
	if s.rows == nil {
		s.rows, err = schema.NewFrame(l)
	} else {
		err = s.rows.Reset(l)
	}
	if err != nil {
		return nil, fmt.Errorf("build answer of %d keys: %w", l.Keys, err)
	}
	return s.rows, nil
}

// outputRows answers the request that h is the head of: the answer has its number.
func (s *Shard) outputRows(host int, h *schema.Head, flags uint32) {
	lag := schema.Batch(0)
	if l := s.line(host); l.ahead > 0 && l.sparse != nil && l.sparse.Closed() < h.Batch {
		lag = h.Batch - l.sparse.Closed()
	}
	s.rows.SetHead(schema.Head{
		Offset: uint64(lag),
		Kind:   schema.KindRows, Job: s.run, Generation: s.generation, Batch: h.Batch, Bucket: h.Bucket, Chunk: h.Chunk, Chunks: h.Chunks,
		Lanes: uint16(s.job.Lanes), DType: schema.DTypeFloat32, Flags: flags, Sequence: h.Sequence,
	})
	s.outputs = append(s.outputs, Output{Kind: schema.KindRows, To: s.hosts[host].Member, Batch: h.Batch, Bucket: h.Bucket, Frame: s.rows.Seal()})
}

// pullTable answers with the rows of one partition from a cursor key on, as many as are asked for and fit.
func (s *Shard) pullTable(host int, h *schema.Head, v *schema.View) (*refusal, error) {
	l := s.line(host)
	_, refused := s.reach(l, h.Batch)
	if refused != nil {
		return refused, nil
	}
	sec := v.Section(0)
	t := s.tables[sec.Table] // not nil: CheckFrame has found the partition to be on this shard
	left, ok := t.Left(schema.Partition(h.Bucket), v.Keys()[0])
	if !ok {
		return schema.Refuse(schema.ReasonUnknownBucket, "partition %d of table %q is not on %s", h.Bucket, s.job.Tables[sec.Table].Name, s.member), nil
	}
	s.advance(l, h.Batch)
	return nil, s.answerPartition(host, h, sec, v.Keys()[0], left)
}

// answerPartition answers with the rows of a partition from a cursor on, of which so many are left.
func (s *Shard) answerPartition(host int, h *schema.Head, asked schema.Section, cursor uint64, left int) error {
	_, dim := s.place.Columns(asked.Table, s.index)
	n := min(left, max(1, s.job.ChunkBytes/(4*dim)))
	if uint64(n) > asked.Count {
		n = int(asked.Count)
	}
	f, err := s.answer(schema.Layout{Kind: schema.KindRows, Values: 4 * n * dim, Keys: n, Sections: 1})
	if err != nil {
		return err
	}
	if err := s.tables[asked.Table].Scan(schema.Partition(h.Bucket), cursor, f.Keys(), f.Float32s()); err != nil {
		return fmt.Errorf("scan table %q: %w", s.job.Tables[asked.Table].Name, err)
	}
	f.SetSection(0, schema.Section{Table: asked.Table, Dim: uint32(dim), Count: uint64(n)})
	var flags uint32
	if n < left {
		flags = schema.FlagMore
	}
	s.outputRows(host, h, flags)
	return nil
}
