package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// Config configures a shard. All fields are required except Advice, Own, Lent, Undo, StaysReadable, Touches, Resumed,
// OnGroup, OnClosing and Journal.
type Config struct {
	Job        *schema.Job       // validated; the shard keeps it and does not change it
	Placement  *schema.Placement // of the job over all shards
	Index      int               // index of this owner in Placement: a shard, or a trainer that reduces
	RunID      schema.RunID
	Generation schema.Generation
	Backend    cuda.Backend
	// Contributors lists the lanes of each trainer. Contributions to other lanes are refused.
	Contributors []Contributor
	// StagedBytesMax bounds the payload bytes of contributions whose round is still open.
	StagedBytesMax int64
	// ParkedBytesMax bounds the bytes of each trainer's parked lookups: their frames, and FrameBytesOver for each. A
	// lookup that does not fit is dropped, and its sender repeats it.
	ParkedBytesMax int64
	// Advice is the advice to a trainer that exceeds the budget. Empty: send smaller batches.
	Advice string
	// Own is the trainer whose contributions lie in its own memory and do not count against StagedBytesMax; empty:
	// none.
	Own schema.Member
	// Lent is set if contributions may lie in the memory of their senders, which the shard must not write to. Nothing
	// is added up before a round closes then.
	Lent bool
	// Undo records the old values of rows that a round changes, until the next round closes. TakeOver and StaysReadable
	// need it.
	Undo bool
	// StaysReadable stops training at the first value that is not finite and keeps the shard readable: see
	// stopOnNonFinite. If unset, a non-finite value that was computed from finite gradients is an error of Step.
	StaysReadable bool
	// Touches makes rows record when they change, so that a copy can be limited to touched rows.
	Touches bool
	// Resumed is the state that the shard begins with; nil: it draws version 0.
	Resumed *Resumed
	// OnGroup receives the events of groups, in order, in mode grouped; may be nil.
	OnGroup func(GroupEvent)
	// OnClosing is called within Step before a round closes, once for each chunk, with the trainer whose round it is
	// (schema.All if all trainers share it), its number and its bucket. What is computed until the next call, or until
	// Step returns, is its outcome. May be nil.
	OnClosing func(whose schema.Member, round schema.Batch, bucket schema.Bucket)
	// Journal receives every answered lookup and every applied round over rows, in order, within Step and Answer. A run
	// whose order depends on timing can be replayed from it. May be nil.
	Journal func(Journal)
}

// Journal is one entry of the log of what a shard has applied to its tables and read from them.
type Journal struct {
	Kind  schema.Kind   // KindLookup: rows were read; KindSparse: a round was applied
	From  schema.Member // the trainer that asked, or whose round it was; All for a shared round
	Batch schema.Batch  // batch number in its frames
}

// Shard is one shard of one job: a pure state machine. Step takes frames and returns outputs. A Shard reads no clock,
// does no I/O, starts no goroutine after New, draws no random number and depends on no map's order, so the same frames
// in the same order always produce the same outputs. It is not safe for concurrent use.
//
// Invariants in sync, for batch b, which is under way:
//
//   - version b is in the results of every dense chunk and is not written to; the outcome of a closed round of b is
//     stored separately, as version b+1;
//   - rows are of version b until the sparse round of b closes, and of version b+1 afterwards;
//   - results of b-1 are stored until the first round of b+1 closes, which requires that every trainer has them.
//
// In bounded the same holds for k+1 batches at once. In async each trainer has rounds of its own, and a chunk's version
// counts the rounds applied to it. The clock of package round decides which of this holds.
type Shard struct {
	config Config
	member schema.Member
	contributors
	budget
	model
	progress
	parkedLookups
	copier
	outbox

	trainerState trainerState  // of the part of the model that trainers own
	rows         *schema.Frame // the answer to a lookup, refilled each time
	retained     bool          // the shard uses the frame of this Step, and its payload, after Step
	stopped      *refusal      // reason to refuse further contributions (stopOnNonFinite); nil while the job trains
}

