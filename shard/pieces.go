package shard

import (
	"fmt"

	"gradbus/internal/planted"
	"gradbus/schema"
	"gradbus/shard/state"
)

// pieceBytesMax bounds the values of a frame of kind state, but for one row.
const pieceBytesMax = 1 << 19

// A series is the frames, of kind state, by which one shard tells what it has at one version: a frame for each stretch
// of a parameter, and for each run of rows, each numbered by its chunk. The last holds nothing: its chunks says how
// many there are, and its offset, where the frames have FlagMore, after which version of the job they tell what has
// changed.
//
// Values of a stretch are followed by those of each slot. Rows are followed by their slots, and by two values for each
// row's mark where the optimizer has marks (state.SplitMarks). The weight is the number of steps.

// Pieces makes pieces frames and frames pieces, of one job. It is not safe for concurrent use.
type Pieces struct {
	job    *schema.Job
	params map[string]schema.Bucket
	tables map[string]schema.Table
	dense  [][]state.SlotShape // by parameter
	rows   []rowShape          // by table
}

// rowShape is what pieces of a table hold.
type rowShape struct {
	slots []state.SlotShape
	marks bool
}

// values is how many float32 a row of so many columns takes.
func (r *rowShape) values(columns int) int {
	n := columns
	for _, s := range r.slots {
		n += s.Width(columns)
	}
	if r.marks {
		n += 2
	}
	return n
}

// NewPieces is for pieces of a job.
func NewPieces(job *schema.Job) *Pieces {
	p := &Pieces{job: job, params: map[string]schema.Bucket{}, tables: map[string]schema.Table{}}
	for i := range job.Parameters {
		p.params[job.Parameters[i].Name] = schema.Bucket(i)
		p.dense = append(p.dense, state.SlotsOf(job.OptimizerOfParameter(i)))
	}
	for i := range job.Tables {
		o := job.OptimizerOf(schema.Table(i))
		p.tables[job.Tables[i].Name] = schema.Table(i)
		p.rows = append(p.rows, rowShape{state.SlotsOf(o), state.MarksRows(o)})
	}
	return p
}

// Series numbers the frames of one shard's series. Head is what its frames have in common: job, generation, batch and
// flags.
type Series struct {
	Head schema.Head
	Send func(*schema.Frame) error // a frame of its own each time
	sent schema.Chunk
	told map[string]bool // tables of which a frame was sent
}

// Write sends a piece.
func (p *Pieces) Write(s *Series, piece *state.CopyPiece) error {
	for i := range piece.Tensors {
		if err := p.writeTensor(s, piece.Tensors[i]); err != nil {
			return err
		}
	}
	if piece.Rows != nil {
		return p.writeRows(s, piece.Rows)
	}
	return nil
}

// End ends a series, which tells what has changed since a version; 0: all.
func (s *Series) End(since schema.Version) error {
	h := s.Head
	h.Chunks, h.Offset = s.sent+1, uint64(since)
	return s.send(schema.Layout{}, h, nil)
}

func (s *Series) send(l schema.Layout, h schema.Head, fill func(*schema.Frame)) error {
	l.Kind = schema.KindState
	f, err := schema.NewFrame(l)
	if err != nil {
		return err
	}
	h.Chunk = s.sent
	f.SetHead(h)
	if fill != nil {
		fill(f)
	}
	s.sent++
	return s.Send(f)
}

// Answer is the frames by which a piece is told to who has asked for it, in the order of their chunks, of which each
// says how many there are. Of an empty piece it is one frame without values: it is not there any more.
func (p *Pieces) Answer(h schema.Head, piece *state.CopyPiece) ([]*schema.Frame, error) {
	var all []*schema.Frame
	s := Series{Head: h, Send: func(f *schema.Frame) error {
		all = append(all, f)
		return nil
	}}
	err := p.Write(&s, piece)
	if err == nil && len(all) == 0 {
		err = s.send(schema.Layout{}, h, nil)
	}
	for _, f := range all {
		v := f.View()
		h := v.Head()
		h.Chunks = schema.Chunk(len(all))
		f.SetHead(h)
		f.Seal()
	}
	return all, err
}

// ValuesMax is how many values a frame may have at most, but for one row.
func (p *Pieces) ValuesMax() int { return min(pieceBytesMax, p.job.ChunkBytes) / 4 }

