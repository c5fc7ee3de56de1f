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

// Replica is a copy of the shards of a job at one version, on a ps that can continue the job. Take adds the frames
// that the source shards send; Resumed gives the shards here their initial state. Rows are stored where these shards
// will need them. A replica is always at one whole version: changes wait until all of them have arrived, and until
// Commit, since other replicas may need the same version. It is not safe for concurrent use.
type Replica struct {
	job      *schema.Job
	bytesMax int64 // bytes that may wait
	pieces   *Pieces
	lr       *state.LRChanges
	tables   [][]state.Table // by shard here, by table
	dense    []state.Tensor  // of version
	given    atomic.Int64    // shards that have their state
	version  schema.Version  // 0: no whole version

	next     schema.Version   // version being received
	whole    bool             // all of next has arrived
	series   []receivedSeries // by source shard
	ended    int
	waiting  []waitingPiece // changes of next
	bytes    int64          // bytes of waiting
	received state.Snapshot // stretches of parameters of next
	rows     []state.RowsRestore
}

// receivedSeries is the received part of a series.
type receivedSeries struct {
	frames, chunks schema.Chunk // chunks is 0 until the last frame has arrived
}

// waitingPiece is changes of rows, which lie in a payload.
type waitingPiece struct {
	rows    *state.Rows
	payload Payload
}

// ErrSeries reports that a series does not follow the current version, so the source must send everything again.
var ErrSeries = errors.New("series of frames does not follow")

// NewReplica makes a replica for the series of a number of source shards. configs are those of the shards here; their
// job, placement, index, backend, Undo and Touches are required. bytesMax bounds the bytes of a version that is not
// whole yet.
func NewReplica(ctx context.Context, sources int, configs []Config, bytesMax int64) (*Replica, error) {
	s := &Replica{job: configs[0].Job, bytesMax: bytesMax, pieces: NewPieces(configs[0].Job), lr: &state.LRChanges{},
		series: make([]receivedSeries, sources)}
	for i := range configs {
		one := model{lr: s.lr}
		err := one.makeTables(ctx, &configs[i])
		s.tables = append(s.tables, one.tables)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("hold a replica of job %s: %w", s.job.Name, err)
		}
	}
	return s, nil
}

// Close frees memory, except the state that shards took by Resumed.
func (s *Replica) Close() {
	s.forget()
	for _, t := range slices.Concat(s.tables...) {
		if t != nil {
			t.Close()
		}
	}
	s.tables, s.dense = nil, nil
}

// Version returns the whole version; 0: none.
func (s *Replica) Version() schema.Version { return s.version }

// Whole returns a later version that has arrived completely, for Commit; 0: none.
func (s *Replica) Whole() schema.Version {
	if !s.whole {
		return 0
	}
	return s.next
}

