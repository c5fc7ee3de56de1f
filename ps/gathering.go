package ps

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"gradbus/checkpoint"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
)

const (
	// gatheredBytesMax bounds the frames that wait to be written: of one chunk with what an optimizer keeps.
	gatheredBytesMax = 16 << 20
	// gatherEvery is how long an answer is waited for before the trainer is asked again: it may not have the version yet.
	gatherEvery = 100 * time.Millisecond
	// gatherWithin is after how long without any answer a version is given up.
	gatherWithin = 30 * time.Second
)

// gathering is what a saver asks trainers for, which have the parameters: one chunk at a time, so that the disk is not
// behind.
type gathering struct {
	number schema.Sequence // of the question that was asked last
	asked  atomic.Uint64   // the number of the one that is open; 0: none is
	came   *queue          // answers to it
}

// takes takes a frame of state where it is an answer to a question of this ps, and reports whether it is.
func (g *gathering) takes(it *item, trainers int) bool {
	h := it.view.Head()
	n, ok := shard.ReplicaAnswer(&h, trainers)
	if ok && (n == 0 || uint64(n) != g.asked.Load()) {
		round.Release(it.payload)
	} else if ok {
		g.came.put(*it) // what is dropped is asked for again
	}
	return ok
}

// gather writes what trainers have of the version.
func (v *saver) gather(ctx context.Context, part *checkpoint.Part, version schema.Version) error {
	chunks := 0
	v.worker.shard(func(e *shard.Shard) { chunks = e.ReplicaChunks() })
	pieces := shard.NewPieces(v.worker.config.Job)
	for i := range chunks {
		if err := v.gatherChunk(ctx, part, pieces, version, i); err != nil {
			return err
		}
	}
	return nil
}

// gatherChunk asks for a chunk until all of it has come.
func (v *saver) gatherChunk(ctx context.Context, part *checkpoint.Part, pieces *shard.Pieces, version schema.Version,
	i int) error {
	w, g := v.worker, &v.replicas
	g.number++
	g.asked.Store(uint64(g.number))
	defer func() {
		g.asked.Store(0)
		release(g.came.swap(nil)) // nobody waits for it any more
	}()
	a := answer{version: version, part: part, pieces: pieces}
	again, late := time.NewTimer(0), time.NewTimer(gatherWithin)
	defer again.Stop()
	defer late.Stop()
	for !a.whole() {
		select {
		case <-again.C:
			var ask shard.Output
			var err error
			if !w.shard(func(e *shard.Shard) { ask, err = e.AskReplica(i, version, g.number) }) {
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
				if err := a.take(w, &items[n]); err != nil {
					release(items[n:])
					return err
				}
				round.Release(items[n].payload)
				late.Reset(gatherWithin)
			}
		case <-late.C:
			return fmt.Errorf("trainer %s has not said within %s what it has of version %d", a.from, gatherWithin, version)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// answer is what has come of a chunk.
type answer struct {
	version schema.Version
	from    schema.Member
	part    *checkpoint.Part
	pieces  *shard.Pieces
	came    []bool // frames; empty before the first
	left    int
}

func (a *answer) whole() bool { return len(a.came) > 0 && a.left == 0 }

// take writes what a frame has, unless it has come before, or is of somebody else.
func (a *answer) take(w *worker, it *item) error {
	err := error(nil)
	w.shard(func(e *shard.Shard) { err = e.CheckMember(e.Contributor(it.from), &it.view) })
	h := it.view.Head()
	if err != nil || it.from != a.from || schema.Version(h.Batch) != a.version || h.Chunks == 0 {
		return nil
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
		if err := a.part.Tensor(t); err != nil {
			return fmt.Errorf("version %d of trainer %s: %w", a.version, a.from, err)
		}
	}
	a.came[h.Chunk] = true
	a.left--
	return nil
}
