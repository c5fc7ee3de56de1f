package cuda

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// wrongBits is a backend that writes one wrong bit at each of some moments, to show what finds it and what follows: in
// the first thing that an optimizer step or a sum writes then.
type wrongBits struct {
	Backend
	log *slog.Logger

	mu   sync.Mutex
	due  []time.Time // ascending
	done int
}

// withWrongBits injects one so long after now, for each of after.
func withWrongBits(b Backend, after []time.Duration, log *slog.Logger) Backend {
	if len(after) == 0 {
		return b
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	w := &wrongBits{Backend: b, log: log}
	for _, d := range slices.Sorted(slices.Values(after)) {
		w.due = append(w.due, time.Now().Add(d))
	}
	return w
}

func (w *wrongBits) reason() string { return reasonOf(w.Backend) + "; wrong bits are injected" }

// openQueue is the backend's: streams write no wrong bits.
func (w *wrongBits) openQueue() (queue, error) {
	if on, ok := w.Backend.(interface{ openQueue() (queue, error) }); ok {
		return on.openQueue()
	}
	return nil, ErrUnsupported
}

// injected reports whether a wrong bit was written.
func (w *wrongBits) injected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done > 0
}

// harm flips a bit of what a call has written, where one is due: of the mantissa where it is float32. Rows of it are
// those that ids name, if the call wrote in place, else all.
func (w *wrongBits) harm(op string, err error, out, ids Vector, dim int) error {
	if err != nil || out.n == 0 {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == len(w.due) || time.Now().Before(w.due[w.done]) {
		return nil
	}
	at := int(mix(uint64(w.due[w.done].UnixNano())) % uint64(out.n))
	if ids.n > 0 {
		row := indexAt(ids, at%ids.n)
		if row < 0 || int(row) >= out.n/dim {
			return nil // the next call will do
		}
		at = int(row)*dim + at%dim
	}
	w.done++
	bit := at % 7
	rawBytes(out.Slice(at, at+1))[0] ^= 1 << bit
	w.log.Warn("a wrong bit was injected", "op", op, "position", at, "bit", bit)
	return nil
}

// ApplyDense implements Backend. The methods after it are alike.
func (w *wrongBits) ApplyDense(a ApplyDense) error {
	return w.harm("apply dense", w.Backend.ApplyDense(a), a.Out, Vector{}, 1)
}

func (w *wrongBits) AverageApply(a AverageApply) error {
	return w.harm("average apply", w.Backend.AverageApply(a), a.Out, Vector{}, 1)
}

func (w *wrongBits) ApplyRows(a ApplyRows) error {
	err := w.Backend.ApplyRows(a)
	if a.Out.is(a.Table) {
		return w.harm("apply rows", err, a.Out, a.Index, a.Dim)
	}
	return w.harm("apply rows", err, a.Out, Vector{}, 1)
}

func (w *wrongBits) CoalesceApply(a CoalesceApply) (int, error) {
	n, err := w.Backend.CoalesceApply(a)
	if a.Out.is(a.Table) {
		return n, w.harm("coalesce apply", err, a.Out, a.Keys, a.Dim)
	}
	return n, w.harm("coalesce apply", err, a.Out.Slice(0, n*a.Dim), Vector{}, 1)
}

func (w *wrongBits) Average(a Average) error {
	return w.harm("average", w.Backend.Average(a), a.Out, Vector{}, 1)
}

func (w *wrongBits) Merge(a Merge) (int, error) {
	n, err := w.Backend.Merge(a)
	return n, w.harm("merge", err, a.OutRows.Slice(0, n*a.Dim), Vector{}, 1)
}