// New makes a shard at version 0. It draws the initial rows of the partitions that it owns, which takes about 15 ns per
// value and uses all processors; ctx cancels only that. Close frees the tables.
func New(ctx context.Context, c Config) (*Shard, error) {
	c.Advice = cmp.Or(c.Advice, "send smaller batches")
	s := &Shard{config: c, member: c.Placement.Owner(c.Index), contributors: newContributors(&c),
		budget: budget{most: c.StagedBytesMax, advice: c.Advice, own: c.Own}, model: model{lr: &state.LRChanges{}},
		progress:      progress{held: round.NewHeld(len(c.Contributors))},
		parkedLookups: parkedLookups{parked: make([]parking, len(c.Contributors)), most: c.ParkedBytesMax}}
	s.copier = copier{job: c.Job, plan: c.Placement.Plan, model: &s.model, member: s.member}
	if err := s.build(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("make shard %s of job %s: %w", s.member, c.Job.Name, err)
	}
	return s, nil
}

func (s *Shard) build(ctx context.Context) (err error) {
	if err := s.makeTables(ctx, &s.config); err != nil {
		return err
	}
	s.placeTrainerState()
	c := &s.config
	config := round.ClockConfig{Backend: c.Backend, Job: c.Job, Place: c.Placement, Owner: c.Index,
		Contributors: c.Contributors,
		Summing:      c.Placement.Plan.Summing, Head: schema.Head{Job: c.RunID, Generation: c.Generation},
		Held: s.held, Chunks: ownedChunks(c.Placement, c.Index), OnGroup: c.OnGroup}
	if c.Lent {
		config.Summing = schema.SummingAtClose
	}
	if c.Resumed != nil {
		config.First = schema.Batch(c.Resumed.Version)
	}
	// In async the rounds of several trainers have the same number, and each makes a version.
	config.Version = func(chunk int) schema.Version { return s.dense.Version(chunk) }
	if c.Placement.Plan.Owner == schema.ByShards {
		config.Head.Flags = schema.FlagParameters
	}
	if s.clock, err = round.NewClock(ctx, config); err != nil {
		return err
	}
	if err := s.makeDense(ctx, config.Chunks); err != nil || c.Resumed == nil {
		return err
	}
	err = s.resume(ctx, c.Resumed)
	s.config.Resumed = nil // it may have much memory
	return err
}

// Close frees the shard's memory and releases the payloads of open rounds and parked lookups. The shard must not be
// used afterwards.
func (s *Shard) Close() {
	for i := range s.parked {
		s.parked[i].discard()
	}
	if s.clock != nil {
		for _, l := range s.clock.Lines() {
			l.Release()
		}
	}
	s.EndCopy()
	s.model.close()
	s.closeResumed()
	s.clock = nil
}

// Step applies one verified frame from a member. It returns the frames to publish and the result: schema.ReasonOK,
// schema.ReasonDuplicate if the frame was applied before, or the reason of a refusal. A refused frame changes nothing
// and produces one refusal for its sender; a repeated frame produces nothing. Outputs are valid until the next call.
// Call Answer afterwards while Due reports true.
//
// The View may be reused after Step returns. The bytes that it views belong to payload, which the shard releases
// exactly once: within this call if the frame is refused, repeated, a pull or a lookup that is answered, else when its
// round needs it no more or the lookup is answered, at the latest in Close. A nil payload is not released, and its
// bytes must stay valid until the round closes.
//
// An error means that the backend failed and the shard's state cannot be trusted: the job must end.
func (s *Shard) Step(from schema.Member, v *schema.View, payload Payload) ([]Output, schema.Reason, error) {
	s.outputs, s.retained = s.outputs[:0], false
	defer func() {
		if !s.retained {
			round.Release(payload)
		}
	}()
	h := v.Head()
	contributor, refused := s.admit(from, v)
	if refused == nil {
		var err error
		if refused, err = s.take(contributor, &h, v, payload); err != nil {
			return nil, schema.ReasonOK, fmt.Errorf("shard %s of job %s: %v batch %d bucket %d chunk %d: %w",
				s.member, s.config.Job.Name, h.Kind, h.Batch, h.Bucket, h.Chunk, err)
		}
	}
	switch {
	case refused == nil:
		return s.outputs, schema.ReasonOK, nil
	case refused.Reason != schema.ReasonDuplicate:
		s.outputRefusal(from, h, refused)
	}
	return s.outputs, refused.Reason, nil
}

