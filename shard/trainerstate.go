package shard

import (
	"context"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// If trainers own dense parameters, all of them have the same values and optimizer state at one version, and shards
// have neither. A checkpoint needs this state, and so does each trainer after a restart:
//
//   - The ps of a shard requests it from the trainer of lane 0, one chunk after another (AskTrainerChunk). The result
//     of the previous batch, or rows, announce to trainers that the version is written (schema.FlagCopy). The trainer
//     of lane 0 then makes a copy for these requests.
//   - A trainer of a run that begins with a version requests each chunk from its shard, which has read it, until the
//     second batch has closed.
//
// If trainers reduce among themselves, each chunk is requested by the shard that would own it otherwise. The same holds
// for the rows of replicated tables, which are requested one range at a time (AskTrainerRows). A request without an
// answer is repeated.

// trainerState is a shard's part of the state that trainers own.
type trainerState struct {
	place   *schema.Placement // placement of the chunks and rows requested here
	chunks  []schema.ChunkRef // in order; empty if there are none
	rows    []TrainerRows     // in order; empty if there are none
	at      schema.Version    // version that the job resumed with, while a trainer may ask for it; else 0
	resumed *state.Dense      // chunks of that version; nil: none
	tables  []*state.Array    // rows of that version, by table; nil for tables that are not replicated
	pieces  *Pieces           // converts what trainers send
}

// TrainerRows is a partition of a replicated table and its number of rows, which is at least one.
type TrainerRows struct {
	Table     schema.Table
	Partition schema.Partition
	Rows      int
}

// placeTrainerState finds the chunks that this shard requests: parameters that all trainers have at one version.
func (s *Shard) placeTrainerState() {
	place, index := s.config.Placement, s.config.Index
	if place.OfTrainers() == nil || place.PartyOf(index) == schema.ByTrainers {
		return
	}
	s.trainerState.place, s.trainerState.pieces = place.OfTrainers(), NewPieces(s.config.Job)
	s.trainerState.chunks = s.trainerState.place.OwnedChunks(index)
	for i := range s.config.Job.Tables {
		spec := &s.config.Job.Tables[i]
		keys := spec.Partitioning()
		for p := range schema.Partition(spec.Partitions) {
			n := int(keys.Rows(p))
			if spec.Replicated && n > 0 && s.trainerState.place.Holds(schema.Table(i), p, index) {
				s.trainerState.rows = append(s.trainerState.rows, TrainerRows{schema.Table(i), p, n})
			}
		}
	}
}

// TrainerChunks returns the number of chunks that this shard requests from trainers.
func (s *Shard) TrainerChunks() int { return len(s.trainerState.chunks) }

// AskTrainerChunk returns the request to the trainer of lane 0 for the i-th of these chunks, at a version that it has
// copied. The answer repeats the number n of the request.
func (s *Shard) AskTrainerChunk(i int, v schema.Version, n schema.Sequence) (Output, error) {
	c := s.trainerState.chunks[i]
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull})
	if err != nil {
		return Output{}, err
	}
	return s.sealAsk(f, schema.Head{Batch: schema.Batch(v), Bucket: c.Bucket, Chunk: c.Chunk, Chunks: c.Chunk + 1,
		Sequence: n}), nil
}

// TrainerPartitions returns the partitions of replicated tables that this shard requests: table by table, ascending.
func (s *Shard) TrainerPartitions() []TrainerRows { return s.trainerState.rows }

// AskTrainerRows returns the request to the trainer of lane 0 for the rows of such a partition from a key on, at a
// version that it has copied. The request also confirms the rows before that key. A key past the last row of the table
// gets no answer: it confirms all rows that this shard requests.
func (s *Shard) AskTrainerRows(r TrainerRows, from uint64, v schema.Version, n schema.Sequence) (Output, error) {
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
	if err != nil {
		return Output{}, err
	}
	f.SetSection(0, schema.Section{Table: r.Table, Dim: uint32(s.config.Job.Tables[r.Table].Dim), Count: 1})
	f.Keys()[0] = from
	return s.sealAsk(f, schema.Head{Batch: schema.Batch(v), Bucket: schema.Bucket(r.Partition), Sequence: n}), nil
}

