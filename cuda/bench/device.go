package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"gradbus/cuda"
	"gradbus/philox"
)

// newMachine is the backend with a stream and device memory, or, where it has none, with its caller's memory.
func newMachine(b cuda.Backend) (machine, error) {
	stream, err := cuda.OpenStream(b)
	if errors.Is(err, cuda.ErrUnsupported) {
		return newHost(b)
	} else if err != nil {
		return nil, err
	}
	d := &device{backend: b, stream: stream, memory: map[cuda.Vector]*cuda.DeviceMemory{}}
	if d.pinned, err = b.Alloc(noiseValues); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// device is a backend with memory of its own. Calls are queued.
type device struct {
	backend cuda.Backend
	stream  *cuda.Stream
	pinned  *cuda.Buffer // through which everything gets there
	memory  map[cuda.Vector]*cuda.DeviceMemory
}

// alloc gives memory of the device for so many elements.
func (d *device) alloc(n int, dtype cuda.DType) (cuda.Vector, *cuda.DeviceMemory, error) {
	m, err := d.stream.AllocDevice(max(wordsOf(n, dtype), 1) * 4)
	if errors.Is(err, cuda.ErrMemory) {
		return cuda.Vector{}, nil, fmt.Errorf("%w: %w", errLeftOut, err)
	} else if err != nil {
		return cuda.Vector{}, nil, err
	}
	v := m.Vector(dtype, 0, n)
	d.memory[v] = m
	return v, m, nil
}

// wordsOf is how many 32-bit words hold n elements.
func wordsOf(n int, dtype cuda.DType) int { return (n*dtype.Bytes() + 3) / 4 }

// upload copies words through the pinned buffer to the device; fill(part, at) writes those from word at on.
func (d *device) upload(to cuda.Vector, fill func(part []float32, at int)) error {
	buffer := d.pinned.Float32s()
	for at := 0; at < to.Len(); at += len(buffer) {
		part := buffer[:min(len(buffer), to.Len()-at)]
		fill(part, at)
		if err := d.stream.Copy(to.Slice(at, at+len(part)), cuda.Float32s(part)); err != nil {
			return err
		}
		if err := d.stream.Wait(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// values repeats what the first pinned buffer holds.
func (d *device) values(n int, dtype cuda.DType) (cuda.Vector, error) {
	v, m, err := d.alloc(n, dtype)
	if err != nil {
		return v, err
	}
	words := wordsOf(n, dtype)
	all := m.Float32s(0, words)
	first := all.Slice(0, min(words, noiseValues))
	if err := d.upload(first, func(part []float32, _ int) { d.fill(part, dtype) }); err != nil {
		return v, err
	}
	for at := first.Len(); at < words; at += first.Len() {
		to := all.Slice(at, min(at+first.Len(), words))
		if err := d.stream.Copy(to, first.Slice(0, to.Len())); err != nil {
			return v, err
		}
	}
	return v, d.stream.Wait(context.Background())
}

func (d *device) fill(words []float32, dtype cuda.DType) {
	if dtype == cuda.Float32 {
		_ = philox.FillTensor(words, philox.Normal, 1, seed, "noise") // only an unknown kind fails
		return
	}
	for i := range words {
		low, high := half(uint16(2*i*40503)), half(uint16((2*i+1)*40503))
		words[i] = math.Float32frombits(uint32(high)<<16 | uint32(low))
	}
}

func (d *device) int64s(ids []int64) (cuda.Vector, error) { return longs(d, ids, cuda.Int64) }

func (d *device) uint64s(keys []uint64) (cuda.Vector, error) { return longs(d, keys, cuda.Uint64) }

// longs brings 64-bit numbers to the device, as two words each.
func longs[T int64 | uint64](d *device, all []T, dtype cuda.DType) (cuda.Vector, error) {
	v, m, err := d.alloc(len(all), dtype)
	if err != nil {
		return v, err
	}
	return v, d.upload(m.Float32s(0, 2*len(all)), func(part []float32, at int) {
		for i := range part {
			part[i] = math.Float32frombits(uint32(uint64(all[(at+i)/2]) >> (32 * ((at + i) % 2))))
		}
	})
}

func (d *device) free(v cuda.Vector) {
	if m, ok := d.memory[v]; ok {
		m.Free()
		delete(d.memory, v)
	}
}

func (d *device) close() {
	for _, m := range d.memory {
		m.Free()
	}
	d.pinned.Free()
	_ = d.stream.Close() // whatever failed has been told by the last Wait
}

// burstSeconds is how long the calls take that are timed together: long next to a wait for their end.
const burstSeconds = 10e-3

// seconds queues so many calls that waiting for their end does not show.
func (d *device) seconds(args []any, e effort) (float64, int, error) {
	single, err := batchesOf(d.backend, args)
	defer free(single)
	if err != nil {
		return 0, 0, err
	}
	var one float64
	for i, b := range single {
		for range 2 { // the first loads code and lets workspaces grow
			if one, err = d.burst(b); err != nil {
				return 0, 0, err
			}
		}
		if err := checkFound(b, args[i]); err != nil {
			return 0, 0, err
		}
	}
	rounds := min(max(int(burstSeconds/one), 1), 500)/len(args) + 1
	many := d.backend.NewBatch()
	defer many.Free()
	for range rounds {
		for _, a := range args {
			if err := add(many, a); err != nil {
				return 0, 0, err
			}
		}
	}
	if _, err := d.burst(many); err != nil {
		return 0, 0, err
	}
	e.time /= time.Duration(many.Len()) // the samples are of one call each
	return e.median(func() (float64, error) {
		s, err := d.burst(many)
		return s / float64(many.Len()), err
	})
}

// burst is the time from queueing a batch to its end.
func (d *device) burst(b *cuda.Batch) (float64, error) {
	start := time.Now()
	err := d.stream.Submit(b)
	if err == nil {
		err = d.stream.Wait(context.Background())
	}
	return time.Since(start).Seconds(), err
}