func (s *Shard) take(contributor int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	defer s.limitCopy() // lookups may change rows, too: see state.Array
	switch h.Kind {
	case schema.KindDense:
		return s.stopOnNonFinite(contributor, h, func() (*refusal, error) { return s.stepDense(contributor, h, v, payload) })
	case schema.KindSparse:
		return s.stopOnNonFinite(contributor, h, func() (*refusal, error) { return s.stepSparse(contributor, h, v, payload) })
	case schema.KindLookup:
		return s.stepLookup(contributor, h, v, payload)
	case schema.KindPull:
		return s.stepPull(contributor, h, v)
	}
	return schema.Refuse(schema.ReasonUnknownKind, "a shard takes no frames of kind %v", h.Kind), nil
}

// GroupEvent is an event of a group of requests, in mode grouped.
type GroupEvent = round.GroupEvent

// Gone removes trainers that contribute no more because they left or were lost. It returns the frames to publish, as
// Step does. Repeated calls have no effect. An error means the same as an error of Step.
func (s *Shard) Gone(members []schema.Member) ([]Output, error) {
	s.outputs = s.outputs[:0]
	if !s.clock.Leave(members) {
		return nil, nil
	}
	for _, l := range s.clock.Lines() {
		head := schema.Head{Job: s.config.RunID, Batch: l.Batch(), Lanes: uint16(s.config.Job.Lanes)}
		_, err := s.stopOnNonFinite(-1, &head, func() (*refusal, error) { return nil, s.closeAll(l) })
		if err != nil {
			return nil, fmt.Errorf("shard %s of job %s: without %v: %w", s.member, s.config.Job.Name, members, err)
		}
	}
	return s.outputs, nil
}

// closeAll closes every round of a line that is next in order and has all its lanes.
func (s *Shard) closeAll(l *round.Line) error {
	for i := range l.Dense.Chunks() {
		if err := s.closeDense(l, i); err != nil {
			return err
		}
	}
	if l.Sparse == nil {
		return nil
	}
	return s.closeSparse(l)
}

// closing reports a round that is about to close to OnClosing.
func (s *Shard) closing(l *round.Line, b schema.Batch, bucket schema.Bucket) {
	if s.config.OnClosing != nil {
		s.config.OnClosing(l.Whose, b, bucket)
	}
}

// closed reports a closed round to the clock, and publishes its result to its receivers.
func (s *Shard) closed(l *round.Line, b schema.Batch, bucket schema.Bucket, frames ...*schema.Frame) {
	for _, to := range s.clock.Closed(l, b) {
		for _, f := range frames {
			s.outputResult(l, b, to.Member, to.Batch, bucket, f)
		}
	}
	s.rounds++
	s.newest = max(s.newest, l.Done())
	s.DropResumed(s.newest)
	if l.Ahead > 0 {
		s.beginCopy(l)
	}
}

// stopOnNonFinite runs a step that may close rounds, for the frame of a contributor (-1: no contributor). If the shard
// stays readable, the first value that is not finite, in a contribution or in what is computed from several, refuses
// that contribution and all later ones, and no round closes any more. The rows stay at the last version whose round
// over rows has closed here, so lookups and scans continue. All contributors receive a refusal, since they would wait
// for results that never come; Step sends the one for the frame's own sender.
func (s *Shard) stopOnNonFinite(contributor int, h *schema.Head, step func() (*refusal, error)) (*refusal, error) {
	if s.stopped != nil {
		return s.stopped, nil
	}
	refused, err := step()
	if !s.config.StaysReadable || refused == nil && err == nil {
		return refused, err
	}
	if _, computed := errors.AsType[*state.NonFiniteError](err); computed {
		prefix := schema.ReasonNonFinite.String() + ": " // already in the reason
		refused, err = schema.Refuse(schema.ReasonNonFinite, "%s", strings.Replace(err.Error(), prefix, "", 1)), nil
	}
	if err != nil || refused.Reason != schema.ReasonNonFinite {
		return refused, err
	}
	s.stopped = refused
	for i := range s.config.Contributors {
		if i != contributor {
			head := *h
			head.Generation = s.since[i]
			s.outputRefusal(s.config.Contributors[i].Member, head, refused)
		}
	}
	return refused, nil
}

