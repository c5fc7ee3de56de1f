package ps

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gradbus/checkpoint"
	"gradbus/ps/coordinator"
	"gradbus/ps/module"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// errNoFolder says that versions of jobs are not written down here.
var errNoFolder = errors.New("this ps keeps no checkpoints: start it with --checkpoint-dir")

// policy returns how often the versions of a job are written; nil: never.
func (f *located) policy(c *Config) *coordinator.CheckpointPolicy {
	if f.epoch == 0 {
		return nil
	}
	if c.Checkpoints.Dir == "" { // see SetFolder
		return &coordinator.CheckpointPolicy{Epoch: f.epoch}
	}
	return &coordinator.CheckpointPolicy{Epoch: f.epoch, Every: c.Checkpoints.Every,
		Batches: schema.Version(c.Checkpoints.Batches)}
}

// resumeFrom returns the version that the job begins with; nil: version 0.
func (f *located) resumeFrom() *coordinator.ResumeFrom {
	c := f.from
	if c == nil {
		return nil
	}
	from := &coordinator.ResumeFrom{ID: c.resumeID(), Version: c.version, LR: c.lr}
	if c.saved != nil {
		from.Bytes, from.Durable = bytesOf(c.saved), c.saved.Created
	}
	return from
}

// completedJob is a version of a job that is durable, or is not.
type completedJob struct {
	job     *job
	written *coordinator.Written
	err     error // nil: it is durable
}

func bytesOf(m *checkpoint.Manifest) (n int64) {
	for _, p := range m.Parts {
		n += p.Bytes
	}
	return n
}

// saver writes the part of its shard of every version that is copied.
type saver struct {
	worker  *worker
	shards  int
	parts   []checkpoint.ID   // that were written last
	written state.CopyRequest // of the last part
	wake    chan struct{}     // has room for one: a version is being copied, or there is nothing to copy

	failed atomic.Pointer[schema.CheckpointPart] // what could not be written, where nothing has been since
}

func newSaver(w *worker, shards int) *saver {
	return &saver{worker: w, shards: shards, wake: make(chan struct{}, 1)}
}

// run writes until ctx ends.
func (v *saver) run(ctx context.Context) {
	for {
		select {
		case <-v.wake:
			version, err := v.save(ctx)
			if err != nil && ctx.Err() == nil {
				v.worker.log.Error("version is not written", "version", uint64(version), "err", err)
				v.failed.Store(&schema.CheckpointPart{Version: version, Shard: v.worker.config.Index,
					Failure: schema.ClipFailure(err.Error())})
			}
			if v.worker.checkpoints.Load().Complete { // a trainer waits
				v.worker.result(nil)
			}
		case <-ctx.Done():
			return
		}
	}
}

// save writes the part of the version that is copied. A shard that has nothing writes an empty part of the version
// that is asked for.
func (v *saver) save(ctx context.Context) (version schema.Version, err error) {
	defer v.worker.recovered(&err)
	w, began := v.worker, time.Now()
	wish, touched := w.checkpoints.Load(), state.Extent{}
	of := copyRequest(wish)
	w.stepLock.Lock()
	if wish.Complete && of.At > 0 && of != v.written {
		w.end.CopyComplete(of)
	}
	at, copying := w.end.Copying()
	if copying {
		of, touched = w.end.Touched() // there may be a newer wish
	}
	idle := w.end.Idle()
	w.stepLock.Unlock()
	if version = at; !copying {
		if last := w.part.Load(); !idle || wish.At == 0 || last != nil && last.Version >= wish.At {
			return 0, nil
		}
		version = wish.At
		w.shard(func(e *shard.Shard) { touched = e.OfTrainers() })
	}
	defer v.end()
	w.saving.Store(true)
	defer w.saving.Store(false)
	modules, err := v.capture(ctx, version, copying)
	if err != nil {
		return version, err
	}
	defer modules.Release()
	modules.Extent(&touched)
	id := checkpoint.ID{Epoch: wish.Epoch, Run: w.config.RunID, Version: version}
	part, err := v.begin(id, &of, &touched)
	if err != nil {
		return version, err
	}
	defer part.Discard()
	for more := copying; more; {
		if ctx.Err() != nil {
			return version, ctx.Err()
		}
		if more, err = v.piece(part); err != nil {
			return version, err
		}
	}
	within := gatherWithin
	if !copying { // trainers will have the version
		within = moduleWithin
	}
	if err := w.gather(ctx, version, within, part); err != nil {
		return version, err
	}
	if err := modules.Tensors(part.Tensor); err != nil {
		return version, err
	}
	info, err := part.Commit()
	if err != nil {
		return version, err
	}
	v.wrote(id)
	v.written = of
	v.failed.Store(nil)
	w.part.Store(&schema.CheckpointPart{Version: version, Shard: info.Shard, Bytes: info.Bytes, Checksum: info.Checksum,
		Touched: touched.Bytes})
	w.log.Debug("part written", "version", uint64(version), "bytes", info.Bytes, "seconds", time.Since(began).Seconds())
	return version, nil
}

