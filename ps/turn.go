package ps

import (
	"context"
	"time"

	"gradbus/round"
	"gradbus/schema"
)

// Who steps a shard. A frame that finds nobody stepping and nothing waiting is stepped by the goroutine that has received it: its
// bytes are still in the cache from being verified, and nobody has to be woken. Otherwise it is queued: for the worker's goroutine,
// or, where it is a lookup or a pull, for whoever steps, who looks for those after every step. Sparse contributions are always
// queued, since what their close takes would hold up the other jobs of the goroutine that receives; but for small ones, of which it
// takes little.

// sparseHereBytes is the size up to which a sparse contribution is small: stepping it takes some ten microseconds, about as
// much as waking another goroutine.
const sparseHereBytes = 16 << 10

// deliver takes a verified frame; false says that it was dropped, its payload being released. Contributions must come from one
// goroutine a connection, in their order, which is kept.
func (w *worker) deliver(it *item) bool {
	kind := it.view.Head().Kind
	w.watch.arrived(it)
	if (isAsk(kind) || kind == schema.KindDense || kind == schema.KindSparse && len(it.view.Bytes()) <= sparseHereBytes) && w.turn.TryLock() {
		if w.shard != nil && w.err == nil && (isAsk(kind) || w.queue.empty()) {
			w.stepHere(it)
			return true
		}
		w.turn.Unlock()
	}
	return w.queue.put(*it)
}

// stepHere steps a frame that nothing goes before. The turn is held, and given back.
func (w *worker) stepHere(it *item) {
	defer w.turn.Unlock()
	w.here = *it
	w.err = w.step(&w.here)
	w.here = item{}
	if w.err == nil {
		w.err = w.answer()
	}
	if w.err != nil {
		w.queue.signal() // the worker's goroutine finds it
	}
}

// drain steps what waits, and leaves what comes meanwhile to the next call, for which it has been signalled. The error is why the shard has failed, or that ctx has ended.
func (w *worker) drain(ctx context.Context) error {
	w.turn.Lock()
	defer w.turn.Unlock()
	next := 0 // of items: those from here on have not been stepped
	defer func() {
		for ; next < len(w.items); next++ {
			round.Release(w.items[next].payload)
		}
	}()
	if w.err == nil {
		w.err = w.answer()
	}
	w.items = w.queue.swap(w.items)
	for next < len(w.items) && w.err == nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		next++
		if w.err = w.step(&w.items[next-1]); w.err == nil {
			w.err = w.answer()
		}
	}
	return w.err
}

// answer steps the lookups and pulls that wait. The turn is held.
func (w *worker) answer() error {
	for w.queue.ask.Load() > 0 {
		w.asks = w.queue.swapAsks(w.asks)
		for i := range w.asks {
			if err := w.step(&w.asks[i]); err != nil {
				for _, rest := range w.asks[i+1:] {
					round.Release(rest.payload)
				}
				return err
			}
		}
	}
	return nil
}

// step takes one frame: its window first, then the shard, which releases its payload; then tells its sender, and whoever has got
// room by it, where that is worth a message. A broken invariant ends the job, not the server. The turn is held.
func (w *worker) step(it *item) (err error) {
	defer w.recovered(&err)
	h := it.view.Head()
	sequenced := h.Kind == schema.KindDense || h.Kind == schema.KindSparse
	closed := false
	if sequenced && !w.accept(it.from, &h, len(it.view.Bytes())) {
		round.Release(it.payload)
	} else {
		began := time.Now()
		if changes := w.lr.Load(); changes != w.changes {
			w.changes = changes
			w.shard.SetLR(*changes)
		}
		outputs, reason, err := w.shard.Step(it.from, &it.view, it.payload)
		if err != nil {
			return err
		}
		stepped := w.tally.stepped(&h, reason, len(it.view.Bytes()), began)
		w.server.counters.count(reason)
		if reason == schema.ReasonOK {
			if h.Kind == schema.KindLookup {
				w.answered(it.from, h.Batch)
			}
			w.watch.stepped(it, began, outputs)
		}
		for i := range outputs {
			w.publish(&outputs[i])
		}
		w.watch.published()
		if closed = len(outputs) > 0; closed {
			w.tally.publish += time.Since(stepped)
		}
	}
	if sequenced {
		w.settle(it.from, closed)
	}
	return nil
}

// settle acknowledges after a contribution: to its sender, and to all where it has closed a round.
func (w *worker) settle(from schema.Member, closed bool) {
	owing := false
	for host := range w.peers {
		if closed || w.config.Hosts[host].Member == from {
			owing = w.acknowledge(host, false) || owing
		}
	}
	if owing && !w.owing {
		w.owing = true
		select {
		case w.owed <- struct{}{}:
		default:
		}
	}
}

// acknowledgeAll tells everybody what has not been worth a message.
func (w *worker) acknowledgeAll() {
	w.turn.Lock()
	defer w.turn.Unlock()
	w.owing = false
	for host := range w.peers {
		w.acknowledge(host, true)
	}
}
