package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"gradbus/internal/planted"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// Standby is what the shards of a job have at one version, on a ps that goes on with the job when the one that serves
// it is lost. It takes the series of frames by which the shards there tell of it, and gives shards here something to
// begin with: rows lie where they will be needed. It is always of one version, whole: changes wait until all of them
// are there, and until Commit, since others may have to have them, too. It is not safe for concurrent use.
type Standby struct {
	job     *schema.Job
	most    int64 // bytes that may wait
	pieces  *Pieces
	lr      *state.LRChanges
	tables  [][]state.Table // by shard here, by table
	dense   []state.Tensor  // of version
	given   atomic.Int64    // shards that have it
	version schema.Version  // 0: none is whole

	next    schema.Version // that is being told of
	whole   bool           // all of next has come
	series  []seriesHeard  // by shard that tells
	ended   int
	waiting []waitingPiece // of what has changed
	bytes   int64          // of these
	told    state.Snapshot // of next: stretches of parameters
	rows    []state.RowsRestore
}

// seriesHeard is what has come of a series.
type seriesHeard struct {
	frames, chunks schema.Chunk // chunks is 0 before the last has come
}

// waitingPiece is changes of rows, which lie in a payload.
type waitingPiece struct {
	rows    *state.Rows
	payload Payload
}

// ErrSeries says that a series does not follow what is there, so that all has to be told anew.
var ErrSeries = errors.New("series of frames does not follow")

// NewStandby makes room for what so many shards there tell. configs are those of the shards here, of which job,
// placement, index, backend, Undo and Touches are needed. What is told of a version that is not whole may take so
// many bytes.
func NewStandby(ctx context.Context, told int, configs []Config, bytesMax int64) (*Standby, error) {
	s := &Standby{job: configs[0].Job, most: bytesMax, pieces: NewPieces(configs[0].Job), lr: &state.LRChanges{},
		series: make([]seriesHeard, told)}
	for i := range configs {
		one := model{lr: s.lr}
		err := one.makeTables(ctx, &configs[i])
		s.tables = append(s.tables, one.tables)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("stand by for job %s: %w", s.job.Name, err)
		}
	}
	return s, nil
}

// Close frees memory. What was given to shards is theirs.
func (s *Standby) Close() {
	s.forget()
	for _, t := range slices.Concat(s.tables...) {
		if t != nil {
			t.Close()
		}
	}
	s.tables, s.dense = nil, nil
}

// Version is the one that is whole; 0: none is.
func (s *Standby) Version() schema.Version { return s.version }

// Whole is a later version of which all has come; 0: none is there. Commit makes it the standby's.
func (s *Standby) Whole() schema.Version {
	if !s.whole {
		return 0
	}
	return s.next
}

// Take takes a frame of the series that a shard there tells, each once and in any order. whole says that with it all
// have told of a later version, for Commit: a frame of one that is later still has it forgotten. The payload is
// released when its bytes are needed no more. After ErrSeries, and after errors of what does not fit, all is to be told
// anew.
func (s *Standby) Take(from int, v *schema.View, payload Payload) (whole bool, err error) {
	h := v.Head()
	at := schema.Version(h.Batch)
	if from < 0 || from >= len(s.series) {
		round.Release(payload)
		return false, schema.Refuse(schema.ReasonUnknownSender, "shard %d of %d", from, len(s.series))
	}
	if at < s.next || at <= s.version { // of one that was given up
		round.Release(payload)
		return false, nil
	}
	changes := h.Flags&schema.FlagMore != 0
	if at > s.next {
		s.forget()
		s.next = at
		if !changes {
			s.begin()
		}
	}
	piece, err := s.pieces.Read(v)
	if err == nil && !changes && s.rows == nil || changes && s.rows != nil {
		err = fmt.Errorf("%w: version %d is told as changes and as a whole", ErrSeries, at)
	}
	if err != nil {
		round.Release(payload)
		return false, err
	}
	heard := &s.series[from]
	heard.frames++
	if h.Chunks > 0 {
		s.ended++
		if heard.chunks = h.Chunks; changes && schema.Version(h.Offset) != s.version {
			round.Release(payload)
			return false, fmt.Errorf("%w: version %d is told as changes since version %d, and version %d is there", ErrSeries,
				at, h.Offset, s.version)
		}
	}
	if err := s.put(&piece, payload, len(v.Bytes())); err != nil {
		return false, err
	}
	if s.ended < len(s.series) || slices.ContainsFunc(s.series, func(h seriesHeard) bool { return h.frames < h.chunks }) {
		return false, nil
	}
	s.whole = true
	return true, nil
}

