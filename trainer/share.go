package trainer

import (
	"context"
	"fmt"
	"sync"

	"gradbus/fabric"
	"gradbus/internal/planted"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/state"
	"gradbus/trainer/internal/exchange"
)

// If trainers own dense parameters and their optimizer (apply "mean"), the trainer of lane 0 sends each version to be
// stored to the shards. After a restart all trainers receive it from there: see shard/trainerstate.go.

// share is the copy of a version that the trainer of lane 0 sends: dense parameters and replicated tables, with the
// optimizers' state.
type share struct {
	*connection
	exchange *exchanging
	results  *results
	flat     *flatSpace
	params   *parameters
	replicas *replicas
	pieces   *shard.Pieces

	mu      sync.Mutex     // guards the fields below; acquired before locks of tables
	version schema.Version // version copied last; 0: none
	chunks  [][]state.Tensor
	rows    map[schema.Table]*sharedRows
}

// copyAt copies version v, which has just become complete, if results have marked it to be stored and this trainer has
// lane 0. Nothing changes the version during the copy: the next batch has no results before this trainer has sent its
// part.
func (s *share) copyAt(v schema.Version) {
	if s.joined.FirstLane != 0 || s.results.copied.Load() != uint64(v) {
		return
	}
	chunks := make([][]state.Tensor, len(s.flat.rounds))
	for i := range chunks {
		chunks[i] = state.Cloned(s.params.state.Pieces(i, v))
	}
	rows := s.copyRows()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.chunks, s.rows = v, chunks, rows
}

// chunkAt returns a chunk at a requested version. known is false before the version is complete here. tensors is nil if
// the version is over and was not copied.
func (s *share) chunkAt(v schema.Version, chunk int) (tensors []state.Tensor, known bool) {
	known = s.newest() >= v // before the lookup
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version == v {
		return s.chunks[chunk], true
	}
	return nil, known
}

// answerShard answers a shard's request for a part of a version. A request that comes too early gets no answer; the
// shard repeats it.
func (s *share) answerShard(owner int, v *schema.View) error {
	h, link := v.Head(), s.links[owner]
	if s.place.Plan.Owner != schema.ByTrainers || h.Flags&schema.FlagParameters == 0 ||
		h.Generation != s.joined.Generation || link.outbox == nil {
		return nil
	}
	piece, known := state.CopyPiece{}, false
	if sections := v.Sections(); len(sections) == 1 {
		piece.Rows, known = s.sharedAt(owner, &h, sections[0].Table, v.Keys())
	} else if chunk, ok := s.flat.find(h.Bucket, h.Chunk); ok {
		piece.Tensors, known = s.chunkAt(schema.Version(h.Batch), chunk)
	}
	if !known {
		return nil
	}
	head := s.head(h.Batch)
	head.Sequence = h.Sequence
	frames, err := s.pieces.Answer(head, &piece)
	if err != nil {
		return fmt.Errorf("tell %s of version %d: %w", link.member, h.Batch, err)
	}
	at := s.subject(fabric.KindReplica, link.member).WithBucket(uint64(h.Batch), uint32(h.Bucket))
	for _, f := range frames {
		if err := notLost(link.server.conn.SendInPlace(at, fabric.NewPayload(f.Room()))); err != nil {
			return err
		}
	}
	return nil
}

// takeResumed passes on an answer to the request for the parameters with which this trainer begins. It ignores frames
// without values.
func (s *share) takeResumed(owner int, v *schema.View) error {
	h := v.Head()
	other := h.Generation != s.joined.Generation || schema.Version(h.Batch) != s.joined.Version
	if other || len(v.Values()) == 0 || h.Chunks == 0 {
		return nil
	}
	_, err := s.exchange.take(resumeAsked, owner, v, int(h.Chunk), int(h.Chunks))
	return err
}

// chunksAskedBytes bounds the values requested at once.
const chunksAskedBytes = 4 << 20

// chunksAsk requests chunks at a version, and stores the answers.
type chunksAsk struct {
	version schema.Version
	first   schema.Sequence // number of the request for chunks[0]; the others follow
	chunks  []int
	owners  []int // shard of each request
	flat    *flatSpace
	pieces  *shard.Pieces

	mu      sync.Mutex // a leaf
	restore *state.DenseRestore
}

// take implements asker.
func (a *chunksAsk) take(_ int, v *schema.View) (retained bool, err error) {
	piece, err := a.pieces.Read(v)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range piece.Tensors {
		if err := a.restore.Tensor(t); err != nil {
			return false, err
		}
	}
	return false, nil
}

// send implements asker.
func (a *chunksAsk) send(to *connection, i int) error {
	c := &a.flat.rounds[a.chunks[i]]
	h := to.head(schema.Batch(a.version))
	h.Bucket, h.Chunk, h.Chunks, h.Flags = c.bucket, c.chunk, c.chunk+1, schema.FlagParameters
	h.Sequence = a.first + schema.Sequence(i)
	return to.pull(a.owners[i], h)
}

