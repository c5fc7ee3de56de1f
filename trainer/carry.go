package trainer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/internal/planted"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/state"
)

// Where every trainer has all of the job (schema.Job.Carried), nobody else has anything of it. When one is lost, or
// another comes, the run ends, and the others come together in another one: with what they have, which a session takes
// along from the one before. The new run begins with the newest version that anybody has. Who has none, or the one
// before, asks those who have it, by their data servers, piece by piece. Nobody there is a batch further meanwhile:
// that would need this trainer's lanes.

// carried is what a trainer takes along from a session that has ended: the newest version that was whole there, and
// maybe the one before it.
type carried struct {
	version, least schema.Version // 0: nothing
	lr             []schema.LRChange
	held           *held           // nil where there is nothing
	lost           runtime.Cleanup // of a program that does not come back
}

// held is the memory that versions lie in: that of the session.
type held struct {
	dense  *state.Dense
	chunks int
	tables []*state.Array
}

// mayComeBack reports whether the session has ended by what others may go on from.
func (s *membership) mayComeBack(err error) bool {
	return s.taken != nil && (errors.Is(err, ErrServerLost) || errors.Is(err, ErrPeerLost) || errors.Is(err, errReplaced))
}

// takeAlong takes along what there is of the newest version that is whole here, and reports whether that is the
// session's memory. Nobody receives any more.
func (s *membership) takeAlong() bool {
	v, to := s.newest(), s.taken
	if planted.Is(planted.CarryPartialVersion) {
		v++
	}
	if v == 0 || v < s.joined.Version { // a session that has not begun, whose Config has what it was to begin with
		return false
	}
	to.held = &held{dense: s.compute.params.state, chunks: len(s.flat.rounds)}
	back := to.held.dense.Keeps(v - 1)
	to.held.tables = s.replicas.kept()
	for _, t := range to.held.tables {
		back = back && t.GoesBack()
	}
	s.lr.mu.Lock()
	to.version, to.least, to.lr = v, v, s.lr.decided
	s.lr.mu.Unlock()
	if back {
		to.least--
	}
	to.lost = runtime.AddCleanup(to, (*held).close, to.held)
	return true
}

// has reports whether a version is there.
func (c *carried) has(v schema.Version) bool {
	return c != nil && c.held != nil && c.least <= v && v <= c.version
}

// release frees the memory. There is nothing then.
func (c *carried) release() {
	if c != nil && c.held != nil {
		c.lost.Stop()
		c.held.close()
		c.version, c.least, c.held = 0, 0, nil
	}
}

// close frees the memory. A second call does nothing.
func (h *held) close() {
	if h.dense == nil {
		return
	}
	h.dense.Close()
	for _, t := range h.tables {
		t.Close()
	}
	h.dense, h.tables = nil, nil
}

// carriedValues is about how many values are copied at once.
const carriedValues = 1 << 17

// resumeCarried begins with a version that this trainer has taken along, or that others have.
func (s *membership) resumeCarried(ctx context.Context, v schema.Version) (err error) {
	from, has := s.config.carried, slices.Contains(s.joined.From, s.joined.Member)
	adopts := false
	switch {
	case has && from.has(v):
		adopts, err = s.putCarried(from, v)
	case has && s.config.saved.has(v):
		err = s.putSaved(s.config.saved)
	default:
		err = s.copyFrom(ctx, v)
	}
	if err == nil {
		err = s.results.resumed(schema.Batch(v) - 1)
	}
	if err != nil {
		return err // and what there is stays: others may be gone
	}
	for i, t := range s.replicas.kept() {
		if adopts {
			t.Adopt(from.held.tables[i])
		}
	}
	from.release()
	s.config.carried = nil
	return nil
}

