package shard

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/state"
)

// answerBytesMax bounds the values in one answer: frames above 4 MiB are slower, not faster.
const answerBytesMax = 4 << 20

// FrameBytesOver bounds what a frame has besides its values, keys and sections.
const FrameBytesOver = 1 << 10

// stepLookup answers with the rows of the keys asked for, at the version of the batch named, or parks the lookup until
// they are there.
func (s *Shard) stepLookup(contributor int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	early, refused := s.clock.Line(contributor).ReachRows(h.Batch)
	previous := refused != nil && s.reachesPrevious(contributor, h.Batch)
	if refused == nil || previous {
		refused = checkLookup(v)
	}
	if refused != nil {
		return refused, nil
	}
	if early {
		s.park(contributor, h, v, payload)
		return nil, nil
	}
	if previous {
		h, v := *h, *v
		return nil, s.readPrevious(func() error { return s.answerLookup(contributor, &h, &v) })
	}
	return nil, s.answerLookup(contributor, h, v)
}

// checkLookup checks that the answer to a lookup fits a frame.
func checkLookup(v *schema.View) *refusal {
	values := valuesOf(v)
	rows, layout := len(v.Keys()), answerLayout(v, values)
	if 4*values > answerBytesMax && (layout.Keys > 1 || layout.Pooled) {
		return schema.Refuse(schema.ReasonOversized,
			"%d keys ask for %d bytes of rows: want at most %d in one lookup", rows, 4*values, answerBytesMax)
	}
	if bytes := 4*values + len(v.Bytes()) + FrameBytesOver; bytes > schema.FrameBytesMax {
		return schema.Refuse(schema.ReasonOversized,
			"%d keys and their rows take %d bytes: want at most %d in one lookup", rows, bytes, schema.FrameBytesMax)
	}
	return nil
}

// answerLookup answers a lookup that checkLookup has passed.
func (s *Shard) answerLookup(contributor int, h *schema.Head, v *schema.View) error {
	if err := s.fillAnswer(v, answerLayout(v, valuesOf(v))); err != nil {
		return err
	}
	s.outputRows(contributor, h, s.asksToCopy(schema.Version(h.Batch)))
	if s.config.Journal != nil {
		s.config.Journal(Journal{Kind: schema.KindLookup, From: s.config.Contributors[contributor].Member, Batch: h.Batch})
	}
	return nil
}

// valuesOf is how many values the answer to a lookup has: a row for each key, or for each bag.
func valuesOf(v *schema.View) (values int) {
	for _, part := range v.Parts() {
		rows := len(part.Keys)
		if part.Bags > 0 {
			rows = part.Bags
		}
		values += part.Dim * rows
	}
	return values
}

// answerLayout is the room that the answer to a lookup takes. Bags are answered without their keys.
func answerLayout(v *schema.View, values int) schema.Layout {
	l := schema.Layout{Kind: schema.KindRows, Values: 4 * values, Keys: len(v.Keys()), Sections: len(v.Sections()),
		Pooled: v.Bags() != nil}
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
				return fmt.Errorf("read %d rows of table %q: %w", len(part.Keys), s.config.Job.Tables[part.Table].Name, err)
			}
			out = out[n:]
		}
	}
	return nil
}

// pool writes a pooled row for each bag of a part: the sum over its keys in the order of their positions, or their
// mean.
func (s *Shard) pool(t state.Table, part *schema.Part, out []float32) error {
	spec, mode := &s.config.Job.Tables[part.Table], cuda.Sum
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

// outputRows answers the request that h is the head of: the answer has its number. It says that the rounds before the
// version of the rows are over, and has the weight of the last of them.
func (s *Shard) outputRows(contributor int, h *schema.Head, flags uint32) {
	lag, weight := schema.Batch(0), 0.0
	if l := s.clock.Line(contributor); l.Sparse != nil {
		lag, weight = h.Batch-min(h.Batch, l.Sparse.Closed()), l.Sparse.Weight()
		if h.Batch < l.Sparse.Closed() { // of the version before
			weight = l.Sparse.WeightBefore()
		}
	}
	s.rows.SetHead(schema.Head{
		Offset: uint64(lag),
		Kind:   schema.KindRows, Job: s.config.RunID, Generation: s.since[contributor], Batch: h.Batch, Bucket: h.Bucket,
		Chunk: h.Chunk, Chunks: h.Chunks,
		Lanes: uint16(s.config.Job.Lanes), DType: schema.DTypeFloat32, Flags: flags, Sequence: h.Sequence, Weight: weight,
	})
	s.rows.Seal()
	s.output(schema.KindRows, s.config.Contributors[contributor].Member, h.Batch, h.Bucket, s.rows)
}

// pullTable answers with the rows of one partition from a cursor key on, as many as are asked for and fit.
func (s *Shard) pullTable(contributor int, h *schema.Head, v *schema.View) (*refusal, error) {
	l := s.clock.Line(contributor)
	_, refused := l.Reach(h.Batch)
	previous := false
	if refused == nil {
		if _, refused = l.ReachRows(h.Batch); refused != nil {
			previous = s.reachesPrevious(contributor, h.Batch)
		}
	}
	if refused != nil && !previous {
		return refused, nil
	}
	sec := v.Section(0)
	t := s.tables[sec.Table] // not nil: CheckFrame has found the partition to be on this shard
	left := t.Left(schema.Partition(h.Bucket), v.Keys()[0])
	if previous {
		h, cursor := *h, v.Keys()[0]
		return nil, s.readPrevious(func() error { return s.answerPartition(contributor, &h, sec, cursor, left) })
	}
	l.Advance(h.Batch)
	s.beginCopy(l)
	return nil, s.answerPartition(contributor, h, sec, v.Keys()[0], left)
}

// answerPartition answers with the rows of a partition from a cursor on, of which so many are left.
func (s *Shard) answerPartition(contributor int, h *schema.Head, asked schema.Section, cursor uint64, left int) error {
	_, dim := s.config.Placement.Columns(asked.Table, s.config.Index)
	n := min(left, max(1, s.config.Job.ChunkBytes/(4*dim)))
	if uint64(n) > asked.Count {
		n = int(asked.Count)
	}
	f, err := s.answer(schema.Layout{Kind: schema.KindRows, Values: 4 * n * dim, Keys: n, Sections: 1})
	if err != nil {
		return err
	}
	if err := s.tables[asked.Table].Scan(schema.Partition(h.Bucket), cursor, f.Keys(), f.Float32s()); err != nil {
		return fmt.Errorf("scan table %q: %w", s.config.Job.Tables[asked.Table].Name, err)
	}
	f.SetSection(0, schema.Section{Table: asked.Table, Dim: uint32(dim), Count: uint64(n)})
	var flags uint32
	if n < left {
		flags = schema.FlagMore
	}
	s.outputRows(contributor, h, flags)
	return nil
}
