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

// The rates that decide, of an NVIDIA H200 behind PCIe 5 and one thread beside it; they change no result.
const (
	callSeconds  = 40e-6 // queueing a call and waiting for its end
	pageableRate = 6e9   // bytes a second
	pinnedRate   = 25e9
	deviceFlops  = 1e12
	hostRate     = 10e9
	hostFlops    = 30e9
	hostKeyTime  = 12e-9
)

// paysOnDevice says whether the GPU is done sooner than so many threads of the CPU.
func (w work) paysOnDevice(threads int) bool {
	device := callSeconds + float64(w.pageable)/pageableRate + float64(w.pinned)/pinnedRate + float64(w.flops)/deviceFlops
	here := float64(w.pageable+w.pinned)/hostRate + float64(w.flops)/hostFlops + float64(w.keys)*hostKeyTime
	return device < here/float64(threads)
}

// note counts a vector's bytes, of a table's only the share of its rows that the call names.
func (w *work) note(bytes int, pinned bool, share float64) {
	switch {
	case pinned:
		w.pinned += int(float64(bytes) * share)
	default:
		w.pageable += bytes
	}
}

// shareOf is the share of n rows among those of a table of so many values.
func shareOf(n, dim int, table Vector) float64 {
	return min(float64(n)*float64(dim)/float64(max(table.n, 1)), 1)
}