// A slot is taken over when its trainer is lost: another trainer or a new process computes the batch under way again,
// and all later ones. A lane's gradient is a function of job, version and lane, so earlier contributions stay and the
// same ones sent again are repeats. Only a sparse contribution with missing chunks is dropped, so that no contribution
// has chunks from two processes. Other trainers see no change: their nodes, sequence numbers and windows stay.
//
// The batch under way is computed on rows of its version even if its round over rows has closed: see
// state.Table.ReadPrevious.

// TakeOver records that a contributor's slot was taken over in a generation. Frames of an earlier one are refused from
// then on.
func (s *Shard) TakeOver(contributor int, g schema.Generation) {
	s.since[contributor] = g
	if l := s.clock.Line(contributor).Sparse; l != nil {
		l.Forget(contributor)
	}
	s.forget(contributor)
}

// reachesPrevious reports whether a read needs the version before the last round over rows. It does for a trainer whose
// slot was taken over, and in a job that stays readable, where another shard may have stopped before that round.
func (s *Shard) reachesPrevious(contributor int, b schema.Batch) bool {
	l := s.clock.Line(contributor).Sparse
	may := s.since[contributor] > s.config.Generation || s.config.StaysReadable
	return s.config.Undo && may && l != nil && b+1 == l.Closed()
}

// enter opens the round of a contribution, and begins the copy of the version that its batch is computed on.
func (s *Shard) enter(e round.Entry) {
	s.clock.Enter(e)
	s.beginCopy(e.Line)
}

// ReplicateAt requests a copy of a version for a replica. It reports whether the copy will begin once no copy for files is
// in progress; it will not if the batch that is computed on the version has begun.
func (s *Shard) ReplicateAt(w state.CopyRequest) bool {
	if s.copy != nil && s.copy.replica { // it is of an abandoned copy
		s.EndCopy()
	}
	if s.Began(w.At) {
		return false
	}
	s.replica = w
	return true
}

// closeHeld closes the rounds that stayed open for a copy and may close now.
func (s *Shard) closeHeld(l *round.Line) error {
	if !s.holding {
		return nil
	}
	s.holding = false
	return s.closeAll(l)
}

// Touched returns the request of the copy in progress, and the extent of what may have changed since its earlier
// version.
func (s *Shard) Touched() (state.CopyRequest, state.Extent) {
	touched := s.copy.Touched()
	if s.dense == nil {
		others := s.OfTrainers()
		touched.Tensors, touched.Bytes = others.Tensors, touched.Bytes+others.Bytes
		maps.Copy(touched.Rows, others.Rows)
	}
	return s.copy.Of(), touched
}

// ErrResume reports that a version could not be read or is inconsistent. The wrapped text has the number and the cause.
var ErrResume = errors.New("resume at version")

// Resumed is a version of a job, with optimizer state, that shards begin with. Read passes all pieces of it, of all
// earlier shards, to each shard; an error of a callback ends it and is returned.
type Resumed struct {
	Version schema.Version // 1 or later
	Read    func(tensor func(state.Tensor) error, rows func(state.Rows) error) error

	tables []state.Table // tables already at the version: Read passes no rows; nil: it does
	lr     *state.LRChanges
}

