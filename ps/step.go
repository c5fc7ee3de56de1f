package ps

import (
	"context"
	"time"

	"gradbus/schema"
	"gradbus/shard/endpoint"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// Who steps a shard. A frame that finds nobody stepping and nothing waiting is stepped by the goroutine that has
// received it: its bytes are still in the cache from being verified, and nobody has to be woken. Otherwise it is
// queued: for the worker's goroutine, or, where it is a lookup or a pull, for whoever steps, who looks for those after
// every step. Sparse contributions are always queued, since what their close takes would hold up the other jobs of the
// goroutine that receives; but for small ones, of which it takes little.

// sparseHereBytes is the size up to which a sparse contribution is small: stepping it takes some ten microseconds,
// about as much as waking another goroutine.
const sparseHereBytes = 16 << 10

// deliver takes a verified frame; false says that it was dropped, its payload being released. Contributions must come
// from one goroutine a connection, in their order, which is kept.
func (w *worker) deliver(it *item) bool {
	h := it.view.Head()
	if h.Kind == schema.KindState {
		w.gathers(it)
		return true
	}
	it.came = time.Now()
	ask, small := isAsk(h.Kind), len(it.view.Bytes()) <= sparseHereBytes
	if (ask || h.Kind == schema.KindDense || h.Kind == schema.KindSparse && small) && w.stepLock.TryLock() {
		free := w.end != nil && w.err == nil && (ask || w.nextItem == len(w.items) && w.queue.empty())
		if free && w.end.Ready(h.Kind, h.Batch) {
			w.stepHere(it)
			return true
		}
		w.stepLock.Unlock()
	}
	return w.queue.put(*it)
}

// stepHere steps a frame that nothing goes before, and publishes what comes of it. The step lock is held, and given
// back.
func (w *worker) stepHere(it *item) {
	e := w.end
	w.here = *it
	w.err = w.step(&w.here)
	w.here = item{}
	if w.err == nil {
		w.err = w.answer(false)
	}
	if w.err != nil {
		w.queue.signal() // the worker's goroutine finds it
	}
	w.stepLock.Unlock()
	e.Flush()
}

// drain steps what waits, and leaves what comes meanwhile to the next call, for which it has been signalled. Between
// steps it publishes, without the step lock. The error is why the shard has failed, or that ctx has ended.
func (w *worker) drain(ctx context.Context) error {
	w.stepLock.Lock()
	defer w.end.Flush()
	defer w.stepLock.Unlock()
	if w.err == nil {
		w.err = w.answer(true)
	}
	w.pause()
	if w.nextItem == len(w.items) {
		w.items, w.nextItem = w.queue.swap(w.items), 0
	}
	for w.nextItem < len(w.items) && w.err == nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		it := &w.items[w.nextItem]
		h := it.view.Head()
		if w.end.Await(&w.stepLock, h.Kind, h.Batch); w.err != nil {
			break
		}
		w.nextItem++
		if w.err = w.step(it); w.err == nil {
			w.err = w.answer(true)
		}
		w.pause()
	}
	return w.err
}

// pause releases the step lock for as long as something is to be published. Frames that come meanwhile are queued, but
// for lookups and pulls.
func (w *worker) pause() {
	if e := w.end; e != nil && e.Waits() {
		w.stepLock.Unlock()
		e.Flush()
		w.stepLock.Lock()
	}
}

// answer answers the lookups that were parked, and steps the lookups and pulls that wait. The step lock is held, but
// not while this publishes, or waits for who does. Who must not wait leaves to the worker's goroutine what is not
// ready.
func (w *worker) answer(wait bool) error {
	if err := w.answerParked(wait); err != nil {
		return err
	}
	for w.end != nil && w.err == nil {
		if w.nextAsk == len(w.asks) {
			if w.queue.ask.Load() == 0 {
				return nil
			}
			w.asks, w.nextAsk = w.queue.swapAsks(w.asks), 0
		}
		it := &w.asks[w.nextAsk]
		if h := it.view.Head(); !w.end.Ready(h.Kind, h.Batch) {
			if !wait {
				w.queue.signal()
				return nil
			}
			w.end.Await(&w.stepLock, h.Kind, h.Batch) // another goroutine may step the frame meanwhile
			continue
		}
		w.nextAsk++
		if err := w.step(it); err != nil {
			return err
		}
	}
	return w.err
}

