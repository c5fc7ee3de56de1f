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

// Config is what a shard is made from. Every field but Advice, Own, Lent, Undo, StaysReadable, Touches, Resumed,
// OnGroup, OnClosing and Journal is needed.
type Config struct {
	Job        *schema.Job       // validated; the shard keeps and does not change it
	Placement  *schema.Placement // of the job over all shards
	Index      int               // of this owner in Placement: a shard, or a trainer that reduces
	RunID      schema.RunID
	Generation schema.Generation
	Backend    cuda.Backend
	// Contributors says which lanes each trainer contributes. Contributions to other lanes are refused.
	Contributors []Contributor
	// StagedBytesMax bounds the payload bytes of contributions whose round is still open.
	StagedBytesMax int64
	// ParkedBytesMax bounds what is kept of each trainer's lookups that come before their rows are there: frames, and
	// FrameBytesOver for each. What has no room is dropped.
	ParkedBytesMax int64
	// Advice is what a trainer may do who exceeds that; empty is to send smaller batches.
	Advice string
	// Own is a trainer whose contributions lie in memory of its own, which is no part of StagedBytesMax; empty for
	// none.
	Own schema.Member
	// Lent says that contributions may lie in memory of their senders', which this process must not write to: nothing is
	// added up before a round closes.
	Lent bool
	// Undo records what rows were before a round over them, until the next one closes. TakeOver and StaysReadable need it.
	Undo bool
	// StaysReadable is that a value that is not finite stops the training and leaves the shard as it is, to be read: see
	// stopOnNonFinite. Otherwise one that comes of finite gradients is an error of Step.
	StaysReadable bool
	// Touches is that rows note when they change, so that copies may have those that were touched alone.
	Touches bool
	// Resumed is what the shard begins with in place of what is drawn; nil for that.
	Resumed *Resumed
	// OnGroup is told, in grouped, what becomes of groups, in the order in which it happens; may be nil.
	OnGroup func(GroupEvent)
	// OnClosing is told, within Step, which round is about to be closed: whose (schema.All where all trainers share it),
	// its number and its bucket, once for each chunk. What is computed until the next one, or until Step returns, is its
	// outcome. May be nil.
	OnClosing func(whose schema.Member, round schema.Batch, bucket schema.Bucket)
	// Journal, where it is set, is told of every lookup that is answered and of every round over rows that is
	// applied, in their order, within Step and Answer. With it a run whose order depends on timing can be replayed.
	Journal func(Journal)
}

// Journal is one entry of what a shard has done to its tables and answered from them.
type Journal struct {
	Kind  schema.Kind   // KindLookup: rows were read; KindSparse: a round was applied
	From  schema.Member // the trainer who asked, or whose round it was; All where it was that of all
	Batch schema.Batch  // of its frames
}

// Shard is one shard of one job: a pure state machine. Frames go in by Step, frames come out as outputs. It reads no
// clock, does no I/O, starts no goroutine once it is made, draws no random number and depends on no map's order, so
// that the same frames in the same order always give the same outputs. It is not safe for concurrent use.
//
// Invariants, in sync, for batch b, which is the batch under way:
//
//   - version b is in the results of every dense chunk, and is not written to; a closed round of b has its outcome
//     beside it, as version b+1;
//   - rows are of version b until the sparse round of b closes, and of version b+1 from then on;
//   - kept results of b-1 stay until the first round of b+1 closes, which needs every trainer to have them.
//
// In bounded the same holds of k+1 batches at once. In async each trainer has rounds of its own, and a chunk's version
// counts what was applied to it. Which of this holds is the clock's to say (package round).
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

	trainerState trainerState  // of what trainers own of the model
	rows         *schema.Frame // the answer to a lookup, refilled each time
	kept         bool          // the frame of this Step stays, and its payload with it
	stopped      *refusal      // why further contributions are refused (stopOnNonFinite); nil while the job trains
}

// New makes a shard with version 0 in place: initial rows are drawn for the partitions it owns, which takes about
// 15 ns a value and uses all processors. ctx only cuts that short. Close frees the tables.
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
	// In async rounds of several trainers have the same number, and each makes a version.
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
	s.config.Resumed = nil // which may hold much
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