// begin begins to take all that there is: nothing is whole until it has come.
func (s *Standby) begin() {
	s.version = 0
	s.restore(state.Table.Restore)
}

// restore begins what puts rows into all tables here.
func (s *Standby) restore(begin func(state.Table) state.RowsRestore) {
	s.rows = []state.RowsRestore{} // not nil, also where there are no tables
	for _, t := range slices.Concat(s.tables...) {
		if t != nil {
			s.rows = append(s.rows, begin(t))
		}
	}
}

// restoreRows puts rows into all tables here, which leave out what is elsewhere.
func (s *Standby) restoreRows(r *state.Rows) error {
	for _, t := range s.rows {
		if err := t.Rows(*r); err != nil {
			return err
		}
	}
	return nil
}

// put restores a piece, or keeps what it changes.
func (s *Standby) put(piece *state.CopyPiece, payload Payload, bytes int) error {
	waits := piece.Rows == nil || s.rows == nil
	if waits && s.bytes+int64(bytes) > s.most {
		round.Release(payload)
		return fmt.Errorf("%w: what is told of version %d takes more than %d bytes", ErrSeries, s.next, s.most)
	}
	if waits {
		s.bytes += int64(bytes)
	}
	for _, t := range piece.Tensors {
		_ = s.told.AddTensor(t) // never fails
	}
	if piece.Rows != nil && s.rows == nil {
		s.waiting = append(s.waiting, waitingPiece{piece.Rows, payload})
		return nil
	}
	defer round.Release(payload)
	if piece.Rows == nil {
		return nil
	}
	return s.restoreRows(piece.Rows)
}

// Commit makes the version of which all has come the standby's. Where there is none it changes nothing.
func (s *Standby) Commit() error {
	if !s.whole {
		return nil
	}
	whole := s.rows != nil
	if !whole {
		s.restore(state.Table.Update)
	}
	for i := range s.waiting {
		if err := s.restoreRows(s.waiting[i].rows); err != nil {
			return err
		}
	}
	for _, t := range s.rows {
		if err := t.Done(); err != nil {
			return err
		}
	}
	s.version = s.next
	s.keepTensors(whole)
	s.forget()
	return nil
}

// keepTensors makes the stretches that were told of the standby's. Where they are changes, the others stay as they are,
// at the same version.
func (s *Standby) keepTensors(whole bool) {
	if whole {
		s.dense = nil
	}
	type place struct {
		name string
		from int
	}
	at := map[place]int{}
	for i := range s.dense {
		s.dense[i].Version = s.version
		at[place{s.dense[i].Name, s.dense[i].From}] = i
	}
	for _, t := range s.told.Tensors {
		if i, ok := at[place{t.Name, t.From}]; ok {
			if planted.Is(planted.KeepFirstPieces) {
				s.dense[i].Steps = t.Steps
				continue
			}
			s.dense[i] = t
		} else {
			s.dense = append(s.dense, t)
		}
	}
}

// forget drops what was told of a version that is not whole.
func (s *Standby) forget() {
	for i := range s.waiting {
		round.Release(s.waiting[i].payload)
	}
	s.waiting, s.told, s.rows, s.bytes, s.ended, s.whole = nil, state.Snapshot{}, nil, 0, 0, false
	clear(s.series)
}

// Resumed is what the i-th shard here begins with, in place of what it would draw. It is called once for each: what
// the standby has becomes theirs, and only Close may follow.
func (s *Standby) Resumed(i int) *Resumed {
	tables := s.tables[i]
	s.tables[i] = nil
	return &Resumed{Version: s.version, tables: tables, lr: s.lr,
		Read: func(tensor func(state.Tensor) error, _ func(state.Rows) error) error {
			for _, t := range s.dense {
				if err := tensor(t); err != nil {
					return err
				}
			}
			s.give()
			return nil
		}}
}

// Drop frees what the i-th shard here would begin with, in place of Resumed.
func (s *Standby) Drop(i int) {
	for _, t := range s.tables[i] {
		if t != nil {
			t.Close()
		}
	}
	s.tables[i] = nil
	s.give()
}

// give notes that one more shard here has what it begins with.
func (s *Standby) give() {
	if s.given.Add(1) == int64(len(s.tables)) {
		s.dense = nil
	}
}