// putCarried puts a version that was taken along in the place of what was drawn. adopts says that its tables are to be
// adopted when nothing can fail any more; else they were copied.
func (s *membership) putCarried(from *carried, v schema.Version) (adopts bool, err error) {
	if v < from.version {
		for _, t := range from.held.tables {
			t.Back()
		}
		from.version = v
	}
	adopts = true
	for i, t := range s.replicas.kept() {
		adopts = adopts && t.Adopts(from.held.tables[i])
	}
	tables := from.held.tables
	if adopts {
		tables = nil
	}
	err = s.restore(!adopts, func(tensor func(state.Tensor) error, rows func(state.Rows) error) error {
		for i := range from.held.chunks {
			for _, t := range from.held.dense.Pieces(i, v) {
				if err := tensor(t); err != nil {
					return err
				}
			}
		}
		for _, t := range tables {
			if err := t.Snapshot(carriedValues, rows); err != nil {
				return err
			}
		}
		return nil
	})
	return adopts, err
}

// copyFrom gets a version from those who have it.
func (s *membership) copyFrom(ctx context.Context, v schema.Version) error {
	var holders []int
	for _, m := range s.joined.From {
		if owner, ok := s.owners[string(m)]; ok && s.links[owner].outbox != nil {
			holders = append(holders, owner)
		}
	}
	if len(holders) == 0 {
		return fmt.Errorf("%w: the coordinator names nobody who has version %d", ErrNoParameters, v)
	}
	began := time.Now()
	if err := s.copyDense(ctx, v, func(i int) int { return holders[i%len(holders)] }); err != nil {
		return err
	}
	if err := s.copyTables(ctx, v, func(_ schema.Table, p schema.Partition) int {
		return holders[int(p)%len(holders)]
	}); err != nil {
		return err
	}
	s.config.Log.Info("got all of the job from other trainers", "job", s.job.Name, "member", s.joined.Member, "version",
		uint64(v), "after", time.Since(began).Round(time.Millisecond))
	return nil
}

// copyTables asks for the rows of all replicated tables at a version: of each partition one owner, who has it.
func (s *membership) copyTables(ctx context.Context, v schema.Version,
	ownerOf func(schema.Table, schema.Partition) int) error {
	for t, table := range s.replicas.tables {
		if table == nil {
			continue
		}
		ask := &rowsAsk{version: v, table: schema.Table(t), spec: &s.job.Tables[t], from: table, restore: table.Restore(),
			pieces: s.share.pieces, ownerOf: ownerOf}
		if err := ask.all(ctx, s); err != nil {
			return fmt.Errorf("table %q: %w", ask.spec.Name, err)
		}
	}
	return nil
}

// rowsAsk asks for the rows of a table, a stretch of some partitions at a time, and puts the answers in place.
type rowsAsk struct {
	version schema.Version
	table   schema.Table
	spec    *schema.TableSpec
	from    state.Table // says which rows there are
	pieces  *shard.Pieces
	ownerOf func(schema.Table, schema.Partition) int

	first schema.Sequence // number of the question about parts[0]; the others' follow
	parts []rowsPart      // that are asked for

	mu      sync.Mutex // a leaf
	restore state.RowsRestore
}

// rowsPart is a stretch of a partition that is asked for.
type rowsPart struct {
	owner     int // who is asked
	partition schema.Partition
	cursor    uint64 // first key; behind the last that has come
}

// rowsAskedMax is how many stretches are asked for at once, each of one frame.
const rowsAskedMax = 16

