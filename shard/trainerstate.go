package shard

import (
	"context"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// Where trainers own dense parameters, all of them have the same at one version, with what the optimizer keeps, and
// shards have neither. A version that is written down needs them, and so does each trainer after a restart:
//
//   - The ps of a shard asks the trainer of lane 0, one chunk after the other (AskTrainerChunk). Trainers hear from the
//     result of the batch before, or from rows in place of that, that the version is written down (schema.FlagCopy).
//     That trainer then keeps a copy of what it will be asked for.
//   - A trainer of a run that begins with a version asks the shard of each chunk, which has read it, until the second
//     batch is over.
//
// Where trainers add up their parameters among themselves, a chunk is asked for where it would be if shards did. Rows
// of replicated tables are asked for where they would be if they were not replicated, a stretch at a time
// (AskTrainerRows). An asker that gets no answer asks again.

// trainerState is what a shard knows of the state that trainers own.
type trainerState struct {
	place   *schema.Placement // of the chunks and rows that are asked for here
	chunks  []schema.ChunkRef // in their order; empty where there are none
	rows    []TrainerRows     // likewise
	at      schema.Version    // that the job was resumed with, while somebody may ask for it; else 0
	resumed *state.Dense      // its chunks; nil: there are none
	tables  []*state.Array    // its rows, by table; nil of those that are not replicated
	pieces  *Pieces           // of what trainers have
}

// TrainerRows is a partition of a replicated table, and how many rows it has, of which there is one at least.
type TrainerRows struct {
	Table     schema.Table
	Partition schema.Partition
	Rows      int
}

// placeTrainerState finds the chunks that are asked for here: of parameters that all trainers have at one version.
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

// TrainerChunks is how many chunks of trainers are asked for here.
func (s *Shard) TrainerChunks() int { return len(s.trainerState.chunks) }

// AskTrainerChunk asks the trainer of lane 0 for the i-th of these chunks at a version that it has copied. The answer
// has the number of the question, n.
func (s *Shard) AskTrainerChunk(i int, v schema.Version, n schema.Sequence) (Output, error) {
	c := s.trainerState.chunks[i]
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull})
	if err != nil {
		return Output{}, err
	}
	return s.sealAsk(f, schema.Head{Batch: schema.Batch(v), Bucket: c.Bucket, Chunk: c.Chunk, Chunks: c.Chunk + 1,
		Sequence: n}), nil
}

// TrainerPartitions returns the partitions of replicated tables that are asked for here: table by table, ascending.
func (s *Shard) TrainerPartitions() []TrainerRows { return s.trainerState.rows }

// AskTrainerRows asks the trainer of lane 0 for the rows of one of these from a key on, at a version that it has
// copied. The question tells that the rows before have come. One of a key behind the last of the table has no answer:
// it tells that all rows have come that are asked for here.
func (s *Shard) AskTrainerRows(r TrainerRows, from uint64, v schema.Version, n schema.Sequence) (Output, error) {
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
	if err != nil {
		return Output{}, err
	}
	f.SetSection(0, schema.Section{Table: r.Table, Dim: uint32(s.config.Job.Tables[r.Table].Dim), Count: 1})
	f.Keys()[0] = from
	return s.sealAsk(f, schema.Head{Batch: schema.Batch(v), Bucket: schema.Bucket(r.Partition), Sequence: n}), nil
}

// sealAsk returns a question to the trainer of lane 0.
func (s *Shard) sealAsk(f *schema.Frame, h schema.Head) Output {
	const zero = 0
	h.Job, h.Generation, h.Lanes = s.config.RunID, s.since[zero], uint16(s.config.Job.Lanes)
	h.Flags = schema.FlagParameters
	f.SetHead(h)
	return Output{Kind: schema.KindPull, To: s.config.Contributors[zero].Member, Batch: h.Batch, Bucket: h.Bucket,
		Frame: f.Seal(), Built: f}
}