// writeTensor cuts a stretch where it is long: no frame has more values than one of gradients may have.
func (p *Pieces) writeTensor(s *Series, t state.Tensor) error {
	h := s.Head
	h.Bucket, h.Weight, h.Flags = p.params[t.Name], float64(t.Steps), h.Flags|schema.FlagParameters
	most := max(1, p.ValuesMax()/(1+len(t.Slots)))
	for lo := 0; lo < len(t.Values); lo += most {
		hi := min(lo+most, len(t.Values))
		h.Offset = uint64(t.From + lo)
		err := s.send(schema.Layout{Values: 4 * (hi - lo) * (1 + len(t.Slots))}, h, func(f *schema.Frame) {
			to := f.Float32s()
			to = to[copy(to, t.Values[lo:hi]):]
			for _, slot := range t.Slots {
				to = to[copy(to, slot.Values[lo:hi]):]
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Pieces) writeRows(s *Series, r *state.Rows) error {
	h, table, n := s.Head, p.tables[r.Table], len(r.Keys)
	if n == 0 && s.told[r.Table] { // one without rows says which version it is, and how many steps there were
		return nil
	}
	if s.told == nil {
		s.told = map[string]bool{}
	}
	s.told[r.Table] = true
	h.Offset, h.Weight = uint64(r.Column), float64(r.Steps)
	last := r.Last
	if planted.Is(planted.SkipReplicaSteps) {
		last = make([]int64, len(last))
	}
	marks, err := state.SplitMarks(nil, last)
	if err != nil {
		return fmt.Errorf("table %q: %w", r.Table, err)
	}
	l := schema.Layout{Sections: 1, Keys: n, Values: 4 * n * p.rows[table].values(r.Columns)}
	return s.send(l, h, func(f *schema.Frame) {
		f.SetSection(0, schema.Section{Table: table, Dim: uint32(r.Columns), Count: uint64(n)})
		copy(f.Keys(), r.Keys)
		to := f.Float32s()
		to = to[copy(to, r.Values):]
		for _, slot := range r.Slots {
			to = to[copy(to, slot.Values):]
		}
		copy(to, marks)
	})
}

// Read gives the piece of a verified frame, which lies in the frame but for marks. It is empty of the last frame of a
// series.
func (p *Pieces) Read(v *schema.View) (state.CopyPiece, error) {
	h := v.Head()
	switch sections := v.Sections(); {
	case h.Flags&schema.FlagParameters != 0 && len(sections) > 0 || len(sections) > 1:
		return state.CopyPiece{}, schema.Refuse(schema.ReasonWrongShape,
			"%d sections of a state frame: want one table or a parameter", len(sections))
	case len(sections) == 1:
		return p.readRows(v, sections[0])
	case h.Flags&schema.FlagParameters != 0:
		return p.readTensor(v)
	case len(v.Values()) > 0 || h.Chunks == 0:
		return state.CopyPiece{}, schema.Refuse(schema.ReasonWrongShape,
			"%d bytes of values of neither a table nor a parameter", len(v.Values()))
	}
	return state.CopyPiece{}, nil
}

func (p *Pieces) readTensor(v *schema.View) (state.CopyPiece, error) {
	h, values := v.Head(), v.Float32s()
	if int(h.Bucket) >= len(p.dense) {
		return state.CopyPiece{}, schema.Refuse(schema.ReasonUnknownBucket, "parameter %d of %d", h.Bucket, len(p.dense))
	}
	spec, slots := &p.job.Parameters[h.Bucket], p.dense[h.Bucket]
	n := len(values) / (1 + len(slots))
	if n == 0 || n*(1+len(slots)) != len(values) || n > spec.Elements() || h.Offset > uint64(spec.Elements()-n) {
		return state.CopyPiece{}, schema.Refuse(schema.ReasonWrongShape,
			"%d values from element %d on of parameter %q, which has %d elements and %d slots", len(values), h.Offset,
			spec.Name, spec.Elements(), len(slots))
	}
	t := state.Tensor{Name: spec.Name, From: int(h.Offset), Values: values[:n], Version: schema.Version(h.Batch),
		Steps: uint64(h.Weight)}
	for i, s := range slots {
		t.Slots = append(t.Slots, state.Slot{Name: s.Name, Values: values[(i+1)*n : (i+2)*n]})
	}
	return state.CopyPiece{Tensors: []state.Tensor{t}}, nil
}

func (p *Pieces) readRows(v *schema.View, s schema.Section) (state.CopyPiece, error) {
	h, values, columns, n := v.Head(), v.Float32s(), int(s.Dim), int(s.Count)
	if int(s.Table) >= len(p.rows) {
		return state.CopyPiece{}, schema.Refuse(schema.ReasonUnknownTable, "table %d of %d", s.Table, len(p.rows))
	}
	shape, spec := &p.rows[s.Table], &p.job.Tables[s.Table]
	want := n * shape.values(columns)
	if len(values) != want || columns > spec.Dim || h.Offset > uint64(spec.Dim-columns) {
		return state.CopyPiece{}, schema.Refuse(schema.ReasonWrongShape,
			"%d values for %d rows of columns %d to %d of table %q: want %d of at most %d columns", len(values), n, h.Offset,
			h.Offset+uint64(columns)-1, spec.Name, want, spec.Dim)
	}
	r := &state.Rows{Table: spec.Name, Column: int(h.Offset), Columns: columns, Keys: v.Keys(),
		Version: schema.Version(h.Batch), Steps: uint64(h.Weight)}
	take := func(count int) (part []float32) {
		part, values = values[:count:count], values[count:]
		return part
	}
	r.Values = take(n * columns)
	for _, slot := range shape.slots {
		r.Slots = append(r.Slots, state.Slot{Name: slot.Name, Values: take(n * slot.Width(columns))})
	}
	if shape.marks {
		var err error
		if r.Last, err = state.JoinMarks(nil, values); err != nil {
			return state.CopyPiece{}, schema.Refuse(schema.ReasonWrongShape, "table %q: %v", spec.Name, err)
		}
	}
	return state.CopyPiece{Rows: r}, nil
}
