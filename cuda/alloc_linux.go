//go:build linux

package cuda

import (
	"fmt"
	"syscall"
	"unsafe"
)

// allocate maps anonymous pages: zeroed, aligned to a page, and unknown to the garbage collector, so that large tables
// neither lengthen its marking nor delay its cycles.
func allocate(float32s int) (*Buffer, error) {
	if err := checkAlloc(float32s); err != nil {
		return nil, err
	}
	if float32s == 0 {
		return &Buffer{}, nil
	}
	pages, err := syscall.Mmap(-1, 0, float32s*4, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("alloc of %d bytes: %w: %v", float32s*4, ErrMemory, err)
	}
	values := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(pages))), float32s)
	return &Buffer{values: values, free: func() {
		// Munmap fails only for a range that was not mapped, which would be a broken invariant here.
		if err := syscall.Munmap(pages); err != nil {
			panic(fmt.Sprintf("free of %d bytes: %v", len(pages), err))
		}
	}}, nil
}