// moduleWithin bounds the time for which a shard that aggregates nothing waits for a version of trainers: for the first
// answer, or for a pass of the batch that is computed on it.
const moduleWithin = 10 * gatherWithin

// capture takes what modules here are, now that a version is there: it is where the shard has begun to copy it. One
// that adds up nothing waits for a pass of the batch that is computed on it, as does any where trainers run ahead.
func (v *saver) capture(ctx context.Context, at schema.Version, there bool) (*module.Captured, error) {
	w := v.worker
	if w.modules == nil {
		return &module.Captured{}, nil
	}
	within, plan := moduleWithin, w.config.Placement.Plan
	if there && plan.Ahead == 0 || plan.Moments() {
		within = 0
	}
	return w.modules.Capture(ctx, at, within)
}

// begin begins the part of a version.
func (v *saver) begin(id checkpoint.ID, of *state.CopyRequest, touched *state.Extent) (*checkpoint.Part, error) {
	job, index := v.worker.config.Job, v.worker.config.Index
	if of.All {
		return checkpoint.NewPart(v.worker.server.folder.path(), job, id, v.shards, index)
	}
	base := id
	base.Version = of.Since
	return checkpoint.NewIncrement(v.worker.server.folder.path(), job, id, base, v.shards, index, touched)
}

// wrote records a part that is on the disk, and removes the one before it unless its version has become durable.
func (v *saver) wrote(id checkpoint.ID) {
	if v.parts = append(v.parts, id); len(v.parts) <= coordinator.AskedMax {
		return
	}
	old, w := v.parts[0], v.worker
	v.parts = v.parts[1:]
	if err := checkpoint.DropPart(v.worker.server.folder.path(), w.config.Job.Name, old, w.config.Index); err != nil {
		w.log.Warn("part of a version that is not durable not removed", "version", uint64(old.Version), "err", err)
	}
}

// next takes the next piece of the copy.
func (v *saver) next() (state.CopyPiece, bool, error) {
	v.worker.stepLock.Lock()
	defer v.worker.stepLock.Unlock()
	return v.worker.end.NextPiece(state.CopyValues)
}

// piece writes the next piece. It reports whether there was one.
func (v *saver) piece(part *checkpoint.Part) (more bool, err error) {
	p, more, err := v.next()
	for i := range p.Tensors {
		if err == nil {
			err = part.Tensor(p.Tensors[i])
		}
	}
	if err == nil && p.Rows != nil {
		err = part.Rows(*p.Rows)
	}
	return more, err
}

// end ends the copy, so that another may begin.
func (v *saver) end() {
	w := v.worker
	w.stepLock.Lock()
	defer w.stepLock.Unlock()
	w.end.EndCopy()
	w.copying = false
}

// tell wakes the saver up.
func (v *saver) tell() {
	nudge(v.wake)
}

// copyRequest returns the request to a shard for the version of a wish.
func copyRequest(c *schema.Checkpoints) state.CopyRequest {
	return state.CopyRequest{At: c.At, Since: c.Since, All: !c.Increment, BytesMax: state.CopyBytesMax}
}