// receiveVersion receives all parameters and rows of trainers at a version, with the optimizer's state, each from the
// shard that stores that part of the version.
func (s *share) receiveVersion(ctx context.Context, v schema.Version) error {
	place := s.place.OnShards()
	if err := s.copyDense(ctx, v, place); err != nil {
		return err
	}
	if err := s.copyTables(ctx, v, place); err != nil {
		return err
	}
	return s.results.resumed(schema.Batch(v) - 1)
}

// copyDense requests all parameters at a version, each chunk from its shard.
func (s *share) copyDense(ctx context.Context, v schema.Version, place *schema.Placement) error {
	params := s.params.state
	ask := &chunksAsk{version: v, flat: s.flat, pieces: s.pieces, restore: params.Restore()}
	for at := 0; at < len(s.flat.rounds); at += len(ask.chunks) {
		ask.chunks = ask.chunks[:0]
		var owners []int
		for bytes := 0; at+len(owners) < len(s.flat.rounds) && (bytes < chunksAskedBytes); {
			i := at + len(owners)
			c := &s.flat.rounds[i]
			ask.chunks, owners = append(ask.chunks, i), append(owners, place.OwnerOfChunk(c.bucket, c.chunk))
			bytes += 4 * (s.flat.chunks[i].hi - s.flat.chunks[i].lo)
		}
		ask.first, ask.owners = s.exchange.number(len(owners)), owners
		if err := s.askShards(ctx, ask, ask.first, owners); err != nil {
			return err
		}
	}
	return ask.restore.Done()
}

// copyTables requests the rows of all replicated tables at a version, each partition from its shard.
func (s *share) copyTables(ctx context.Context, v schema.Version, place *schema.Placement) error {
	for t, table := range s.replicas.tables {
		if table == nil {
			continue
		}
		ask := &rowsAsk{version: v, table: schema.Table(t), spec: &s.job.Tables[t], from: table, restore: table.Restore(),
			pieces: s.pieces, place: place}
		if err := ask.all(ctx, s); err != nil {
			return fmt.Errorf("table %q: %w", ask.spec.Name, err)
		}
	}
	return nil
}

// rowsAsk requests the rows of a table, ranges of several partitions at a time, and stores the answers.
type rowsAsk struct {
	version schema.Version
	table   schema.Table
	spec    *schema.TableSpec
	from    state.Table // has the keys of each partition
	pieces  *shard.Pieces
	place   *schema.Placement

	first schema.Sequence // number of the request for parts[0]; the others follow
	parts []rowsPart      // ranges requested now

	mu      sync.Mutex // a leaf
	restore state.RowsRestore
}

// rowsPart is a requested range of a partition.
type rowsPart struct {
	owner     int // shard that is asked
	partition schema.Partition
	cursor    uint64 // first key of the range, after the last key received
}

// rowsAskedMax bounds the ranges requested at once, each in one frame.
const rowsAskedMax = 16

// all receives all rows.
func (a *rowsAsk) all(ctx context.Context, s *share) error {
	next := schema.Partition(0)
	for {
		a.parts = a.open()
		for ; len(a.parts) < rowsAskedMax && int(next) < a.spec.Partitions; next++ {
			if a.from.Left(next, 0) > 0 {
				a.parts = append(a.parts, rowsPart{owner: a.place.OwnerOfPartition(a.table, next), partition: next})
			}
		}
		if len(a.parts) == 0 {
			return a.restore.Done()
		}
		owners := make([]int, len(a.parts))
		for i := range a.parts {
			owners[i] = a.parts[i].owner
		}
		a.first = s.exchange.number(len(owners))
		if err := s.askShards(ctx, a, a.first, owners); err != nil {
			return err
		}
	}
}

// open returns the parts that are not complete.
func (a *rowsAsk) open() (all []rowsPart) {
	for _, p := range a.parts {
		if a.from.Left(p.partition, p.cursor) > 0 {
			all = append(all, p)
		}
	}
	return all
}

// take implements asker.
func (a *rowsAsk) take(i int, v *schema.View) (retained bool, err error) {
	piece, err := a.pieces.Read(v)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &a.parts[i]
	if piece.Rows == nil || piece.Rows.Table != a.spec.Name || len(piece.Rows.Keys) == 0 ||
		piece.Rows.Keys[0] < p.cursor {
		return false, fmt.Errorf("an answer without rows of partition %d of table %q from key %d on", p.partition,
			a.spec.Name, p.cursor)
	}
	p.cursor = piece.Rows.Keys[len(piece.Rows.Keys)-1] + 1
	return false, a.restore.Rows(*piece.Rows)
}