// A copy is what the shard has at one version, with what its optimizers keep, taken piece by piece while later batches
// are under way. It begins with the first frame of the batch that is computed on the version, which proves that the
// version is complete everywhere and comes before any round of the batch is over: rows are of the version then, and
// every chunk has it. So a version that all shards copy is one version. A step waits for the copy of what it is about
// to change at most.
//
// In async and grouped there is no common version: a copy is of what is here when the first frame comes after it was
// asked for.

// A copy is for files, or for a ps that stands by (MirrorAt). There is one at a time, and the first goes before the
// second, which is asked for again soon.

// copying is a copy that is being taken.
type copying struct {
	*state.VersionCopy
	mirror bool // it is for a ps that stands by
}

// copier takes copies of a model.
type copier struct {
	job     *schema.Job
	plan    *schema.Plan
	model   *model
	member  schema.Member
	copy    *copying       // of a version; nil where there is none
	copies  state.CopyWish // for files
	mirror  state.CopyWish // for a ps that stands by
	copied  schema.Version // the last that a copy was begun of
	holding bool           // rounds may have stayed open for one
}

// CopyAt asks for a copy of a version, in place of what was asked for before and has not begun. A version that was
// reached before is not copied any more, nor one that is reached while another is copied.
func (c *copier) CopyAt(w state.CopyWish) { c.copies = w }

// beginCopy begins the copy of the version before which every round has closed, and after which none has, where it is
// wanted and no other is being taken. Where each trainer has rounds of its own it is of all as it is: where dense
// parameters are at the version, when one of them begins the batch that is computed on it.
func (c *copier) beginCopy(l *round.Line) {
	if plan := c.plan; !plan.ClockOf(schema.ByShards).Common() {
		if plan.Moments() || schema.Version(l.Batch()) >= c.copies.At {
			c.copyNow()
		}
		return
	}
	v, w, mirror := schema.Version(l.Done()), &c.copies, false
	if v != w.At {
		w, mirror = &c.mirror, true
	}
	if v != w.At || !c.copyable(l, v) || c.copy != nil && (mirror || !c.copy.mirror) {
		return
	}
	c.EndCopy()
	c.copied = v
	c.copy = &copying{state.NewVersionCopy(*w, c.model.dense, c.job.Tables, c.model.tables), mirror}
}

// copyNow begins a copy of all as it is, if one is wanted that was not taken.
func (c *copier) copyNow() {
	if w := c.copies; w.At > c.copied && c.copy == nil {
		w.Moment, c.copied = true, w.At
		c.copy = &copying{state.NewVersionCopy(w, c.model.dense, c.job.Tables, c.model.tables), false}
	}
}

// copyable reports whether what is here is at a version or has yet to come to it, and was not copied before.
func (c *copier) copyable(l *round.Line, v schema.Version) bool {
	return v > c.copied && v > c.job.StartVersion() && l.Untouched(schema.Batch(v))
}

// holds reports whether a round of batch b stays open, though its lanes are there, since a version is to be copied that
// not all is at.
func (c *copier) holds(l *round.Line, b schema.Batch) bool {
	at := schema.Batch(c.copies.At)
	held := l.Ahead > 0 && b >= at && l.Done() < at && c.copy == nil && c.copyable(l, c.copies.At)
	c.holding = c.holding || held
	return held
}

// Copying is the version that is being copied for files.
func (c *copier) Copying() (v schema.Version, ok bool) {
	if c.copy == nil || c.copy.mirror {
		return 0, false
	}
	return c.copy.Of().At, true
}

// Mirroring is the version that is being copied for a ps that stands by.
func (c *copier) Mirroring() (v schema.Version, ok bool) {
	if c.copy == nil || !c.copy.mirror {
		return 0, false
	}
	return c.copy.Of().At, true
}

// NextPiece gives the next piece of the copy that is being taken: see state.VersionCopy.Next. After the last, and after
// an error, EndCopy is to be called.
func (c *copier) NextPiece(valuesMax int) (p state.CopyPiece, more bool, err error) {
	if p, more, err = c.copy.Next(valuesMax); err != nil {
		err = fmt.Errorf("version %d of %s: %w", c.copy.Of().At, c.member, err)
	}
	return p, more, err
}

// limitCopy ends a copy that holds more than it may, so that no step adds to that.
func (c *copier) limitCopy() {
	if c.copy != nil {
		c.copy.Limit()
	}
}

// EndCopy ends the copy that is being taken, if any, whether or not it is whole.
func (c *copier) EndCopy() {
	if c.copy != nil {
		c.copy.Close()
		c.copy = nil
	}
}

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
