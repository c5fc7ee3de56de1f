package bench

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"gradbus/cuda"
	"gradbus/philox"
)

// host is a backend that computes where its caller's memory is.
type host struct {
	backend cuda.Backend
	noise   []float32
	buffers map[cuda.Vector]*cuda.Buffer
}

// noiseValues is the number of different values; they are repeated as often as necessary.
const noiseValues = 1 << 20

func newHost(b cuda.Backend) (*host, error) {
	h := &host{backend: b, noise: make([]float32, noiseValues), buffers: map[cuda.Vector]*cuda.Buffer{}}
	return h, philox.FillTensor(h.noise, philox.Normal, 1, seed, "noise")
}

// values are on huge pages where the machine has them, every page written.
func (h *host) values(n int, dtype cuda.DType) (cuda.Vector, error) {
	words := (n*dtype.Bytes() + 3) / 4
	if has, known := available(); known && int64(words)*4 > has-reserveBytes {
		return cuda.Vector{}, fmt.Errorf("%w: needs %.1f GB, %.1f GB of memory are free", errLeftOut, float64(words)*4e-9,
			float64(has)*1e-9)
	}
	b, err := h.backend.Alloc(words)
	if errors.Is(err, cuda.ErrMemory) {
		return cuda.Vector{}, fmt.Errorf("%w: %w", errLeftOut, err)
	} else if err != nil {
		return cuda.Vector{}, err
	}
	all := b.Float32s()
	var v cuda.Vector
	switch dtype {
	case cuda.Float32:
		for at := 0; at < len(all); at += noiseValues {
			copy(all[at:], h.noise)
		}
		v = cuda.Float32s(all)
	default:
		halves := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(all))), 2*len(all))[:n]
		for i := range halves {
			halves[i] = half(uint16(i * 40503))
		}
		v = cuda.Float16s(halves)
		if dtype == cuda.BFloat16 {
			v = cuda.BFloat16s(halves)
		}
	}
	h.buffers[v] = b
	return v, nil
}

// half makes a finite number of 16 random bits, in float16 and in bfloat16: the exponent's upper bits are set for a
// magnitude below two.
func half(bits uint16) uint16 { return bits&0x8fff | 0x3000 }

func (h *host) int64s(ids []int64) (cuda.Vector, error)    { return cuda.Int64s(ids), nil }
func (h *host) uint64s(keys []uint64) (cuda.Vector, error) { return cuda.Uint64s(keys), nil }

func (h *host) free(v cuda.Vector) {
	h.buffers[v].Free() // those of ids and keys have none
	delete(h.buffers, v)
}

func (h *host) close() {
	for _, b := range h.buffers {
		b.Free()
	}
}

func (h *host) seconds(args []any, e effort) (float64, int, error) {
	batches, err := batchesOf(h.backend, args)
	defer free(batches)
	if err != nil {
		return 0, 0, err
	}
	for i, b := range batches { // to warm up, and to let workspaces grow
		if err := h.backend.Submit(b); err != nil {
			return 0, 0, err
		}
		if err := checkFound(b, args[i]); err != nil {
			return 0, 0, err
		}
	}
	next := 0
	return e.median(func() (float64, error) {
		b := batches[next%len(batches)]
		next++
		start := time.Now()
		err := h.backend.Submit(b)
		return time.Since(start).Seconds(), err
	})
}

// batchesOf gives a batch of one command for each of args, to be freed also where there is an error.
func batchesOf(backend cuda.Backend, args []any) ([]*cuda.Batch, error) {
	var all []*cuda.Batch
	for _, a := range args {
		b := backend.NewBatch()
		all = append(all, b)
		if err := add(b, a); err != nil {
			return all, err
		}
	}
	return all, nil
}

func free(batches []*cuda.Batch) {
	for _, b := range batches {
		b.Free()
	}
}

// add gives the batch the command that takes these arguments.
func add(b *cuda.Batch, args any) error {
	switch a := args.(type) {
	case cuda.BagForward:
		return b.BagForward(a)
	case cuda.BagBackward:
		return b.BagBackward(a)
	case cuda.Coalesce:
		return b.Coalesce(a)
	case cuda.Merge:
		return b.Merge(a)
	case cuda.ApplyRows:
		return b.ApplyRows(a)
	case cuda.CoalesceApply:
		return b.CoalesceApply(a)
	case cuda.ApplyDense:
		return b.ApplyDense(a)
	case cuda.Average:
		return b.Average(a)
	case cuda.AverageApply:
		return b.AverageApply(a)
	case copyOf:
		return b.Copy(a.to, a.from)
	case cuda.Vector:
		return b.FirstNonFinite(a)
	}
	return fmt.Errorf("no operation takes %T", args)
}

// checkFound fails where the search for values that are not finite found one, since its time is then not of the whole.
func checkFound(b *cuda.Batch, args any) error {
	if _, search := args.(cuda.Vector); search && b.Count(0) >= 0 {
		return fmt.Errorf("value %d is not finite", b.Count(0))
	}
	return nil
}

// reserveBytes stay free: ids, workspaces, and what else runs.
const reserveBytes = 1 << 30

// available returns the memory that the system can provide without taking it from other processes.
func available() (bytes int64, known bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}