// sealAsk returns a request to the trainer of lane 0.
func (s *Shard) sealAsk(f *schema.Frame, h schema.Head) Output {
	const zero = 0
	h.Job, h.Generation, h.Lanes = s.config.RunID, s.since[zero], uint16(s.config.Job.Lanes)
	h.Flags = schema.FlagParameters
	f.SetHead(h)
	return Output{Kind: schema.KindPull, To: s.config.Contributors[zero].Member, Batch: h.Batch, Bucket: h.Bucket,
		Frame: f.Seal(), Built: f}
}

// pullResumed answers a trainer's pull of a parameter chunk of the version that the run began with.
func (s *Shard) pullResumed(contributor int, h *schema.Head) (*refusal, error) {
	r, v := &s.trainerState, schema.Version(h.Batch)
	if r.resumed == nil || r.at != v {
		return s.gone(v), nil
	}
	i := r.place.IndexOfChunk(h.Bucket, h.Chunk)
	return nil, s.tellResumed(contributor, h, &state.CopyPiece{Tensors: r.resumed.Pieces(i, v)})
}

// gone returns the refusal for a version that is no longer here.
func (s *Shard) gone(v schema.Version) *refusal {
	return schema.Refuse(schema.ReasonStaleBatch,
		"parameters of version %d are not here: want the version that the run began with", v)
}

// tellResumed sends a trainer a piece of the version that the job resumed with.
func (s *Shard) tellResumed(contributor int, h *schema.Head, piece *state.CopyPiece) error {
	frames, err := s.trainerState.pieces.Answer(s.resumedHead(contributor, h.Batch, h.Sequence), piece)
	for _, f := range frames {
		s.output(schema.KindState, s.config.Contributors[contributor].Member, h.Batch, h.Bucket, f)
	}
	return err
}

// pullResumedRows answers a trainer's pull of rows of a replicated table at the version that the job resumed with.
func (s *Shard) pullResumedRows(contributor int, h *schema.Head, v *schema.View) (*refusal, error) {
	r, keys, t := &s.trainerState, v.Keys(), v.Section(0).Table
	if r.at == 0 || r.at != schema.Version(h.Batch) || r.tables[t] == nil {
		return s.gone(schema.Version(h.Batch)), nil
	}
	rows := r.tables[t].Stretch(schema.Partition(h.Bucket), keys[0], r.pieces.ValuesMax())
	return nil, s.tellResumed(contributor, h, &state.CopyPiece{Rows: &rows})
}

// resumedHead returns the head of such an answer.
func (s *Shard) resumedHead(contributor int, b schema.Batch, n schema.Sequence) schema.Head {
	return schema.Head{Job: s.config.RunID, Generation: s.since[contributor], Batch: b, Lanes: uint16(s.config.Job.Lanes),
		Sequence: n}
}

// resumable returns the memory that receives parameters of a version: the shard's own, or that which trainers will ask
// for; nil if the shard has neither. tables are those whose rows trainers will ask for.
func (s *Shard) resumable(ctx context.Context, v schema.Version) (dense *state.Dense, tables []*state.Array,
	err error) {
	r := &s.trainerState
	if s.dense != nil || r.place == nil {
		return s.dense, nil, nil
	}
	r.at = v
	if r.tables, err = s.resumableTables(ctx); err == nil && len(r.chunks) > 0 {
		err = s.resumableDense()
	}
	return r.resumed, r.tables, err
}

// resumableTables makes the replicated tables, with the partitions that this shard requests.
func (s *Shard) resumableTables(ctx context.Context) ([]*state.Array, error) {
	tables := make([]*state.Array, len(s.config.Job.Tables))
	for i := range s.config.Job.Tables {
		spec, id := &s.config.Job.Tables[i], schema.Table(i)
		if !spec.Replicated {
			continue
		}
		t, err := state.NewArray(ctx, state.ArrayConfig{
			Backend: s.config.Backend, Spec: spec, Optimizer: s.config.Job.OptimizerOf(id), LR: s.lr, Seed: s.config.Job.Seed,
			Here:    func(p schema.Partition) bool { return s.trainerState.place.Holds(id, p, s.config.Index) },
			Columns: spec.Dim, Start: s.config.Job.StartVersion(), Late: true})
		if err != nil {
			return tables, fmt.Errorf("table %q: %w", spec.Name, err)
		}
		tables[i] = t
	}
	return tables, nil
}