// drop releases what was taken from the queue and will not be stepped. The step lock is held.
func (w *worker) drop() {
	for _, it := range w.items[w.nextItem:] {
		round.Release(it.payload)
	}
	for _, it := range w.asks[w.nextAsk:] {
		round.Release(it.payload)
	}
	w.items, w.nextItem, w.asks, w.nextAsk = nil, 0, nil, 0
}

// step takes one frame, and notes what became of it. What the shard puts out waits to be published. A broken invariant
// ends the job, not the server. The step lock is held, and Ready was called.
func (w *worker) step(it *item) (err error) {
	defer w.recovered(&err)
	h, began := it.view.Head(), time.Now()
	if changes := w.lr.Load(); changes != w.changes {
		w.changes = changes
		w.end.SetLR(*changes)
	}
	if wish := w.checkpoints.Load(); wish != w.wished {
		w.wished = wish
		w.end.CopyAt(state.CopyWish{At: wish.At, Since: wish.Since, All: !wish.Increment, BytesMax: state.CopyBytesMax})
	}
	before := w.watch.begin()
	taken, err := w.end.Step(it.from, &it.view, it.payload)
	if err != nil {
		return err
	}
	if _, copies := w.end.Copying(); copies && !w.copying {
		w.copying = true
		w.saver.tell()
	}
	if m := w.mirror.Load(); m != nil {
		m.copies(w.end.Shard, &w.mirrored)
	}
	if taken.Dropped {
		w.server.counters.dropped.Add(1)
	} else {
		w.server.counters.count(taken.Reason)
	}
	if taken.Repeat {
		w.tally.repeats++
	} else if !taken.Dropped {
		w.tally.stepped(&h, taken.Reason, len(it.view.Bytes()), began)
	}
	var over []RoundTimes
	if taken.Reason == schema.ReasonOK && !taken.Dropped && !isAsk(h.Kind) {
		contributor := w.end.Contributor(it.from)
		if whose, ok := w.end.Answers(contributor); ok {
			over = w.watch.stepped(it, contributor, whose, before, taken.Outputs)
		}
	}
	w.put(&taken, over)
	return nil
}

// put leaves what became of a step to be published, and what is not acknowledged to the worker's goroutine. over are
// the rounds that are over once all is published.
func (w *worker) put(taken *endpoint.Taken, over []RoundTimes) {
	var then func()
	if over != nil {
		then = func() { w.watch.published(over) }
	}
	w.end.Put(taken.Outputs, then)
	if taken.Pending && !w.ackPending {
		w.ackPending = true
		nudge(w.ackWake)
	}
}

// answerParked answers the lookups that have waited for what was stepped, one after the other, since their answers
// share a frame. For the step lock and for wait see answer.
func (w *worker) answerParked(wait bool) (err error) {
	defer w.recovered(&err)
	for w.err == nil && w.end != nil && w.end.Due() {
		if !w.end.Ready(schema.KindLookup, 0) {
			if !wait {
				w.queue.signal()
				return nil
			}
			w.end.Await(&w.stepLock, schema.KindLookup, 0) // another goroutine may answer meanwhile
			continue
		}
		outputs, err := w.end.Answer()
		if err != nil {
			return err
		}
		var over []RoundTimes
		if whose, ok := w.end.Answers(w.end.Contributor(outputs[0].To)); ok {
			over = w.watch.answered(&outputs[0], whose)
		}
		w.put(&endpoint.Taken{Outputs: outputs}, over)
	}
	return w.err
}

// acknowledgeLate tells everybody what has waited for long enough. It reports whether something is left to be said.
func (w *worker) acknowledgeLate() bool {
	w.stepLock.Lock()
	defer w.stepLock.Unlock()
	w.ackPending = w.end.Tick()
	return w.ackPending
}
