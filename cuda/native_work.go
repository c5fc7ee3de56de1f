//go:build native

package cuda

// work is the amount of work of a call on host memory, as far as it decides whether the GPU, which copies what it
// cannot reach, or the cpu backend, which has the same bits, is faster.
type work struct {
	pageable int // bytes that the device has to have copied
	pinned   int // bytes that it reaches
	touched  int // bytes of both that the CPU would read or write
	flops    int // of a product
	keys     int // to be sorted
}

// What decides was measured on an NVIDIA H200 behind PCIe 5 and one thread of an EPYC beside it, by BenchmarkPlaced.
// Elsewhere the border lies somewhat off; no result changes.
const (
	callSeconds  = 40e-6 // queueing a call and waiting for its end
	sortSeconds  = 80e-6 // more, where it sorts
	pageableRate = 10e9  // bytes a second
	pinnedRate   = 40e9
	deviceFlops  = 4e12

	hostRate    = 8e9
	cachedBytes = 2 << 20 // of which a CPU has its share
	cachedRate  = 25e9
	hostFlops   = 60e9
	keySeconds  = 12e-9
)

// paysOnDevice says whether the GPU is done sooner than so many threads of the CPU.
func (w work) paysOnDevice(threads int) bool {
	device := callSeconds + float64(w.pageable)/pageableRate + float64(w.pinned)/pinnedRate + float64(w.flops)/deviceFlops
	if w.keys > 0 {
		device += sortSeconds
	}
	here := float64(min(w.touched, cachedBytes))/cachedRate + float64(max(w.touched-cachedBytes, 0))/hostRate +
		float64(w.flops)/hostFlops + float64(w.keys)*keySeconds
	return device < here/float64(threads)
}

// note counts a vector's bytes, of which the call leaves a share alone. What the device does not reach it has to have
// whole, unless the call picks rows.
func (w *work) note(bytes int, pinned bool, spared float64, picks bool) {
	touched := bytes - int(float64(bytes)*spared)
	w.touched += touched
	switch {
	case pinned:
		w.pinned += touched
	case picks:
		w.pageable += touched
	default:
		w.pageable += bytes
	}
}

// sparedBy is the share of a table's values that n rows leave alone.
func sparedBy(n, dim int, table Vector) float64 {
	return max(1-float64(n)*float64(dim)/float64(max(table.n, 1)), 0)
}
