//go:build native

package cuda

// work is what a call has to do on memory of the host, as far as it says where that is done sooner: by the GPU, which
// then copies what it cannot reach, or by the cpu backend, whose bits are the same.
type work struct {
	pageable int // bytes that the device has to have copied
	pinned   int // bytes that it reaches
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
	bytes := w.pageable + w.pinned
	here := float64(min(bytes, cachedBytes))/cachedRate + float64(max(bytes-cachedBytes, 0))/hostRate +
		float64(w.flops)/hostFlops + float64(w.keys)*keySeconds
	return device < here/float64(threads)
}

// note counts a vector's bytes, of a table's that the device reaches only the share of its rows that the call names.
func (w *work) note(bytes int, pinned bool, share float64) {
	if pinned {
		w.pinned += int(float64(bytes) * share)
	} else {
		w.pageable += bytes
	}
}

// shareOf is the share of n rows among those of a table of so many values.
func shareOf(n, dim int, table Vector) float64 {
	return min(float64(n)*float64(dim)/float64(max(table.n, 1)), 1)
}