// resumableDense makes the chunks that this shard requests.
func (s *Shard) resumableDense() (err error) {
	chunks := s.trainersChunks()
	values := make([][]float32, len(chunks))
	for i := range chunks {
		values[i] = make([]float32, chunks[i].Elements)
	}
	s.trainerState.resumed, err = state.NewDense(state.DenseConfig{Backend: s.config.Backend, Lanes: s.config.Job.Lanes,
		Chunks: chunks, LR: s.lr, InPlace: true,
		Values: func(i int, _ schema.Version) []float32 { return values[i] }})
	return err
}

// DropResumed frees the version that the job resumed with once a later version is complete: the batch that is computed
// on the resumed one has closed everywhere, and no trainer begins with it any more.
func (s *Shard) DropResumed(there schema.Version) {
	if at := s.trainerState.at; at > 0 && there > at+1 {
		s.closeResumed()
	}
}

// closeResumed frees the version that the job resumed with.
func (s *Shard) closeResumed() {
	r := &s.trainerState
	if r.resumed != nil {
		r.resumed.Close()
	}
	for _, t := range r.tables {
		if t != nil {
			t.Close()
		}
	}
	r.at, r.resumed, r.tables = 0, nil, nil
}

// trainersChunks returns the chunks that this shard requests, in the form in which trainers step them.
func (s *Shard) trainersChunks() (all []state.Chunk) {
	for _, c := range s.trainerState.chunks {
		all = append(all, state.PlacedChunk(s.config.Job, s.trainerState.place, c.Bucket, c.Chunk, true))
	}
	return all
}

// OfTrainers returns the extent of the trainers' state that this shard requests. All chunks change with every batch,
// and any row may.
func (s *Shard) OfTrainers() (e state.Extent) {
	for _, c := range s.trainersChunks() {
		for _, p := range c.Pieces {
			e.Tensors = append(e.Tensors, state.Stretch{Name: p.Name, From: p.From, Elements: p.Elements})
			slots, _ := state.SlotBytes(*c.Optimizer, int64(p.Elements), 1)
			e.Bytes += int64(4*p.Elements) + slots
		}
	}
	e.Rows = map[string]int64{}
	for _, r := range s.trainerState.rows {
		spec := &s.config.Job.Tables[r.Table]
		slots, marks := state.SlotBytes(s.config.Job.OptimizerOf(r.Table), int64(r.Rows), int64(spec.Dim))
		e.Rows[spec.Name] += int64(r.Rows)
		e.Bytes += int64(r.Rows)*int64(4*spec.Dim+8) + slots + marks
	}
	return e
}

// copyFlags returns the flags of the result or rows that make a version, which tell trainers that it is written.
func (s *Shard) copyFlags(v schema.Version) (flags uint32) {
	if s.trainerState.place == nil || v == 0 || v != s.copies.At { // trainers have nothing to copy
		return 0
	}
	return schema.FlagCopy
}

// Contributor is a trainer and its lanes: [First, First+Count).
type Contributor = round.Contributor

// Payload is the memory of a frame, and a lease of it.
type Payload = round.Payload

// contributors lists the trainers whose frames a shard accepts.
type contributors struct {
	all   []Contributor
	since []schema.Generation // by contributor: the generation of frames that are accepted
	job   *schema.Job
	runID schema.RunID
	place *schema.Placement
	owner int // the shard's index there
}

func newContributors(c *Config) contributors {
	all := contributors{all: c.Contributors, since: make([]schema.Generation, len(c.Contributors)), job: c.Job,
		runID: c.RunID, place: c.Placement, owner: c.Index}
	for i := range all.since {
		all.since[i] = c.Generation
	}
	return all
}

// Contributor returns the index of a trainer; -1 if the member is no contributor.
func (c *contributors) Contributor(m schema.Member) int {
	for i := range c.all {
		if c.all[i].Member == m {
			return i
		}
	}
	return -1
}

// Since returns the generation in which a contributor's slot was taken.
func (c *contributors) Since(contributor int) schema.Generation { return c.since[contributor] }

