//go:build linux

package cuda

import (
	"fmt"
	"syscall"
	"unsafe"
)

// hugePage is the size of a huge page on the machines we know. Where theirs is another, memory is only aligned more
// than it need be.
const hugePage = 2 << 20

// allocate maps anonymous pages: zeroed, aligned to a page, and unknown to the garbage collector, so that large tables
// neither lengthen its marking nor delay its cycles. From one huge page on the kernel is asked for huge ones, since
// rows read at random miss the address cache on small ones.
func allocate(float32s int) (*Buffer, error) {
	if err := checkAlloc(float32s); err != nil {
		return nil, err
	}
	if float32s == 0 {
		return &Buffer{}, nil
	}
	bytes := float32s * 4
	size := bytes
	if bytes >= hugePage { // huge pages begin at their own multiples; untouched pages cost nothing
		size += hugePage
	}
	pages, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("alloc of %d bytes: %w: %v", bytes, ErrMemory, err)
	}
	memory := pages
	if bytes >= hugePage {
		past := int(uintptr(unsafe.Pointer(unsafe.SliceData(pages))) % hugePage)
		memory = pages[(hugePage-past)%hugePage:][:bytes]
		// A kernel without huge pages refuses, and small ones do as well.
		_ = syscall.Madvise(memory, syscall.MADV_HUGEPAGE)
	}
	values := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(memory))), float32s)
	return &Buffer{values: values, free: func() {
		// Munmap fails only for a range that was not mapped, which would be a broken invariant here.
		if err := syscall.Munmap(pages); err != nil {
			panic(fmt.Sprintf("free of %d bytes: %v", len(pages), err))
		}
	}}, nil
}
