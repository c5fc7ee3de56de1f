package ps

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

const (
	// gatheredBytesMax bounds the frames that wait to be written: of one chunk with what an optimizer keeps.
	gatheredBytesMax = 16 << 20
	// gatherEvery is how long an answer is waited for before the trainer is asked again: it may not have the version yet.
	// Where a ps that stands by is told, others wait for that: mirrorTick.
	gatherEvery = 100 * time.Millisecond
	// gatherWithin is after how long without any answer a version is given up.
	gatherWithin = 30 * time.Second
)

// What trainers are asked for that have the parameters: for files, and for who stands by.
const (
	forFiles = iota
	forStandby
	gatherings
)

// gathering is what a worker asks trainers for: one chunk at a time, so that who takes it is not behind.
type gathering struct {
	every  time.Duration
	use    sync.Mutex      // one at a time; lock order: use, then stepLock
	number schema.Sequence // of the question that was asked last
	asked  atomic.Uint64   // the number of the one that is open; 0: none is
	came   *queue          // answers to it
}

func newGatherings() (all [gatherings]*gathering) {
	for i, every := range [...]time.Duration{forFiles: gatherEvery, forStandby: mirrorTick} {
		all[i] = &gathering{every: every, came: newQueue(gatheredBytesMax), number: schema.Sequence(i)}
	}
	return all
}

// gathers takes a frame of state where it is an answer to a question of this ps, and reports whether it is.
func (w *worker) gathers(it *item) bool {
	h := it.view.Head()
	n, ok := shard.ReplicaAnswer(&h, w.config.Job.Trainers)
	if !ok {
		return false
	}
	if g := w.replicas[n%gatherings]; n != 0 && uint64(n) == g.asked.Load() {
		g.came.put(*it) // what is dropped is asked for again
	} else {
		round.Release(it.payload)
	}
	return true
}

// gather gives what trainers have of a version, of the chunks that add up here.
func (w *worker) gather(ctx context.Context, what int, version schema.Version, to func(state.Tensor) error) error {
	g, chunks := w.replicas[what], 0
	g.use.Lock()
	defer g.use.Unlock()
	w.shard(func(e *shard.Shard) { chunks = e.ReplicaChunks() })
	a := answer{version: version, to: to, pieces: shard.NewPieces(w.config.Job)}
	for i := range chunks {
		if err := w.gatherChunk(ctx, g, a, i); err != nil {
			return err
		}
	}
	if chunks > 0 {
		w.shard(func(e *shard.Shard) { e.DropReplica(version) })
	}
	return nil
}

// gatherChunk asks for a chunk until all of it has come.
func (w *worker) gatherChunk(ctx context.Context, g *gathering, a answer, i int) error {
	g.number += gatherings
	g.asked.Store(uint64(g.number))
	defer func() {
		g.asked.Store(0)
		release(g.came.swap(nil)) // nobody waits for it any more
	}()
	again, late := time.NewTimer(0), time.NewTimer(gatherWithin)
	defer again.Stop()
	defer late.Stop()
	for !a.whole() {
		select {
		case <-again.C:
			var ask shard.Output
			var err error
			if !w.shard(func(e *shard.Shard) { ask, err = e.AskReplica(i, a.version, g.number) }) {
				return context.Canceled
			}
			if err != nil {
				return err
			}
			a.from = ask.To
			w.publish(&ask)
			again.Reset(g.every)
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
			return fmt.Errorf("trainer %s has not said within %s what it has of version %d", a.from, gatherWithin, a.version)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

var errNotCopied = errors.New("has nothing of version")

// answer is what has come of a chunk.
type answer struct {
	version schema.Version
	from    schema.Member
	to      func(state.Tensor) error
	pieces  *shard.Pieces
	came    []bool // frames; empty before the first
	left    int
}

func (a *answer) whole() bool { return len(a.came) > 0 && a.left == 0 }

// take gives what a frame has, unless it has come before, or is of somebody else.
func (a *answer) take(w *worker, it *item) error {
	err := error(nil)
	w.shard(func(e *shard.Shard) { err = e.CheckMember(e.Contributor(it.from), &it.view) })
	h := it.view.Head()
	if err != nil || it.from != a.from || schema.Version(h.Batch) != a.version || h.Chunks == 0 {
		return nil
	}
	if len(it.view.Values()) == 0 {
		return fmt.Errorf("trainer %s %w %d any more", a.from, errNotCopied, a.version)
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
		if err := a.to(t); err != nil {
			return fmt.Errorf("version %d of trainer %s: %w", a.version, a.from, err)
		}
	}
	a.came[h.Chunk] = true
	a.left--
	return nil
}