// pullResumed answers a trainer that asks for a chunk of parameters which the run began with.
func (s *Shard) pullResumed(contributor int, h *schema.Head) (*refusal, error) {
	r, v := &s.trainerState, schema.Version(h.Batch)
	if r.resumed == nil || r.at != v {
		return s.gone(v), nil
	}
	i := r.place.IndexOfChunk(h.Bucket, h.Chunk)
	return nil, s.tellResumed(contributor, h, &state.CopyPiece{Tensors: r.resumed.Pieces(i, v)})
}

// gone says that a version is not here any more.
func (s *Shard) gone(v schema.Version) *refusal {
	return schema.Refuse(schema.ReasonStaleBatch,
		"parameters of version %d are not here: want the version that the run began with", v)
}

// tellResumed tells a trainer a piece of what the job was resumed with.
func (s *Shard) tellResumed(contributor int, h *schema.Head, piece *state.CopyPiece) error {
	frames, err := s.trainerState.pieces.Answer(s.resumedHead(contributor, h.Batch, h.Sequence), piece)
	for _, f := range frames {
		s.output(schema.KindState, s.config.Contributors[contributor].Member, h.Batch, h.Bucket, f)
	}
	return err
}

// pullResumedRows answers a trainer that asks for rows of a replicated table which the job was resumed with.
func (s *Shard) pullResumedRows(contributor int, h *schema.Head, v *schema.View) (*refusal, error) {
	r, keys, t := &s.trainerState, v.Keys(), v.Section(0).Table
	if r.at == 0 || r.at != schema.Version(h.Batch) || r.tables[t] == nil {
		return s.gone(schema.Version(h.Batch)), nil
	}
	rows := r.tables[t].Stretch(schema.Partition(h.Bucket), keys[0], r.pieces.ValuesMax())
	return nil, s.tellResumed(contributor, h, &state.CopyPiece{Rows: &rows})
}

// resumedHead is that of an answer to a contributor.
func (s *Shard) resumedHead(contributor int, b schema.Batch, n schema.Sequence) schema.Head {
	return schema.Head{Job: s.config.RunID, Generation: s.since[contributor], Batch: b, Lanes: uint16(s.config.Job.Lanes),
		Sequence: n}
}

// resumable is what parameters of a version are put into: the shard's own, or those that trainers will ask for; nil
// where it has no part in any. tables are those whose rows they will ask for.
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

// resumableTables are the replicated tables, with the partitions that are asked for here.
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

// resumableDense is the chunks.
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

// DropResumed forgets the version that the job was resumed with, where a version that is there is later than the one
// that the batch computed on it makes: then that batch is over everywhere, and nobody begins with it any more.
func (s *Shard) DropResumed(there schema.Version) {
	if at := s.trainerState.at; at > 0 && there > at+1 {
		s.closeResumed()
	}
}

// closeResumed frees what the job was resumed with.
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

// trainersChunks are the chunks that are asked for here, as trainers step them.
func (s *Shard) trainersChunks() (all []state.Chunk) {
	for _, c := range s.trainerState.chunks {
		all = append(all, state.PlacedChunk(s.config.Job, s.trainerState.place, c.Bucket, c.Chunk, true))
	}
	return all
}

// OfTrainers is what trainers have of what is asked for here. All chunks change with every batch, and any row may.
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

// asksToCopy returns the flags of the result that makes a version, or of rows of it, by which trainers hear that it is
// written down.
func (s *Shard) asksToCopy(v schema.Version) (flags uint32) {
	if s.trainerState.place == nil || v == 0 || v != s.copies.At { // trainers have nothing to copy
		return 0
	}
	return schema.FlagCopy
}

// Contributor is a trainer and its lanes: [First, First+Count).
type Contributor = round.Contributor

// Payload is the memory that a frame lies in, and a lease of it.
type Payload = round.Payload