// wish tells the shard which version to copy, at its next step. One that nothing comes to has nothing to copy.
func (w *worker) wish(c *schema.Checkpoints) {
	if w.saver == nil || c == nil {
		return
	}
	last := w.checkpoints.Swap(c)
	if c.Complete { // it is asked for again
		w.saver.failed.Store(nil)
	}
	if w.modules != nil && !w.config.Placement.Plan.Moments() && (last == nil || last.At < c.At) {
		w.modules.CaptureAt(c.At, w.config.Placement.Plan.Ahead)
	}
	w.saver.tell()
}

const (
	// gatheredBytesMax bounds the frames that wait to be written: of one chunk with what an optimizer keeps.
	gatheredBytesMax = 16 << 20
	// gatherEvery is the time after which an unanswered request is repeated: the trainer may not have the version yet.
	gatherEvery = 100 * time.Millisecond
	// gatherWithin is after how long without any answer a version is given up.
	gatherWithin = 30 * time.Second
)

// gathering requests the state of the trainer of lane 0: one chunk at a time, so that a disk keeps up. Only the saver
// uses it.
type gathering struct {
	number schema.Sequence // of the question that was asked last
	asked  atomic.Uint64   // the number of the one that is open; 0: none is
	came   *queue          // answers to it
}

// gathers takes a frame of state, which answers a question of this ps.
func (w *worker) gathers(it *item) {
	if n := uint64(it.view.Head().Sequence); n != 0 && n == w.gathered.asked.Load() {
		w.gathered.came.put(*it) // what is dropped is asked for again
	} else {
		round.Release(it.payload)
	}
}

// gather writes what trainers own of a version to a part of a checkpoint: the chunks that are asked for here, and the
// rows of replicated tables. within is how long it waits for the first answer: the trainer may not have the version yet.
func (w *worker) gather(ctx context.Context, version schema.Version, within time.Duration, to *checkpoint.Part) error {
	chunks, rows := 0, []shard.TrainerRows(nil)
	w.shard(func(e *shard.Shard) { chunks, rows = e.TrainerChunks(), e.TrainerPartitions() })
	a := answer{version: version, to: to, pieces: shard.NewPieces(w.config.Job), within: within}
	for i := range chunks {
		ask := func(e *shard.Shard, n schema.Sequence) (shard.Output, error) { return e.AskTrainerChunk(i, version, n) }
		if err := w.gatherOne(ctx, &a, ask); err != nil {
			return err
		}
	}
	for i, r := range rows {
		if err := w.gatherRows(ctx, &a, r); err != nil {
			return err
		}
		if i+1 == len(rows) || rows[i+1].Table != r.Table {
			w.gatheredRows(version, r)
		}
	}
	w.shard(func(e *shard.Shard) { e.DropResumed(version) })
	return nil
}

// gatherRows asks for the rows of a partition, a stretch at a time, until all have come.
func (w *worker) gatherRows(ctx context.Context, a *answer, r shard.TrainerRows) error {
	from, left, name := uint64(0), r.Rows, w.config.Job.Tables[r.Table].Name
	a.check = func(rows *state.Rows) error {
		if n := len(rows.Keys); rows.Table != name || n == 0 || n > left || rows.Keys[0] < from {
			return fmt.Errorf("%d rows of table %q: want up to %d of partition %d of table %q, from key %d on", n, rows.Table,
				left, r.Partition, name, from)
		}
		from, left, rows.Partition = rows.Keys[len(rows.Keys)-1]+1, left-len(rows.Keys), r.Partition
		return nil
	}
	for left > 0 {
		ask := func(e *shard.Shard, n schema.Sequence) (shard.Output, error) {
			return e.AskTrainerRows(r, from, a.version, n)
		}
		if err := w.gatherOne(ctx, a, ask); err != nil {
			return err
		}
	}
	return nil
}