// Step takes one verified frame that from has sent, and returns what is to be published and what became of the frame:
// schema.ReasonOK, schema.ReasonDuplicate where it was taken before, or why it was refused. A refused frame changes
// nothing and gives one refusal for its sender; a repeated one gives nothing. Outputs are valid until the next call.
// Answer gives what the frame has made due besides.
//
// The View may be reused afterwards; the bytes that it views belong to payload, which the shard releases exactly once:
// within this call where the frame is refused, repeated, a pull or a lookup that is answered, else when its round has
// no more use for it or the lookup is answered, at the latest in Close. A nil payload is not released, and its bytes
// must stay until the round closes.
//
// An error says that the shard's state can no longer be trusted, because the backend failed: the job must end.
func (s *Shard) Step(from schema.Member, v *schema.View, payload Payload) ([]Output, schema.Reason, error) {
	s.outputs, s.kept = s.outputs[:0], false
	defer func() {
		if !s.kept {
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

// GroupEvent is what became of a group of requests.
type GroupEvent = round.GroupEvent

// Gone is told of trainers that will contribute no more: they have left, or were lost. It returns what is to be
// published, as Step does, and is harmless when repeated. An error is as of Step.
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

// closeAll closes every round of a line whose turn it is and whose lanes are all there.
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

// closing tells that a round is about to be closed.
func (s *Shard) closing(l *round.Line, b schema.Batch, bucket schema.Bucket) {
	if s.config.OnClosing != nil {
		s.config.OnClosing(l.Whose, b, bucket)
	}
}

// closed tells the clock that a round has closed, and publishes its result to its receivers.
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

// stopOnNonFinite runs a step that may close rounds, of the frame of a contributor; -1: of none's. Where the shard
// stays readable, the first value that is not finite, in a contribution or in what is computed of several, refuses that
// contribution and all later ones, and no round closes any more. So the rows stay those of the last version whose round
// over rows has closed here: lookups and scans continue. All contributors are told, since they would wait for results
// that will never come; Step tells the frame's own.
func (s *Shard) stopOnNonFinite(contributor int, h *schema.Head, step func() (*refusal, error)) (*refusal, error) {
	if s.stopped != nil {
		return s.stopped, nil
	}
	refused, err := step()
	if !s.config.StaysReadable || refused == nil && err == nil {
		return refused, err
	}
	if _, computed := errors.AsType[*state.NonFiniteError](err); computed {
		prefix := schema.ReasonNonFinite.String() + ": " // which the reason says already
		refused, err = schema.Refuse(schema.ReasonNonFinite, "%s", strings.Replace(err.Error(), prefix, "", 1)), nil
	}
	if err != nil || refused.Reason != schema.ReasonNonFinite {
		return refused, err
	}
	s.stopped = refused
	for i := range s.config.Contributors {
		if i != contributor {
			told := *h
			told.Generation = s.since[i]
			s.outputRefusal(s.config.Contributors[i].Member, told, refused)
		}
	}
	return refused, nil
}

// A trainer's place is taken over when it is lost: by another trainer or a new process, which computes the batch under
// way again, and all after it. A lane's gradient is a function of job, version and lane. So earlier contributions stay,
// and the same ones sent again are repeats; only a sparse contribution of which chunks are missing is dropped, so that
// no contribution is of two. No other trainer notices: nodes, sequence numbers and windows of the others stay what they
// are.
//
// The batch under way is computed on rows of its version also where its round over rows has closed: see
// state.Table.ReadPrevious.

// TakeOver says that a contributor's place was taken in a generation: frames of an earlier one are refused from
// here on.
func (s *Shard) TakeOver(contributor int, g schema.Generation) {
	s.since[contributor] = g
	if l := s.clock.Line(contributor).Sparse; l != nil {
		l.Forget(contributor)
	}
	s.forget(contributor)
}

// reachesPrevious reports whether a read is of the version before the last round over rows, by a trainer whose place
// was taken over, or of a job that stays readable: there another shard may have stopped before that round.
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

// MirrorAt asks for a copy of a version for a ps that stands by. It reports whether one will begin, unless one for
// files is under way then: it does not where the batch that is computed on the version has begun.
func (s *Shard) MirrorAt(w state.CopyWish) bool {
	if s.copy != nil && s.copy.mirror { // of one that was given up
		s.EndCopy()
	}
	if s.Began(w.At) {
		return false
	}
	s.mirror = w
	return true
}

// closeHeld closes the rounds that have stayed open for a copy, where they may by now.
func (s *Shard) closeHeld(l *round.Line) error {
	if !s.holding {
		return nil
	}
	s.holding = false
	return s.closeAll(l)
}

// Touched is what the copy that is being taken was to be, and what may have changed since the earlier version of that.
func (s *Shard) Touched() (state.CopyWish, state.Extent) {
	touched := s.copy.Touched()
	if s.dense == nil {
		others := s.OfTrainers()
		touched.Tensors, touched.Bytes = others.Tensors, touched.Bytes+others.Bytes
		maps.Copy(touched.Rows, others.Rows)
	}
	return s.copy.Of(), touched
}

// ErrResume says that a version could not be read, or is not one. The number follows, and why.
var ErrResume = errors.New("resume at version")

// Resumed is a version of a job, with what its optimizers kept, that shards begin with. Read gives all pieces of it, of
// all shards that there were, to each; its error ends it and is returned.
type Resumed struct {
	Version schema.Version // 1 or later
	Read    func(tensor func(state.Tensor) error, rows func(state.Rows) error) error

	tables []state.Table // that are at the version: Read gives no rows; nil: it does
	lr     *state.LRChanges
}

// resume puts a version in the place of what was drawn, as the outcome of the batch before it.
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

// checkResumed checks that all that is here is of one version.
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

// sealResumed gives every chunk of the version the head of a result, so that trainers can ask for it.
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

// makeDense makes the state of the parameters where they are on shards, and draws version 0. The result frame of a
// version is also where the chunk's values of that version live: the optimizer reads one frame and writes another, and
// publishing needs no copy.
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
	if s.dense, err = state.NewDense(config); err != nil || s.config.Resumed != nil { // else there is another version
		return err
	}
	return s.dense.Draw(ctx)
}

// values is where a version of the i-th chunk lies.
func (s *Shard) values(i int, v schema.Version) []float32 { return s.clock.Results(v).Values(i, v) }

// stepDense takes one node's sum over one chunk. The chunk closes when its nodes cover all lanes.
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
	s.kept = true
	if err := l.Dense.Add(&c, l.Weights(e.Round)); err != nil {
		return nil, err
	}
	if err := s.closeDense(l, c.Chunk); err != nil {
		return nil, err
	}
	return nil, s.closeHeld(l)
}

// closeDense computes and publishes the outcome of every round of a chunk whose turn it is and whose lanes are all
// there, but for those that wait for a copy.
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
			Flags: s.asksToCopy(schema.Version(c.Batch) + 1)})
		s.closed(l, c.Batch, l.Dense.Chunk(i).Bucket, frame)
	}
}

