package ps

import (
	"context"
	"fmt"

	"gradbus/cuda"
	"gradbus/round"
	"gradbus/schema"
	"gradbus/shard/state"
)

// ShardConfig is what a shard is made from. Every field but Lent, OnGroup and Journal is needed.
type ShardConfig struct {
	Job        *schema.Job       // validated; the shard keeps and does not change it
	Placement  *schema.Placement // of the job over all shards
	Index      int               // of this shard, from 0
	RunID      schema.RunID
	Generation schema.Generation
	Backend    cuda.Backend
	// Hosts says which lanes each trainer hosts. Contributions to other lanes are refused.
	Hosts []Host
	// StagedBytesMax bounds the payload bytes of contributions whose round is still open.
	StagedBytesMax int64
	// Lent says that contributions may lie in memory of their senders', which nobody here writes to: nothing is added up before a round closes.
	Lent bool
	// OnGroup is told, in grouped, what becomes of groups, in the order in which it happens; nil for nobody.
	OnGroup func(GroupEvent)
	// Journal, where it is set, is told of every lookup that is answered and of every round over rows that is applied, in
	// their order, within Step. With it a run whose order depends on timing can be replayed.
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
	Kind   schema.Kind   // schema.KindMean, KindRows or KindRefusal
	To     schema.Member // a trainer, or schema.All
	Batch  schema.Batch
	Bucket schema.Bucket
	Reason schema.Reason // of a refusal; ReasonOK otherwise
	Text   string        // of a refusal: what is in the frame, for a log
	Frame  []byte        // valid until the next call of Step
}

// Shard is one shard of one job: a pure state machine. Frames go in by Step, frames come out as outputs. It reads no
// clock, does no I/O, starts no goroutine once it is made, draws no random number and depends on no map's order, so that
// the same frames in the same order always give the same outputs. It is not safe for concurrent use.
//
// Invariants, in sync, for batch b, which is the batch under way:
//
//   - version b is in the tables and in the results of every dense chunk, and is not written to;
//   - a closed round of b has its outcome beside it: in the results as version b+1, or in staged rows;
//   - kept results of b-1 stay until the first round of b+1 closes, which needs every trainer to have them.
//
// In bounded the same holds of k+1 batches at once for dense chunks, and rows are committed when their round closes, as
// they are in async, where each trainer has rounds of its own (timeline.go) and a chunk's version counts what was applied
// to it.
type Shard struct {
	job        *schema.Job
	place      *schema.Placement
	index      int
	member     schema.Member
	run        schema.RunID
	generation schema.Generation
	backend    cuda.Backend
	hosts      []Host
	lent       bool

	lines   []timeline // one for all trainers; in async one each, by host
	dense   denseOwner
	groups  *grouping // nil but in grouped
	onGroup func(GroupEvent)
	sparse  sparseOwner
	lr      state.LRChanges
	places  []*state.Places // by table: which rows add up here; nil where none do
	tables  []state.Table   // nil where no row is on this shard

	held      *round.Held // by host: bytes of its contributions to open rounds
	stagedMax int64

	rows    *schema.Frame // the answer to a lookup, refilled each time
	journal func(Journal)
	outputs []Output
	rounds  uint64         // that have closed
	newest  schema.Version // for pulses: batches whose rounds are all closed here; in async those of the trainer who is furthest
	kept    bool           // the frame of this Step stays, and its payload with it
}

// NewShard makes a shard with version 0 in place: initial rows are drawn for the partitions it owns, which takes about
// 15 ns a value and uses all processors. ctx only cuts that short. Close frees the tables.
func NewShard(ctx context.Context, c ShardConfig) (*Shard, error) {
	s := &Shard{
		job: c.Job, place: c.Placement, index: c.Index, member: schema.ShardMember(c.Index), run: c.RunID,
		generation: c.Generation, backend: c.Backend, hosts: c.Hosts, lent: c.Lent, stagedMax: c.StagedBytesMax,
		held: round.NewHeld(len(c.Hosts)), journal: c.Journal, onGroup: c.OnGroup,
	}
	err := s.build(ctx)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("make shard %s of job %s: %w", s.member, c.Job.Name, err)
	}
	return s, nil
}

