package ps

import (
	"fmt"
	"sort"

	"gradbus/schema"
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
	values, refused := s.checkSections(v)
	if refused != nil {
		return refused, nil
	}
	for _, part := range v.Parts() {
		if spec := &s.job.Tables[part.Table]; spec.Replicated {
			return schema.Refuse(schema.ReasonUnknownTable, "table %q is kept by the trainers", spec.Name), nil
		}
	}
	rows := len(v.Keys())
	if 4*values > answerBytesMax && rows > 1 {
		return schema.Refuse(schema.ReasonOversized, "%d keys ask for %d bytes of rows: want at most %d in one lookup", rows, 4*values, answerBytesMax), nil
	}
	if bytes := 4*values + len(v.Bytes()) + frameBytesOver; bytes > schema.FrameBytesMax {
		return schema.Refuse(schema.ReasonOversized, "%d keys and their rows take %d bytes: want at most %d in one lookup", rows, bytes, schema.FrameBytesMax), nil
	}
	s.advance(l, h.Batch)
	f, err := s.answer(schema.Layout{Kind: schema.KindRows, Values: 4 * values, Keys: rows, Sections: len(v.Sections())})
	if err != nil {
		return nil, err
	}
	copy(f.Keys(), v.Keys())
	copy(f.Sections(), v.Sections())
	out := f.Float32s()
	for _, part := range v.Parts() {
		t := s.tables[part.Table] // nil only where the part has no keys
		for _, key := range part.Keys {
			out = out[copy(out, t.row(int(t.slots[key]))):]
		}
	}
	s.outputRows(host, h, 0)
	return nil, nil
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

func (s *Shard) outputRows(host int, h *schema.Head, flags uint32) {
	lag := schema.Batch(0)
	if l := s.line(host); s.job.Consistency == schema.ConsistencyBounded && l.sparse.Closed() < h.Batch {
		lag = h.Batch - l.sparse.Closed()
	}
	s.rows.SetHead(schema.Head{
		Offset: uint64(lag),
		Kind:   schema.KindRows, Job: s.run, Generation: s.generation, Batch: h.Batch, Bucket: h.Bucket, Chunk: h.Chunk, Chunks: h.Chunks,
		Lanes: uint16(s.job.Lanes), DType: schema.DTypeFloat32, Flags: flags,
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
	p, ok := t.find(schema.Partition(h.Bucket))
	if !ok {
		return schema.Refuse(schema.ReasonUnknownBucket, "partition %d of table %q is not on %s", h.Bucket, t.spec.Name, s.member), nil
	}
	s.advance(l, h.Batch)
	return nil, s.answerPartition(host, h, t, p, v.Keys()[0], sec.Count)
}

func (s *Shard) answerPartition(host int, h *schema.Head, t *table, p partition, cursor, limit uint64) error {
	keys := t.keys[p.first:p.end]
	at := sort.Search(len(keys), func(i int) bool { return uint64(keys[i]) >= cursor })
	fit := max(1, s.job.ChunkBytes/(4*t.dim))
	n := min(len(keys)-at, fit)
	if uint64(n) > limit {
		n = int(limit)
	}
	f, err := s.answer(schema.Layout{Kind: schema.KindRows, Values: 4 * n * t.dim, Keys: n, Sections: 1})
	if err != nil {
		return err
	}
	for i := range n {
		f.Keys()[i] = uint64(keys[at+i])
	}
	first := (p.first + at) * t.dim
	copy(f.Float32s(), t.rows[first:first+n*t.dim])
	f.SetSection(0, schema.Section{Table: t.id, Dim: uint32(t.dim), Count: uint64(n)})
	var flags uint32
	if at+n < len(keys) {
		flags = schema.FlagMore
	}
	s.outputRows(host, h, flags)
	return nil
}