// outcome computes what a round makes of a chunk, as the chunk's next version.
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

// stepSparse takes one chunk of one node's contribution to the round over all rows that are here. The round closes
// whole, when every lane's contribution is there with all its chunks.
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
	s.kept = true
	if err := l.Sparse.Add(&c, l.Weights(h.Batch)); err != nil {
		return nil, err
	}
	if err := s.closeSparse(l); err != nil {
		return nil, err
	}
	return nil, s.closeHeld(l)
}

// CheckShare refuses what does not fit its sender's share of the budget together with the sparse contributions to this
// batch that it has sent: all of them have to be here before the round closes, so waiting for room would never end.
// Dense contributions do not count: their rounds close without it, or, where a version is copied in bounded, wait for
// the sparse rounds of earlier batches alone, of which every trainer sends all before anything of a later one.
func (s *Shard) CheckShare(contributor int, h *schema.Head, bytes int64) *refusal {
	share, l := s.config.StagedBytesMax/int64(len(s.config.Contributors)), s.clock.Line(contributor)
	if h.Kind != schema.KindSparse || l.Sparse == nil || h.Batch < l.Sparse.Closed() {
		return nil
	}
	held := int64(0) // of a batch that this frame is the first of
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

// closeSparse closes every round whose turn it is and whose lanes are all there, and tells who takes part. The rows of
// version b are no longer needed then: each trainer has had its own before it contributed to the round, and what reads
// besides waits until b is complete. Where others may finish a lost trainer's batch, they read the undo log.
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

// applyRound merges the contributions of a round, runs the optimizer on the rows that they touch, and makes its result.
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
	frames, err := l.Means.Make(l.Sparse, b, total, s.asksToCopy(schema.Version(b)+1))
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

// ownedChunks lists the chunks that add up at an owner.
func ownedChunks(place *schema.Placement, owner int) []round.Chunk {
	var chunks []round.Chunk
	for _, c := range place.OwnedChunks(owner) {
		offset, elements := place.ChunkRange(c.Bucket, c.Chunk)
		chunks = append(chunks, round.Chunk{Bucket: c.Bucket, Chunk: c.Chunk, Chunks: schema.Chunk(place.Chunks(c.Bucket)),
			Offset: uint64(offset), Elements: elements})
	}
	return chunks
}

// ofRound says which round an outcome that is not finite is of. Other errors stay as they are.
func ofRound(job *schema.Job, b schema.Batch, lanes []lane.Node, err error) error {
	if _, ok := errors.AsType[*state.NonFiniteError](err); !ok {
		return err
	}
	return fmt.Errorf("batch %d of lanes %v: %w", job.Counted(b), lanes, err)
}