func (s *Shard) build(ctx context.Context) error {
	if err := s.makeTables(ctx); err != nil {
		return err
	}
	chunks := s.ownedChunks()
	if err := s.makeDense(ctx, chunks); err != nil {
		return err
	}
	if err := s.makeSparse(); err != nil {
		return err
	}
	return s.makeTimelines(chunks)
}

// sumsAtClose says that rounds leave all sums to their end.
func (s *Shard) sumsAtClose() bool { return s.lent || s.place.Plan.SumAtClose }

// Close frees the shard's memory and releases the payloads of open rounds. The shard must not be used afterwards.
func (s *Shard) Close() {
	s.letGo()
	for _, t := range s.tables {
		if t != nil {
			t.Close()
		}
	}
	s.dense.state.Close()
	s.tables, s.lines, s.dense = nil, nil, denseOwner{}
}

// letGo releases what open rounds hold.
func (s *Shard) letGo() {
	for i := range s.lines {
		s.lines[i].dense.Release()
		if s.lines[i].sparse != nil {
			s.lines[i].sparse.Release()
		}
	}
}

// Batch is the newest batch under way; in async that of the trainer who is furthest.
func (s *Shard) Batch() schema.Batch {
	b := schema.Batch(0)
	for i := range s.lines {
		b = max(b, s.lines[i].batch)
	}
	return b
}

// StagedBytes is the memory held by contributions to open rounds.
func (s *Shard) StagedBytes() int64 { return s.held.Bytes() }

// HeldBytes is the part of StagedBytes that came from the host-th trainer.
func (s *Shard) HeldBytes(host int) int64 { return s.held.Of(host) }

// Step takes one verified frame that from has sent, and returns what is to be published and what became of the frame:
// schema.ReasonOK, schema.ReasonDuplicate where it was taken before, or why it was refused. A refused frame changes
// nothing and gives one refusal for its sender; a repeated one gives nothing. Outputs are valid until the next call.
//
// The View may be reused afterwards; the bytes that it views belong to payload, which the shard releases exactly once:
// within this call where the frame is refused, repeated, a lookup or a pull, else when its round has no more use for it,
// at the latest in Close. A nil payload is nobody's to release, and its bytes must then stay until the round closes.
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
	host, refused := s.admit(from, v)
	if refused == nil {
		var err error
		if refused, err = s.take(host, &h, v, payload); err != nil {
			return nil, schema.ReasonOK, fmt.Errorf("shard %s of job %s: %v batch %d bucket %d chunk %d: %w",
				s.member, s.job.Name, h.Kind, h.Batch, h.Bucket, h.Chunk, err)
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

func (s *Shard) take(host int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	switch h.Kind {
	case schema.KindDense:
		return s.stepDense(host, h, v, payload)
	case schema.KindSparse:
		return s.stepSparse(host, h, v, payload)
	case schema.KindLookup:
		return s.stepLookup(host, h, v)
	case schema.KindPull:
		return s.stepPull(host, h, v)
	}
	return schema.Refuse(schema.ReasonUnknownKind, "a shard takes no frames of kind %v", h.Kind), nil
}

// admit checks what every frame must have right: job, generation and a sender who is a trainer of the job.
func (s *Shard) admit(from schema.Member, v *schema.View) (host int, refused *refusal) {
	if err := v.CheckJob(s.run, s.generation); err != nil {
		return 0, schema.Refusing(err)
	}
	for i := range s.hosts {
		if s.hosts[i].Member == from {
			return i, nil
		}
	}
	return 0, schema.Refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", from, s.job.Name)
}