// all gets all rows.
func (a *rowsAsk) all(ctx context.Context, s *membership) error {
	next := schema.Partition(0)
	for {
		a.parts = a.open()
		for ; len(a.parts) < rowsAskedMax && int(next) < a.spec.Partitions; next++ {
			if a.from.Left(next, 0) > 0 {
				a.parts = append(a.parts, rowsPart{owner: a.ownerOf(a.table, next), partition: next})
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
		if err := s.askReplica(ctx, a, a.first, owners); err != nil {
			return err
		}
	}
}

// open are the parts that are not whole.
func (a *rowsAsk) open() (all []rowsPart) {
	for _, p := range a.parts {
		if a.from.Left(p.partition, p.cursor) > 0 {
			all = append(all, p)
		}
	}
	return all
}

// take implements asker.
func (a *rowsAsk) take(i int, v *schema.View) (kept bool, err error) {
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
func (a *rowsAsk) send(s *membership, i int) error {
	p := &a.parts[i]
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
	if err != nil {
		return err
	}
	a.mu.Lock()
	cursor := p.cursor // an answer may just be put in place
	a.mu.Unlock()
	h := s.head(schema.Batch(a.version))
	h.Bucket, h.Flags, h.Sequence = schema.Bucket(p.partition), schema.FlagParameters, a.first+schema.Sequence(i)
	f.SetHead(h)
	f.SetSection(0, schema.Section{Table: a.table, Dim: uint32(a.spec.Dim), Count: 1})
	f.Keys()[0] = cursor
	link := s.links[p.owner]
	return link.publish(s.subject(fabric.KindPull, link.member), f.Seal())
}

// giver answers those who ask this trainer for what it has.
type giver struct {
	session *membership
	pieces  *shard.Pieces // of the goroutine that receives at this trainer's data server

	mu    sync.Mutex // guards early; not held while anything is answered
	early []question // that came before this trainer had begun; at most earlyMax
}

// question is a frame that asks, and who asks.
type question struct {
	from  schema.Member
	frame []byte
}

// earlyMax is as many questions as one trainer asks at once, of each of some trainers.
const earlyMax = 16 * rowsAskedMax

// ask takes a question. One about the version that this trainer is about to begin with is answered when it has begun.
func (g *giver) ask(from schema.Member, v *schema.View) error {
	g.mu.Lock()
	begins := g.session.joined.Version
	if g.session.newest() < begins && schema.Version(v.Head().Batch) == begins && len(g.early) < earlyMax {
		g.early = append(g.early, question{from, slices.Clone(v.Bytes())})
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	return g.give(g.pieces, from, v)
}

// begun answers what was asked too early. It is called when this trainer has the version that it begins with.
func (g *giver) begun() error {
	g.mu.Lock()
	all := g.early
	g.early = nil
	g.mu.Unlock()
	pieces := shard.NewPieces(g.session.job)
	for _, q := range all {
		v, err := schema.Verify(q.frame, schema.Limits{})
		if err == nil {
			err = g.give(pieces, q.from, &v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// give answers one question, unless this trainer has not the version yet, or has had it: who asks asks again.
func (g *giver) give(pieces *shard.Pieces, to schema.Member, v *schema.View) error {
	s, h := g.session, v.Head()
	version := schema.Version(h.Batch)
	if s.newest() != version {
		return nil
	}
	head := s.head(h.Batch)
	head.Sequence = h.Sequence
	var frames []*schema.Frame
	var err error
	if sections := v.Sections(); len(sections) == 1 {
		frames, err = g.rows(pieces, head, schema.Partition(h.Bucket), sections[0].Table, v.Keys())
	} else if chunk, ok := s.flat.find(h.Bucket, h.Chunk); ok {
		if tensors, known := s.replicaAt(version, chunk); known {
			frames, err = pieces.Answer(head, &state.CopyPiece{Tensors: tensors})
		}
	}
	if err != nil {
		return fmt.Errorf("tell %s of version %d: %w", to, version, err)
	}
	at := s.subject(fabric.KindReplica, to).WithBucket(uint64(h.Batch), uint32(h.Bucket))
	for _, f := range frames {
		s.own.publish(at, fabric.NewPayload(f.Room()))
	}
	return nil
}

// rows is the frame with as many rows of a partition from a key on as it may have.
func (g *giver) rows(pieces *shard.Pieces, head schema.Head, p schema.Partition, t schema.Table,
	from []uint64) ([]*schema.Frame, error) {
	r := g.session.replicas
	if int(t) >= len(r.tables) || r.tables[t] == nil || len(from) != 1 || int(p) >= r.specs[t].Partitions {
		return nil, nil
	}
	r.locks[t].Lock()
	defer r.locks[t].Unlock()
	if r.tables[t].Version() != schema.Version(head.Batch) {
		return nil, nil
	}
	rows := r.tables[t].Stretch(p, from[0], pieces.ValuesMax())
	return pieces.Answer(head, &state.CopyPiece{Rows: &rows})
}