// resume replaces what was drawn by a version, as the outcome of the batch before it.
func (s *Shard) resume(ctx context.Context, from *Resumed) error {
	var dense *state.DenseRestore
	var tables []state.RowsRestore
	owned, replicated, err := s.resumable(ctx, from.Version)
	if err != nil {
		return fmt.Errorf("resume at version %d: %w", from.Version, err)
	}
	if owned != nil {
		dense = owned.Restore()
	}
	for _, t := range replicated {
		if t != nil {
			tables = append(tables, t.Restore())
		}
	}
	for _, t := range s.tables {
		if t != nil && from.tables == nil {
			tables = append(tables, t.Restore())
		}
	}
	err = from.Read(func(t state.Tensor) error {
		if dense == nil {
			return nil
		}
		return dense.Tensor(t)
	}, func(r state.Rows) error {
		for _, t := range tables {
			if err := t.Rows(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && dense != nil {
		err = dense.Done()
	}
	for _, t := range tables {
		if err == nil {
			err = t.Done()
		}
	}
	if err == nil {
		err = s.checkResumed(from.Version)
	}
	if err != nil {
		return fmt.Errorf("%w %d: %w", ErrResume, from.Version, err)
	}
	s.sealResumed(from.Version)
	return nil
}

// checkResumed checks that all parts of the resumed state have one version.
func (s *Shard) checkResumed(v schema.Version) error {
	wrong := func(id int, at schema.Version) error {
		return fmt.Errorf("table %q: %w: it is of version %d", s.config.Job.Tables[id].Name, state.ErrSnapshot, at)
	}
	for id, t := range s.tables {
		if t != nil && t.Version() != v {
			return wrong(id, t.Version())
		}
	}
	for id, t := range s.trainerState.tables {
		if t != nil && t.Version() != v {
			return wrong(id, t.Version())
		}
	}
	if s.dense == nil {
		return nil
	}
	for i := range s.clock.Line(0).Dense.Chunks() {
		if at := s.dense.Version(i); at != v {
			return fmt.Errorf("chunk %d: %w: it is of version %d", i, state.ErrSnapshot, at)
		}
	}
	return nil
}

// sealResumed writes the head of a result into every chunk of the version, so that trainers can pull it.
func (s *Shard) sealResumed(v schema.Version) {
	l := s.clock.Line(0)
	s.newest = l.Done()
	if s.dense == nil {
		return
	}
	for i := range l.Dense.Chunks() {
		s.clock.Results(v).Seal(i, v, schema.Head{Batch: schema.Batch(v) - 1, Weight: round.ResumedWeight, Node: l.Node})
	}
}

// makeDense makes the state of parameters that shards own, and draws version 0. The result frame of a version also
// stores the chunk's values of that version: the optimizer reads one frame and writes another, and publishing needs no
// copy.
func (s *Shard) makeDense(ctx context.Context, chunks []round.Chunk) (err error) {
	if s.config.Placement.Plan.Owner != schema.ByShards {
		return nil
	}
	config := state.DenseConfig{Backend: s.config.Backend, LR: s.lr, Lanes: s.config.Job.Lanes,
		Start:  s.config.Job.StartVersion(),
		Values: s.values}
	for i := range chunks {
		config.Chunks = append(config.Chunks, state.PlacedChunk(s.config.Job, s.config.Placement, chunks[i].Bucket,
			chunks[i].Chunk,
			true))
	}
	if s.dense, err = state.NewDense(config); err != nil || s.config.Resumed != nil { // else another version takes its place
		return err
	}
	return s.dense.Draw(ctx)
}

// values returns the memory of a version of the i-th chunk.
func (s *Shard) values(i int, v schema.Version) []float32 { return s.clock.Results(v).Values(i, v) }

// stepDense adds one node's sum over one chunk. The chunk closes when its nodes cover all lanes.
func (s *Shard) stepDense(contributor int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	e, refused := s.clock.Reach(contributor, h.Batch)
	if refused != nil {
		return refused, nil
	}
	if refused = round.CheckSender(&s.config.Contributors[contributor], s.config.Job.Lanes, h); refused != nil {
		return refused, nil
	}
	l := e.Line
	c := round.Contribution{
		Batch: e.Round, Chunk: s.config.Placement.IndexOfChunk(h.Bucket, h.Chunk), Node: h.Node, Weight: h.Weight, Values: round.Values(v),
		Contributor: contributor, Bytes: s.bytes(s.config.Contributors[contributor].Member, v), Payload: payload,
	}
	if !e.Fresh {
		if refused = l.Dense.Check(&c, l.Weights(e.Round)); refused != nil {
			return refused, nil
		}
	}
	if refused = s.budget.check(s.held.Bytes(), c.Bytes); refused != nil {
		return refused, nil
	}
	if refused = l.Dense.CheckFinite(&c); refused != nil {
		return refused, nil
	}
	s.enter(e)
	s.retained = true
	if err := l.Dense.Add(&c, l.Weights(e.Round)); err != nil {
		return nil, err
	}
	if err := s.closeDense(l, c.Chunk); err != nil {
		return nil, err
	}
	return nil, s.closeHeld(l)
}

// closeDense computes and publishes the outcome of every round of a chunk that is next in order and has all its lanes,
// except rounds that wait for a copy.
func (s *Shard) closeDense(l *round.Line, i int) error {
	for {
		c, ok := l.Dense.Next(i)
		if !ok || s.holds(l, c.Batch) {
			return nil
		}
		if err := s.clock.Begin(c.Batch); err != nil {
			return err
		}
		s.closing(l, c.Batch, l.Dense.Chunk(i).Bucket)
		if err := s.outcome(i, &c); err != nil {
			return ofRound(s.config.Job, c.Batch, l.Dense.Nodes(i, c.Batch), l.Dense.NameMismatch(i, err))
		}
		l.Dense.Finish(i, l.Weights(c.Batch), c.Weight)
		v := c.Batch + 1
		if s.dense != nil {
			v = s.dense.Version(i)
		}
		frame := s.clock.Results(v).Seal(i, v, schema.Head{Batch: c.Batch, Weight: c.Weight, Node: l.Node,
			Flags: s.copyFlags(schema.Version(c.Batch) + 1)})
		s.closed(l, c.Batch, l.Dense.Chunk(i).Bucket, frame)
	}
}

// outcome computes the chunk's next version from a round.
func (s *Shard) outcome(i int, c *round.Closing) error {
	switch {
	case s.dense != nil && c.Weight == 0:
		s.dense.Keep(i)
		return nil
	case s.dense != nil:
		return s.dense.Average(i, c.Weight, c.Terms)
	}
	out := s.values(i, c.Batch+1)
	if c.Weight == 0 {
		clear(out)
		return nil
	}
	err := s.config.Backend.Average(cuda.Average{Lanes: s.config.Job.Lanes, Weight: float32(c.Weight), Terms: c.Terms,
		Out: cuda.Float32s(out)})
	if err != nil {
		return err
	}
	k := s.clock.Line(0).Dense.Chunk(i)
	return state.CheckFinite(s.config.Backend, out, func(at int) string {
		return "the mean gradient of " + s.config.Placement.ElementName(k.Bucket, int(k.Offset)+at)
	})
}

// stepSparse adds one chunk of one node's contribution to the round over all rows of this shard. The round closes when
// every lane's contribution is complete.
func (s *Shard) stepSparse(contributor int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	e, refused := s.clock.Reach(contributor, h.Batch)
	if refused != nil {
		return refused, nil
	}
	l := e.Line
	if refused = round.CheckSender(&s.config.Contributors[contributor], s.config.Job.Lanes, h); refused != nil {
		return refused, nil
	}
	c := round.SparseChunk{Head: *h, View: *v, Contributor: contributor, Bytes: s.bytes(s.config.Contributors[contributor].Member, v), Payload: payload}
	if refused = c.Check(); refused != nil {
		return refused, nil
	}
	if !e.Fresh {
		if refused = l.Sparse.Check(&c, l.Weights(h.Batch)); refused != nil {
			return refused, nil
		}
	}
	if refused = s.CheckShare(contributor, h, l.Sparse.Cost(&c)); refused != nil {
		return refused, nil
	}
	if refused = s.budget.check(s.held.Bytes(), c.Bytes); refused != nil {
		return refused, nil
	}
	if refused = l.Sparse.CheckFinite(&c); refused != nil {
		return refused, nil
	}
	s.enter(e)
	s.retained = true
	if err := l.Sparse.Add(&c, l.Weights(h.Batch)); err != nil {
		return nil, err
	}
	if err := s.closeSparse(l); err != nil {
		return nil, err
	}
	return nil, s.closeHeld(l)
}

// CheckShare refuses a sparse contribution that does not fit its sender's share of the budget together with the
// sender's other sparse contributions to this batch. All of them must be here before the round closes, so waiting for
// room would never end. Dense contributions do not count: their rounds close without it, or, if a version is copied in
// bounded, wait only for sparse rounds of earlier batches, which every trainer sends before any contribution of a later
// batch.
func (s *Shard) CheckShare(contributor int, h *schema.Head, bytes int64) *refusal {
	share, l := s.config.StagedBytesMax/int64(len(s.config.Contributors)), s.clock.Line(contributor)
	if h.Kind != schema.KindSparse || l.Sparse == nil || h.Batch < l.Sparse.Closed() {
		return nil
	}
	held := int64(0) // of a batch whose first frame this is
	if h.Batch <= l.Batch() {
		held = l.Sparse.HeldOf(h.Batch, contributor)
	}
	if held+bytes <= share {
		return nil
	}
	return schema.Refuse(schema.ReasonOverBudget,
		"%d bytes after %d: a trainer's sparse gradients of one batch may take %d bytes on a shard, "+
			"its share of %d; %s", bytes, held, share, s.config.StagedBytesMax, s.config.Advice)
}

// closeSparse closes every round that is next in order and has all its lanes, and publishes the close. The rows of
// version b are no longer needed then: each trainer received its rows before it contributed, and other readers wait
// until b is complete. If other trainers may finish a lost trainer's batch, they read the undo log.
func (s *Shard) closeSparse(l *round.Line) error {
	for {
		b, total, ok := l.Sparse.Next()
		if !ok || s.holds(l, b) {
			return nil
		}
		s.closing(l, b, s.config.Placement.SparseBucket(s.config.Index))
		frames, err := s.applyRound(l, b, total)
		s.endRound(err == nil)
		if err != nil {
			return ofRound(s.config.Job, b, l.Sparse.Nodes(b), err)
		}
		if s.config.Journal != nil {
			s.config.Journal(Journal{Kind: schema.KindSparse, From: l.Whose, Batch: b})
		}
		l.Sparse.Close(l.Weights(b), total)
		s.closedRows(l, b, frames)
	}
}

// applyRound merges the contributions of a round, steps the rows that they touch, and makes its result.
func (s *Shard) applyRound(l *round.Line, b schema.Batch, total float64) ([]*schema.Frame, error) {
	for id, t := range s.tables {
		if t == nil || total == 0 {
			continue
		}
		_, dim := s.config.Placement.Columns(schema.Table(id), s.config.Index)
		keys, rows, weight, err := l.Sparse.Merge(schema.Table(id), dim, total)
		if err == nil {
			err = t.Apply(state.RowGradient{Keys: keys, Sums: rows, Weight: weight, Scale: 1})
		}
		if err != nil {
			return nil, err
		}
	}
	frames, err := l.Means.Make(l.Sparse, b, total, s.copyFlags(schema.Version(b)+1))
	if err == nil {
		err = s.checkMeans(frames)
	}
	return frames, err
}

// checkMeans checks the means of rows that trainers keep.
func (s *Shard) checkMeans(frames []*schema.Frame) error {
	for _, f := range frames {
		err := state.CheckFinite(s.config.Backend, f.Float32s(), func(at int) string {
			v := f.View()
			for _, part := range v.Parts() {
				if n := len(part.Keys) * part.Dim; at >= n {
					at -= n
					continue
				}
				return fmt.Sprintf("the mean gradient of table %q, row %d, column %d", s.config.Job.Tables[part.Table].Name,
					part.Keys[at/part.Dim], at%part.Dim)
			}
			return "a mean gradient"
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ownedChunks lists the chunks that an owner aggregates.
func ownedChunks(place *schema.Placement, owner int) []round.Chunk {
	var chunks []round.Chunk
	for _, c := range place.OwnedChunks(owner) {
		offset, elements := place.ChunkRange(c.Bucket, c.Chunk)
		chunks = append(chunks, round.Chunk{Bucket: c.Bucket, Chunk: c.Chunk, Chunks: schema.Chunk(place.Chunks(c.Bucket)),
			Offset: uint64(offset), Elements: elements})
	}
	return chunks
}

// ofRound adds the batch and lanes of the round to an error about a value that is not finite. Other errors stay as they
// are.
func ofRound(job *schema.Job, b schema.Batch, lanes []lane.Node, err error) error {
	if _, ok := errors.AsType[*state.NonFiniteError](err); !ok {
		return err
	}
	return fmt.Errorf("batch %d of lanes %v: %w", job.Counted(b), lanes, err)
}