// gatheredRows tells the trainer that all rows of a table have come that are asked for here. A trainer that does not
// hear that keeps old rows until it copies the next version, or these are too many.
func (w *worker) gatheredRows(version schema.Version, r shard.TrainerRows) {
	var ask shard.Output
	err := context.Canceled
	w.gathered.number++
	w.shard(func(e *shard.Shard) {
		ask, err = e.AskTrainerRows(r, w.config.Job.Tables[r.Table].Rows, version, w.gathered.number)
	})
	if err == nil {
		w.publish(&ask)
	}
}

// gatherOne asks until all of an answer has come.
func (w *worker) gatherOne(ctx context.Context, a *answer,
	next func(*shard.Shard, schema.Sequence) (shard.Output, error)) error {
	g := w.gathered
	a.came, a.left = nil, 0
	g.number++
	g.asked.Store(uint64(g.number))
	defer func() {
		g.asked.Store(0)
		release(g.came.swap(nil)) // the request has ended
	}()
	again, late := time.NewTimer(0), time.NewTimer(a.within)
	defer again.Stop()
	defer late.Stop()
	for !a.whole() {
		select {
		case <-again.C:
			var ask shard.Output
			var err error
			if !w.shard(func(e *shard.Shard) { ask, err = next(e, g.number) }) {
				return context.Canceled
			}
			if err != nil {
				return err
			}
			a.from = ask.To
			w.publish(&ask)
			again.Reset(gatherEvery)
		case <-g.came.wake:
			items := g.came.swap(nil)
			for n := range items {
				if items[n].view.Head().Sequence != g.number {
					round.Release(items[n].payload) // it has come twice, to the question before
					continue
				}
				if err := a.take(w, &items[n]); err != nil {
					release(items[n:])
					return err
				}
				round.Release(items[n].payload)
				a.within = gatherWithin
				late.Reset(a.within)
			}
		case <-late.C:
			return fmt.Errorf("trainer %s has not said within %s what it has of version %d", a.from, a.within, a.version)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// answer is the received part of a chunk.
type answer struct {
	version schema.Version
	from    schema.Member
	to      *checkpoint.Part
	check   func(*state.Rows) error // of rows that come; it puts their partition in
	pieces  *shard.Pieces
	within  time.Duration // something of it is waited for
	came    []bool        // frames; empty before the first
	left    int
}

func (a *answer) whole() bool { return len(a.came) > 0 && a.left == 0 }

// take adds the contents of a frame, unless it was received before or belongs to another request.
func (a *answer) take(w *worker, it *item) error {
	err := error(nil)
	w.shard(func(e *shard.Shard) { err = e.CheckMember(e.Contributor(it.from), &it.view) })
	h := it.view.Head()
	if err != nil || it.from != a.from || schema.Version(h.Batch) != a.version || h.Chunks == 0 {
		return nil
	}
	if err := w.config.Placement.CheckFrame(&it.view, w.config.Index); err != nil {
		return fmt.Errorf("version %d of trainer %s: %w", a.version, a.from, err)
	}
	if len(it.view.Values()) == 0 {
		return fmt.Errorf("trainer %s has nothing of version %d any more", a.from, a.version)
	}
	if a.came == nil {
		a.came, a.left = make([]bool, h.Chunks), int(h.Chunks)
	}
	if len(a.came) != int(h.Chunks) || a.came[h.Chunk] {
		return nil
	}
	piece, err := a.pieces.Read(&it.view)
	if err != nil {
		return fmt.Errorf("version %d of trainer %s: %w", a.version, a.from, err)
	}
	for _, t := range piece.Tensors {
		if err == nil {
			err = a.to.Tensor(t)
		}
	}
	switch {
	case piece.Rows == nil:
	case a.check == nil:
		err = errors.New("rows where a parameter is asked for")
	default:
		if err = a.check(piece.Rows); err == nil {
			err = a.to.Rows(*piece.Rows)
		}
	}
	if err != nil {
		return fmt.Errorf("version %d of trainer %s: %w", a.version, a.from, err)
	}
	a.came[h.Chunk] = true
	a.left--
	return nil
}
