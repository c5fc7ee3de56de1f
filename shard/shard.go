package shard

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"gradbus/cuda"
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
	// Lent says that contributions may lie in memory of their senders', which nobody here writes to: nothing is added
	// up before a round closes.
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
	// OnGroup is told, in grouped, what becomes of groups, in the order in which it happens; nil for nobody.
	OnGroup func(GroupEvent)
	// OnClosing is told, within Step, which round is about to be closed: whose (schema.All where all trainers share
	// it), its number and its bucket, once for each chunk. What is computed until the next one, or until Step returns,
	// is its outcome. nil for nobody.
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

// Output is a frame that the shard wants published.
type Output struct {
	Kind   schema.Kind   // schema.KindMean, KindRows, KindRefusal, or what is asked of a trainer: KindPull, KindState
	To     schema.Member // a trainer, or schema.All
	Batch  schema.Batch
	Bucket schema.Bucket
	Reason schema.Reason // of a refusal; ReasonOK otherwise
	Text   string        // of a refusal: what is in the frame, for a log
	Frame  []byte        // valid until the next call of Step or Answer, and beyond where Outlasts says so
	Built  *schema.Frame // whose bytes Frame is; nil of a refusal

	until schema.Batch // of a result: the first batch whose rounds may write to the frame; 0: any may
}

// Outlasts reports whether Frame stays as it is in a Step of a frame of this kind, newest being the newest batch that
// is under way then. A refusal has a frame of its own, as has what is rare; rows lie in that of all answers, and the
// frames of a chunk's results take turns.
func (o *Output) Outlasts(kind schema.Kind, newest schema.Batch) bool {
	switch o.Kind {
	case schema.KindRefusal, schema.KindPull, schema.KindState:
		return true
	case schema.KindRows:
		return kind == schema.KindDense || kind == schema.KindSparse
	}
	return newest < o.until
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

	clock   round.Clock
	dense   *state.Dense // nil where the trainers have the parameters
	replica replica      // of what these have
	lr      *state.LRChanges
	tables  []state.Table // nil where no column is on this shard

	since     []schema.Generation // by contributor: of the frames that are taken of it
	held      *round.Held         // by contributor: bytes of its contributions to open rounds
	copy      *copying            // of a version; nil where there is none
	copies    state.CopyWish      // for files
	mirror    state.CopyWish      // for a ps that stands by
	copied    schema.Version      // the last that a copy was begun of
	holding   bool                // rounds may have stayed open for one
	parked    []parking           // by contributor
	answering []int               // contributors whose parked lookups are being answered, in their order

	rows    *schema.Frame // the answer to a lookup, refilled each time
	outputs []Output
	rounds  uint64 // that have closed
	// for reports: batches whose rounds are all closed here; in async those of the trainer who is furthest
	newest schema.Version
	kept   bool // the frame of this Step stays, and its payload with it

	stopped *refusal // what every further contribution is refused with (stopOnNonFinite); nil while the job trains
}

// New makes a shard with version 0 in place: initial rows are drawn for the partitions it owns, which takes about
// 15 ns a value and uses all processors. ctx only cuts that short. Close frees the tables.
func New(ctx context.Context, c Config) (*Shard, error) {
	c.Advice = cmp.Or(c.Advice, "send smaller batches")
	s := &Shard{config: c, lr: &state.LRChanges{}, member: c.Placement.Owner(c.Index),
		parked: make([]parking, len(c.Contributors)),
		held:   round.NewHeld(len(c.Contributors)), since: make([]schema.Generation, len(c.Contributors))}
	for i := range s.since {
		s.since[i] = c.Generation
	}
	if err := s.build(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("make shard %s of job %s: %w", s.member, c.Job.Name, err)
	}
	return s, nil
}

func (s *Shard) build(ctx context.Context) (err error) {
	if err := s.makeTables(ctx); err != nil {
		return err
	}
	s.placeReplica()
	c := &s.config
	config := round.ClockConfig{Backend: c.Backend, Job: c.Job, Place: c.Placement, Owner: c.Index,
		Contributors: c.Contributors,
		Summing:      c.Placement.Plan.Summing, Head: schema.Head{Job: c.RunID, Generation: c.Generation},
		Held: s.held, Chunks: s.ownedChunks(), Version: s.version, OnGroup: c.OnGroup}
	if c.Lent {
		config.Summing = schema.SummingAtClose
	}
	if c.Resumed != nil {
		config.First = schema.Batch(c.Resumed.Version)
	}
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
		s.discard(&s.parked[i])
	}
	if s.clock != nil {
		for _, l := range s.clock.Lines() {
			l.Release()
		}
	}
	s.EndCopy()
	for _, t := range s.tables {
		if t != nil {
			t.Close()
		}
	}
	s.dense.Close()
	s.closeReplica()
	s.tables, s.clock, s.dense = nil, nil, nil
}

// SetLR gives the shard every change of the learning rates. It is called before a frame of the first batch of a new
// one is stepped.
func (s *Shard) SetLR(changes []schema.LRChange) { s.lr.Set(changes) }

// Batch is the newest batch under way; in async that of the trainer who is furthest.
func (s *Shard) Batch() schema.Batch {
	b := schema.Batch(0)
	for _, l := range s.clock.Lines() {
		b = max(b, l.Batch())
	}
	return b
}

