package faults

import (
	"slices"
	"sync"
	"time"
)

// history is the progress that the trainers of one job have reported. Several goroutines may use it.
type history struct {
	mu      sync.Mutex
	began   map[event]int64 // when a batch of a run was first complete, in nanoseconds since 1970
	runs    []uint64        // in the order in which they were heard of
	digests []string
}

// event is the completion of a batch of a run.
type event struct{ run, batch uint64 }

// batch takes the word of one trainer.
func (h *history) batch(e event, at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began == nil {
		h.began = map[event]int64{}
	}
	if before, known := h.began[e]; !known || at < before {
		h.began[e] = at
	}
	if !slices.Contains(h.runs, e.run) {
		h.runs = append(h.runs, e.run)
	}
}

func (h *history) digest(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.digests = append(h.digests, text)
}

// count returns the number of completed batches of all runs.
func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.began)
}

// times are those at which batches were complete, ascending.
func (h *history) times() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]int64, 0, len(h.began))
	for _, at := range h.began {
		all = append(all, at)
	}
	slices.Sort(all)
	return all
}

// again returns the number of batches that runs begun within (from, to] computed again: those that the run before had
// completed.
func (h *history) again(from, to time.Time) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	type run struct {
		at          int64
		first, done uint64
	}
	runs := map[uint64]*run{}
	for e, at := range h.began {
		r := runs[e.run]
		if r == nil {
			r = &run{at, e.batch, e.batch + 1}
			runs[e.run] = r
		}
		r.at, r.first, r.done = min(r.at, at), min(r.first, e.batch), max(r.done, e.batch+1)
	}
	for i := 1; i < len(h.runs); i++ {
		before, r := runs[h.runs[i-1]], runs[h.runs[i]]
		if r.at > from.UnixNano() && r.at <= to.UnixNano() {
			n += int(before.done - min(before.done, r.first))
		}
	}
	return n
}

// pause is the longest time without a completed batch that ends after one time and not after another.
func pause(times []int64, from, to time.Time) time.Duration {
	longest := int64(0)
	for i := 1; i < len(times); i++ {
		if times[i] > from.UnixNano() && times[i] <= to.UnixNano() {
			longest = max(longest, times[i]-times[i-1])
		}
	}
	return time.Duration(longest)
}