// send implements asker.
func (a *rowsAsk) send(to *connection, i int) error {
	p := &a.parts[i]
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
	if err != nil {
		return err
	}
	a.mu.Lock()
	cursor := p.cursor // an answer may be stored at this time
	a.mu.Unlock()
	h := to.head(schema.Batch(a.version))
	h.Bucket, h.Flags, h.Sequence = schema.Bucket(p.partition), schema.FlagParameters, a.first+schema.Sequence(i)
	f.SetHead(h)
	f.SetSection(0, schema.Section{Table: a.table, Dim: uint32(a.spec.Dim), Count: 1})
	f.Keys()[0] = cursor
	link := to.links[p.owner]
	return link.publish(to.subject(fabric.KindPull, link.member), f.Seal())
}

// askShards sends requests to owners, and waits for their answers, at most for the job's deadline.
func (s *share) askShards(ctx context.Context, a asker, first schema.Sequence, owners []int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.deadline(), errNoParameters)
	defer cancel()
	s.exchange.ask(resumeAsked, a, first, owners, s.since(), false)
	for i := range owners {
		if err := a.send(s.connection, i); err != nil {
			return err
		}
	}
	return s.exchange.awaitAnswers(ctx, resumeAsked)
}

// resumed records that all results of a batch are in place, which earlier trainers had.
func (r *results) resumed(last schema.Batch) error {
	r.begin(last)
	for owner, rounds := range r.rounds {
		for i := range rounds {
			c := exchange.Result{Owner: owner, Round: i, Batch: last, Version: schema.Version(last) + 1,
				Weight: round.ResumedWeight, Parts: 1, ByRows: true}
			if _, err := r.put(&c, rounds[i].Bucket, func() error { return nil }); err != nil {
				return err
			}
		}
	}
	return nil
}

// sharedRows is a replicated table at a version to be stored. Each shard requests the rows in its part. Rows that later
// batches change are copied first.
type sharedRows struct {
	lock  *sync.Mutex // lock of the table, which guards the fields below
	rows  state.RowsCopy
	left  map[int]bool // shards that have not received all of their rows
	ended bool         // the copy is no longer needed, or too large
}

// copyRows begins to copy the replicated tables at the current version. It ends earlier copies.
func (s *share) copyRows() map[schema.Table]*sharedRows {
	s.mu.Lock()
	for _, t := range s.rows {
		t.endIf(func() bool { return true })
	}
	s.mu.Unlock()
	if len(s.replicas.stored()) == 0 {
		return nil
	}
	all, place := map[schema.Table]*sharedRows{}, s.place.OnShards()
	for i, t := range s.replicas.tables {
		id := schema.Table(i)
		if t == nil {
			continue
		}
		shared := &sharedRows{lock: &s.replicas.locks[i], left: map[int]bool{}}
		for p := range schema.Partition(s.replicas.specs[i].Partitions) {
			if t.Left(p, 0) > 0 {
				shared.left[place.OwnerOfPartition(id, p)] = true
			}
		}
		shared.lock.Lock()
		shared.rows = t.Copy(0, true)
		if planted.Is(planted.CloseSharedRows) {
			shared.rows.Close()
		}
		shared.lock.Unlock()
		if !planted.Is(planted.SkipSharedRows) {
			all[id] = shared
		}
	}
	return all
}

// endIf ends the copy if holds returns true.
func (t *sharedRows) endIf(holds func() bool) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if !t.ended && holds() {
		t.ended = true
		t.rows.Close()
	}
}

// limit ends copies that take more than state.CopyBytesMax. It is called after each step.
func (s *share) limit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.rows {
		t.endIf(func() bool { return t.rows.Bytes() > state.CopyBytesMax })
	}
}

// sharedAt returns a range of the rows of a partition from a key on, at the version that a shard requests. known is
// false before the version is complete here; rows is nil if the version is over and was not copied. A key after the
// last of the table confirms that the shard has received all of its rows, and is not answered.
func (s *share) sharedAt(owner int, h *schema.Head, table schema.Table, from []uint64) (rows *state.Rows,
	known bool) {
	if int(table) >= len(s.replicas.tables) || s.replicas.tables[table] == nil || len(from) != 1 ||
		int(h.Bucket) >= s.replicas.specs[table].Partitions {
		return nil, false
	}
	v := schema.Version(h.Batch)
	known = s.newest() >= v // before the lookup
	s.mu.Lock()
	var shared *sharedRows
	if s.version == v {
		shared = s.rows[table]
	}
	s.mu.Unlock()
	if shared == nil {
		return nil, known
	}
	return shared.stretch(owner, schema.Partition(h.Bucket), from[0], s.pieces.ValuesMax(),
		s.replicas.specs[table].Rows)
}

// stretch returns a range of rows for a shard.
func (t *sharedRows) stretch(owner int, p schema.Partition, from uint64, valuesMax int, end uint64) (rows *state.Rows,
	known bool) {
	if from >= end {
		t.endIf(func() bool {
			delete(t.left, owner)
			return len(t.left) == 0
		})
		return nil, false
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.ended {
		return nil, true
	}
	r := t.rows.Stretch(p, from, valuesMax)
	return &r, true
}