// Waiting is what an open batch lacks.
type Waiting = round.Waiting

// Waiting says whom the rounds of the oldest batch that waits for anybody wait for.
func (s *Shard) Waiting() Waiting { return s.clock.Waiting() }

// Idle reports whether nothing is added up here.
func (s *Shard) Idle() bool { return s.clock.Line(0).Rounds() == 0 }

// Rounds counts those that have closed.
func (s *Shard) Rounds() uint64 { return s.rounds }

// Newest is the version whose rounds are all closed here; in async that of the trainer who is furthest.
func (s *Shard) Newest() schema.Version { return s.newest }

// Done is how many batches are complete here, of all trainers; where nothing is added up here, all that there may be.
func (s *Shard) Done() schema.Version {
	if s.Idle() {
		return math.MaxUint64
	}
	return s.clock.Line(0).Done()
}

// BeginningProves reports whether a contributor, by beginning a batch, says that all which it sent of those before
// has come, so that it needs no ack.
func (s *Shard) BeginningProves(contributor int) bool { return s.clock.Line(contributor).Ahead == 0 }

// Answers says whose rounds the frames of a contributor belong to: its own or those of all. It is false where
// results do not name rounds by the batches of these frames.
func (s *Shard) Answers(contributor int) (whose schema.Member, ok bool) {
	l := s.clock.Line(contributor)
	return l.Whose, !l.Renumbered
}

// StagedBytes is the memory held by contributions to open rounds.
func (s *Shard) StagedBytes() int64 { return s.held.Bytes() }

// HeldBytes is the part of StagedBytes that came from a contributor.
func (s *Shard) HeldBytes(contributor int) int64 { return s.held.Of(contributor) }

// Step takes one verified frame that from has sent, and returns what is to be published and what became of the frame:
// schema.ReasonOK, schema.ReasonDuplicate where it was taken before, or why it was refused. A refused frame changes
// nothing and gives one refusal for its sender; a repeated one gives nothing. Outputs are valid until the next call.
// Answer gives what the frame has made due besides.
//
// The View may be reused afterwards; the bytes that it views belong to payload, which the shard releases exactly
// once: within this call where the frame is refused, repeated, a pull or a lookup that is answered, else when its
// round has no more use for it or the lookup is answered, at the latest in Close. A nil payload is nobody's to release,
// and its bytes must then stay until the round closes.
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
	case schema.KindState:
		return s.stepState(contributor, h, v)
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

// closed tells the clock that a round has closed, and publishes its result to those who hear of it.
func (s *Shard) closed(l *round.Line, b schema.Batch, bucket schema.Bucket, frames ...*schema.Frame) {
	for _, to := range s.clock.Closed(l, b) {
		for _, f := range frames {
			s.outputResult(l, b, to.Member, to.Batch, bucket, f)
		}
	}
	s.rounds++
	s.newest = max(s.newest, l.Done())
	s.DropReplica(s.newest)
	if l.Ahead > 0 {
		s.beginCopy(l)
	}
}

// output publishes a sealed frame.
func (s *Shard) output(kind schema.Kind, to schema.Member, b schema.Batch, bucket schema.Bucket, f *schema.Frame) {
	v := f.View()
	s.outputs = append(s.outputs, Output{Kind: kind, To: to, Batch: b, Bucket: bucket, Frame: v.Bytes(), Built: f})
}

// outputResult publishes the result of a round, as that of what its receiver calls batch b.
func (s *Shard) outputResult(l *round.Line, r schema.Batch, to schema.Member, b schema.Batch, bucket schema.Bucket,
	f *schema.Frame) {
	s.output(schema.KindMean, to, b, bucket, f)
	if l.Stays > 0 {
		s.outputs[len(s.outputs)-1].until = r + l.Stays
	}
}

// admit checks what every frame must have right before any field of it is used: job, generation, a sender who is a
// trainer of the job, and all that the job says of frames of its kind (schema.Placement.CheckFrame). What is left to
// the kinds is the batch, the sender's lanes and the values.
func (s *Shard) admit(from schema.Member, v *schema.View) (contributor int, refused *refusal) {
	i := s.Contributor(from)
	if err := s.CheckMember(i, v); err != nil {
		return 0, schema.Refusing(err)
	}
	if i < 0 {
		return 0, schema.Refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", from, s.config.Job.Name)
	}
	if err := s.config.Placement.CheckFrame(v, s.config.Index); err != nil {
		return 0, schema.Refusing(err)
	}
	return i, nil
}

// CheckMember checks that a frame is of this run of the job, and of whoever has its sender's place now. The contributor
// is -1 of who is none.
func (s *Shard) CheckMember(contributor int, v *schema.View) error {
	if contributor < 0 {
		return v.CheckJob(s.config.RunID, v.Head().Generation)
	}
	return v.CheckJob(s.config.RunID, s.since[contributor])
}

// Contributor is the index of a trainer; -1 of who is none.
func (s *Shard) Contributor(m schema.Member) int {
	for i := range s.config.Contributors {
		if s.config.Contributors[i].Member == m {
			return i
		}
	}
	return -1
}