// CheckMember checks that a frame is of this run of the job, and from the process that has its sender's slot. The
// contributor is -1 if the sender is none.
func (c *contributors) CheckMember(contributor int, v *schema.View) error {
	if contributor < 0 {
		return v.CheckJob(c.runID, v.Head().Generation)
	}
	return v.CheckJob(c.runID, c.since[contributor])
}

// admit checks what must hold for every frame before any of its fields is used: job, generation, a sender that is a
// trainer of the job, and what the job requires of frames of its kind (schema.Placement.CheckFrame). The kinds
// themselves check the batch, the sender's lanes and the values.
func (c *contributors) admit(from schema.Member, v *schema.View) (contributor int, refused *refusal) {
	i := c.Contributor(from)
	if err := c.CheckMember(i, v); err != nil {
		return 0, schema.Refusing(err)
	}
	if i < 0 {
		return 0, schema.Refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", from, c.job.Name)
	}
	if err := c.place.CheckFrame(v, c.owner); err != nil {
		return 0, schema.Refusing(err)
	}
	return i, nil
}

// budget bounds the payload bytes of contributions whose round is still open.
type budget struct {
	most   int64
	advice string        // for a trainer that exceeds the budget
	own    schema.Member // the trainer whose contributions lie in its own memory
}

// bytes returns the bytes that a contribution takes from the budget.
func (b *budget) bytes(from schema.Member, v *schema.View) int64 {
	if from == b.own {
		return 0
	}
	return int64(len(v.Bytes()))
}

// check refuses a contribution that exceeds the budget.
func (b *budget) check(held, bytes int64) *refusal {
	if held+bytes > b.most {
		return schema.Refuse(schema.ReasonOverBudget, "%d bytes: %d of the %d bytes for open rounds are in use; %s",
			bytes, held, b.most, b.advice)
	}
	return nil
}

// progress is the position of a shard in its rounds.
type progress struct {
	clock  round.Clock
	held   *round.Held // by contributor: bytes of its contributions to open rounds
	rounds uint64      // number of closed rounds
	// Newest version whose rounds have all closed here, for reports; in async that of the furthest trainer.
	newest schema.Version
}

// Waiting lists what an open batch waits for.
type Waiting = round.Waiting

// Waiting returns the trainers that the rounds of the oldest incomplete batch wait for.
func (p *progress) Waiting() Waiting { return p.clock.Waiting() }

// Batch returns the newest batch under way; in async that of the furthest trainer.
func (p *progress) Batch() schema.Batch {
	b := schema.Batch(0)
	for _, l := range p.clock.Lines() {
		b = max(b, l.Batch())
	}
	return b
}

// Began reports whether any trainer has begun, here, the batch that is computed on a version, or a later one.
func (p *progress) Began(v schema.Version) bool {
	l := p.clock.Line(0)
	at := schema.Version(l.Batch())
	return at > v || at == v && l.Open() < l.Rounds()
}

// Idle reports whether this shard aggregates nothing.
func (p *progress) Idle() bool { return p.clock.Line(0).Rounds() == 0 }

// Rounds returns the number of closed rounds.
func (p *progress) Rounds() uint64 { return p.rounds }

// Newest returns the version whose rounds have all closed here; in async that of the furthest trainer.
func (p *progress) Newest() schema.Version { return p.newest }

// Done returns the number of batches that all trainers have completed here. If nothing is aggregated here, it is the
// largest possible number.
func (p *progress) Done() schema.Version {
	if p.Idle() {
		return schema.VersionMax
	}
	return p.clock.Line(0).Done()
}

// BeginningProves reports whether a contributor that begins a batch proves that everything it sent for earlier batches
// has arrived, so that it needs no ack.
func (p *progress) BeginningProves(contributor int) bool { return p.clock.Line(contributor).Ahead == 0 }

// Answers returns whose rounds the frames of a contributor belong to: its own or those of all. It is false if results
// do not name rounds by the batches of these frames.
func (p *progress) Answers(contributor int) (whose schema.Member, ok bool) {
	l := p.clock.Line(contributor)
	return l.Whose, !l.Renumbered
}

// StagedBytes returns the bytes of contributions to open rounds.
func (p *progress) StagedBytes() int64 { return p.held.Bytes() }

// HeldBytes returns the part of StagedBytes that came from a contributor.
func (p *progress) HeldBytes(contributor int) int64 { return p.held.Of(contributor) }