// contributors are the trainers whose frames a shard takes.
type contributors struct {
	all   []Contributor
	since []schema.Generation // of each: of the frames that are taken of it
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

// Contributor is the index of a trainer; -1 of who is none.
func (c *contributors) Contributor(m schema.Member) int {
	for i := range c.all {
		if c.all[i].Member == m {
			return i
		}
	}
	return -1
}

// Since is the generation in which a contributor's place was taken.
func (c *contributors) Since(contributor int) schema.Generation { return c.since[contributor] }

// CheckMember checks that a frame is of this run of the job, and from the process that has its sender's slot now. The
// contributor is -1 if the sender is none.
func (c *contributors) CheckMember(contributor int, v *schema.View) error {
	if contributor < 0 {
		return v.CheckJob(c.runID, v.Head().Generation)
	}
	return v.CheckJob(c.runID, c.since[contributor])
}

// admit checks what every frame must have right before any field of it is used: job, generation, a sender who is a
// trainer of the job, and all that the job says of frames of its kind (schema.Placement.CheckFrame). What is left to
// the kinds is the batch, the sender's lanes and the values.
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
	advice string        // for a trainer who exceeds that
	own    schema.Member // whose contributions lie in memory of its own
}

// bytes is what a contribution takes of the budget.
func (b *budget) bytes(from schema.Member, v *schema.View) int64 {
	if from == b.own {
		return 0
	}
	return int64(len(v.Bytes()))
}

// check refuses what the budget has no room for.
func (b *budget) check(held, bytes int64) *refusal {
	if held+bytes > b.most {
		return schema.Refuse(schema.ReasonOverBudget, "%d bytes: %d of the %d bytes for open rounds are in use; %s",
			bytes, held, b.most, b.advice)
	}
	return nil
}

// progress is how far the rounds of a shard are.
type progress struct {
	clock  round.Clock
	held   *round.Held // by contributor: bytes of its contributions to open rounds
	rounds uint64      // that have closed
	// for reports: batches whose rounds are all closed here; in async those of the trainer who is furthest
	newest schema.Version
}

// Waiting is what an open batch lacks.
type Waiting = round.Waiting

// Waiting says whom the rounds of the oldest batch that waits for anybody wait for.
func (p *progress) Waiting() Waiting { return p.clock.Waiting() }

// Batch is the newest batch under way; in async that of the trainer who is furthest.
func (p *progress) Batch() schema.Batch {
	b := schema.Batch(0)
	for _, l := range p.clock.Lines() {
		b = max(b, l.Batch())
	}
	return b
}

// Began reports whether the batch that is computed on a version, or a later one, has begun here, of all trainers.
func (p *progress) Began(v schema.Version) bool {
	l := p.clock.Line(0)
	at := schema.Version(l.Batch())
	return at > v || at == v && l.Open() < l.Rounds()
}

// Idle reports whether nothing is added up here.
func (p *progress) Idle() bool { return p.clock.Line(0).Rounds() == 0 }

// Rounds counts those that have closed.
func (p *progress) Rounds() uint64 { return p.rounds }

// Newest is the version whose rounds are all closed here; in async that of the trainer who is furthest.
func (p *progress) Newest() schema.Version { return p.newest }

// Done is how many batches are complete here, of all trainers; where nothing is added up here, all that there may be.
func (p *progress) Done() schema.Version {
	if p.Idle() {
		return schema.VersionMax
	}
	return p.clock.Line(0).Done()
}

// BeginningProves reports whether a contributor, by beginning a batch, says that all which it sent of those before
// has come, so that it needs no ack.
func (p *progress) BeginningProves(contributor int) bool { return p.clock.Line(contributor).Ahead == 0 }

// Answers says whose rounds the frames of a contributor belong to: its own or those of all. It is false where
// results do not name rounds by the batches of these frames.
func (p *progress) Answers(contributor int) (whose schema.Member, ok bool) {
	l := p.clock.Line(contributor)
	return l.Whose, !l.Renumbered
}

// StagedBytes is the memory held by contributions to open rounds.
func (p *progress) StagedBytes() int64 { return p.held.Bytes() }

// HeldBytes is the part of StagedBytes that came from a contributor.
func (p *progress) HeldBytes(contributor int) int64 { return p.held.Of(contributor) }
