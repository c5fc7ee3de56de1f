package cuda

import "sync/atomic"

// callCounter counts the operations of one backend. Every core that calls the backend writes it, so it shares no cache
// line with what each call reads.
type callCounter struct {
	_ [64]byte
	n atomic.Uint64
	_ [56]byte
}

// Calls returns how many operations a backend was given since it was opened, by the name of the backend that was given
// them: one of a GPU leaves to cpu what the CPU ends sooner. A batch counts its commands. Backends that Open does not
// give have none.
func Calls(b Backend) map[string]uint64 {
	by := map[string]uint64{}
	addCalls(b, by)
	return by
}

func addCalls(b Backend, by map[string]uint64) {
	if counted, ok := b.(interface{ addCalls(map[string]uint64) }); ok {
		counted.addCalls(by)
	}
}

func (r *reference) addCalls(by map[string]uint64) { by[r.Name()] += r.calls.n.Load() }

func (w *wrongBits) addCalls(by map[string]uint64) { addCalls(w.Backend, by) }

// addCalls leaves out what the oracle computes again: Checked counts that.
func (v *Verified) addCalls(by map[string]uint64) { addCalls(v.Backend, by) }
