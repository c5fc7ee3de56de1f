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
