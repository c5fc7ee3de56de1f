package ps

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gradbus/checkpoint"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

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