// Take adds a frame of the series of a source shard, each frame once and in any order. whole reports that all series of
// a later version are complete, so that Commit can adopt it; a frame of a still later version discards it. The payload
// is released when its bytes are needed no more. After an error the source has to send everything again.
func (s *Replica) Take(from int, v *schema.View, payload Payload) (whole bool, err error) {
	h := v.Head()
	at := schema.Version(h.Batch)
	if from < 0 || from >= len(s.series) {
		round.Release(payload)
		return false, schema.Refuse(schema.ReasonUnknownSender, "shard %d of %d", from, len(s.series))
	}
	if at < s.next || at <= s.version { // it is of an abandoned version
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
	source := &s.series[from]
	source.frames++
	if h.Chunks > 0 {
		s.ended++
		if source.chunks = h.Chunks; changes && schema.Version(h.Offset) != s.version {
			round.Release(payload)
			return false, fmt.Errorf("%w: version %d is told as changes since version %d, and version %d is there", ErrSeries,
				at, h.Offset, s.version)
		}
	}
	if err := s.put(&piece, payload, len(v.Bytes())); err != nil {
		return false, err
	}
	if s.ended < len(s.series) || slices.ContainsFunc(s.series, func(h receivedSeries) bool { return h.frames < h.chunks }) {
		return false, nil
	}
	s.whole = true
	return true, nil
}

// begin starts to receive a full version: there is no whole version until it has arrived.
func (s *Replica) begin() {
	s.version = 0
	s.restore(state.Table.Restore)
}

// restore starts to restore rows into all tables here.
func (s *Replica) restore(begin func(state.Table) state.RowsRestore) {
	s.rows = []state.RowsRestore{} // not nil, even without tables
	for _, t := range slices.Concat(s.tables...) {
		if t != nil {
			s.rows = append(s.rows, begin(t))
		}
	}
}

// restoreRows restores rows into all tables here, which skip rows of other shards.
func (s *Replica) restoreRows(r *state.Rows) error {
	for _, t := range s.rows {
		if err := t.Rows(*r); err != nil {
			return err
		}
	}
	return nil
}

// put restores a piece, or keeps it until Commit if it is a change.
func (s *Replica) put(piece *state.CopyPiece, payload Payload, bytes int) error {
	waits := piece.Rows == nil || s.rows == nil
	if waits && s.bytes+int64(bytes) > s.bytesMax {
		round.Release(payload)
		return fmt.Errorf("%w: what is told of version %d takes more than %d bytes", ErrSeries, s.next, s.bytesMax)
	}
	if waits {
		s.bytes += int64(bytes)
	}
	for _, t := range piece.Tensors {
		_ = s.received.AddTensor(t) // never fails
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

// Commit adopts the version that has arrived completely. Without one it does nothing.
func (s *Replica) Commit() error {
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

// keepTensors adopts the received stretches of parameters. If they are changes, the others stay, at the same version.
func (s *Replica) keepTensors(whole bool) {
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
	for _, t := range s.received.Tensors {
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

// forget discards a version that is not whole.
func (s *Replica) forget() {
	for i := range s.waiting {
		round.Release(s.waiting[i].payload)
	}
	s.waiting, s.received, s.rows, s.bytes, s.ended, s.whole = nil, state.Snapshot{}, nil, 0, 0, false
	clear(s.series)
}

// Resumed returns the state that the i-th shard here begins with. Call it once for each shard: the state becomes
// theirs, and only Close may follow.
func (s *Replica) Resumed(i int) *Resumed {
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

// Drop frees the state of the i-th shard here instead of handing it to Resumed.
func (s *Replica) Drop(i int) {
	for _, t := range s.tables[i] {
		if t != nil {
			t.Close()
		}
	}
	s.tables[i] = nil
	s.give()
}

// give counts a shard whose state was handed over or dropped.
func (s *Replica) give() {
	if s.given.Add(1) == int64(len(s.tables)) {
		s.dense = nil
	}
}

// A copy is the state of a shard at one version, with its optimizer state, taken piece by piece while later batches are
// computed. It begins with the first frame of the batch that is computed on the version. That frame proves that the
// version is complete everywhere, and comes before any round of the batch closes: rows are of the version, and every
// chunk has it. So the copies of all shards are of one version. A step waits at most for the copy of what it is about
// to change.
//
// In async and grouped there is no common version: the copy is of the state at the first frame after the request.

// A copy is for files or for a replica (ReplicateAt). Only one is taken at a time. Files come first, because a replica
// requests a copy again soon.

// copying is a copy in progress.
type copying struct {
	*state.VersionCopy
	replica bool // it is for a replica
}

// copier takes copies of a model.
type copier struct {
	job     *schema.Job
	plan    *schema.Plan
	model   *model
	member  schema.Member
	copy    *copying          // the copy in progress; nil: none
	copies  state.CopyRequest // request for files
	replica state.CopyRequest // request for a replica
	copied  schema.Version    // version of the last copy that was begun
	holding bool              // rounds may have stayed open for a copy
}

// CopyAt requests a copy of a version for files, and replaces an earlier request that has not begun. A version that the
// shard has passed, or reaches while another copy is in progress, is not copied.
func (c *copier) CopyAt(w state.CopyRequest) { c.copies = w }

// beginCopy begins the requested copy of a version if all rounds before it have closed, no round after it has, and no
// other copy is in progress. If each trainer has rounds of its own, the copy is of the current state: it begins when
// dense parameters are at the version and a trainer begins the batch that is computed on it.
func (c *copier) beginCopy(l *round.Line) {
	if plan := c.plan; !plan.ClockOf(schema.ByShards).Common() {
		if plan.Moments() || schema.Version(l.Batch()) >= c.copies.At {
			c.copyNow()
		}
		return
	}
	v, w, replica := schema.Version(l.Done()), &c.copies, false
	if v != w.At {
		w, replica = &c.replica, true
	}
	if v != w.At || !c.copyable(l, v) || c.copy != nil && (replica || !c.copy.replica) {
		return
	}
	c.EndCopy()
	c.copied = v
	c.copy = &copying{state.NewVersionCopy(*w, c.model.dense, c.job.Tables, c.model.tables), replica}
}

// CopyComplete begins the copy of a version that is complete on all shards, and that no trainer computes a batch on yet.
// It does nothing if the shard is not at the version, or is taking another copy for files.
func (s *Shard) CopyComplete(w state.CopyRequest) {
	l := s.clock.Lines()[0]
	if !s.plan.ClockOf(schema.ByShards).Common() || schema.Version(l.Done()) != w.At ||
		!l.Untouched(schema.Batch(w.At)) || s.copy != nil && !s.copy.replica {
		return
	}
	s.EndCopy()
	s.copies, s.copied = w, w.At
	s.copy = &copying{state.NewVersionCopy(w, s.model.dense, s.config.Job.Tables, s.model.tables), false}
}

// copyNow begins the requested copy of the current state, if it was not taken yet.
func (c *copier) copyNow() {
	if w := c.copies; w.At > c.copied && c.copy == nil {
		w.Fuzzy, c.copied = true, w.At
		c.copy = &copying{state.NewVersionCopy(w, c.model.dense, c.job.Tables, c.model.tables), false}
	}
}

// copyable reports whether the state is at a version or has yet to reach it, and was not copied at it before.
func (c *copier) copyable(l *round.Line, v schema.Version) bool {
	return v > c.copied && v > c.job.StartVersion() && l.Untouched(schema.Batch(v))
}

// holds reports whether a complete round of batch b stays open because a version is to be copied that not all state has
// reached.
func (c *copier) holds(l *round.Line, b schema.Batch) bool {
	at := schema.Batch(c.copies.At)
	held := l.Ahead > 0 && b >= at && l.Done() < at && c.copy == nil && c.copyable(l, c.copies.At)
	c.holding = c.holding || held
	return held
}

// Copying returns the version that is being copied for files.
func (c *copier) Copying() (v schema.Version, ok bool) {
	if c.copy == nil || c.copy.replica {
		return 0, false
	}
	return c.copy.Of().At, true
}

// Replicating returns the version that is being copied for a replica.
func (c *copier) Replicating() (v schema.Version, ok bool) {
	if c.copy == nil || !c.copy.replica {
		return 0, false
	}
	return c.copy.Of().At, true
}

// NextPiece returns the next piece of the copy in progress: see state.VersionCopy.Next. Call EndCopy after the last
// piece and after an error.
func (c *copier) NextPiece(valuesMax int) (p state.CopyPiece, more bool, err error) {
	if p, more, err = c.copy.Next(valuesMax); err != nil {
		err = fmt.Errorf("version %d of %s: %w", c.copy.Of().At, c.member, err)
	}
	return p, more, err
}

// limitCopy ends a copy that holds more than its limit, so that no later step adds to it.
func (c *copier) limitCopy() {
	if c.copy != nil {
		c.copy.Limit()
	}
}

// EndCopy ends the copy in progress, if any, whether or not it is complete.
func (c *copier) EndCopy() {
	if c.copy != nil {
		c.copy.Close()
		c.copy = nil
	}
}

// pieceBytesMax bounds the values of a frame of kind state, unless it is one row.
const pieceBytesMax = 1 << 19

// A series is the sequence of frames, of kind state, in which one shard sends its state at one version: one frame for
// each stretch of a parameter and for each run of rows, numbered by chunk. The last frame is empty: its chunks field
// has the number of frames, and its offset, if frames have FlagMore, the version since which they contain changes.
//
// The values of a stretch are followed by those of each slot. Rows are followed by their slots, and by two values for
// each row's mark if the optimizer has marks (state.SplitMarks). The weight is the number of steps.

// Pieces converts pieces of a copy to frames and back, for one job. It is not safe for concurrent use.
type Pieces struct {
	job    *schema.Job
	params map[string]schema.Bucket
	tables map[string]schema.Table
	dense  [][]state.SlotShape // by parameter
	rows   []rowShape          // by table
}

// rowShape is the layout of a row in pieces of a table.
type rowShape struct {
	slots []state.SlotShape
	marks bool
}

// values returns the number of float32 values that a row with a number of columns takes.
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

// NewPieces returns a converter for the pieces of a job.
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

// Series numbers the frames of one shard's series. Head has the fields that all frames share: job, generation, batch
// and flags.
type Series struct {
	Head   schema.Head
	Send   func(*schema.Frame) error // a new frame each time
	sent   schema.Chunk
	tables map[string]bool // tables for which a frame was sent
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

// End ends a series of changes since a version; 0: of everything.
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

// Answer returns the frames that send a piece to the member that requested it, in the order of their chunks, each with
// the number of chunks. For an empty piece, of a version that is gone, it returns one frame without values.
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

// ValuesMax returns the largest number of values in a frame, unless it is one row.
func (p *Pieces) ValuesMax() int { return min(pieceBytesMax, p.job.ChunkBytes) / 4 }

// writeTensor splits a long stretch: no frame has more values than a gradient chunk may have.
func (p *Pieces) writeTensor(s *Series, t state.Tensor) error {
	h := s.Head
	h.Bucket, h.Weight, h.Flags = p.params[t.Name], float64(t.Steps), h.Flags|schema.FlagParameters
	perFrame := max(1, p.ValuesMax()/(1+len(t.Slots)))
	for lo := 0; lo < len(t.Values); lo += perFrame {
		hi := min(lo+perFrame, len(t.Values))
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
	if n == 0 && s.tables[r.Table] { // a frame without rows carries the version and the number of steps
		return nil
	}
	if s.tables == nil {
		s.tables = map[string]bool{}
	}
	s.tables[r.Table] = true
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

// Read returns the piece in a verified frame, which refers to the frame's memory except for marks. It is empty for the
// last frame of a series.
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
