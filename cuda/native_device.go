//go:build native

package cuda

// #include "bridge.h"
import "C"

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"
)

// Alloc maps memory outside the Go heap; see allocate. Where there is a device it is pinned, so that both can use it.
func (n *native) Alloc(float32s int) (*Buffer, error) {
	if n.regions == nil {
		return allocate(float32s)
	}
	if err := checkAlloc(float32s); err != nil {
		return nil, err
	}
	if n.closed.Load() {
		return nil, fmt.Errorf("alloc: %w", ErrClosed)
	}
	if float32s == 0 {
		return &Buffer{}, nil
	}
	bytes := float32s * 4
	var p unsafe.Pointer
	var report C.gb_report
	if status := C.bridge_alloc(n.api, n.context, C.uint64_t(bytes), &p, &report); status != C.GB_OK {
		return nil, n.failure("alloc", status, &report)
	}
	n.regions.add(p, bytes, onPinned)
	return &Buffer{values: unsafe.Slice((*float32)(p), float32s), free: func() {
		n.regions.remove(p)
		if !n.closed.Load() {
			C.bridge_free(n.api, n.context, p, C.uint64_t(bytes))
		}
	}}, nil
}

// place is where the data of a vector lie.
type place int

const (
	onHost   place = iota // where the device cannot read them
	onPinned              // where both can
	onDevice              // where the host cannot
)

// regions are the pieces of memory that a device can read. With them a mistake about which memory goes where is an
// error instead of a crash.
type regions struct {
	mu  sync.RWMutex
	all []region // by address
}

type region struct {
	from, to uintptr
	place    place
}

func (r *regions) find(at uintptr) (int, bool) {
	return slices.BinarySearchFunc(r.all, at, func(g region, at uintptr) int {
		switch {
		case g.to <= at:
			return -1
		case g.from > at:
			return 1
		}
		return 0
	})
}

func (r *regions) add(p unsafe.Pointer, bytes int, where place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := r.find(uintptr(p))
	r.all = slices.Insert(r.all, i, region{uintptr(p), uintptr(p) + uintptr(bytes), where})
}

func (r *regions) remove(p unsafe.Pointer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, found := r.find(uintptr(p)); found {
		r.all = slices.Delete(r.all, i, i+1)
	}
}

// of says where a vector lies; one that leaves its region is the host's.
func (r *regions) of(v Vector) place {
	r.mu.RLock()
	defer r.mu.RUnlock()
	at := uintptr(v.data)
	if i, found := r.find(at); found && at+uintptr(v.n*v.dtype.Bytes()) <= r.all[i].to {
		return r.all[i].place
	}
	return onHost
}
