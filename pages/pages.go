// Package pages gives large memory that lies on huge pages where the system has them. A pass over tens of megabytes costs a
// walk through the page table for every 4 KiB otherwise, and the processor's own prefetching ends at each of these borders.
//
// It is memory of the Go heap like any other, freed when nothing refers to it: what is asked of the system is advice on a
// range of addresses, which changes no value. Parameters and gradients of a trainer and the results of a shard use it.
//
// It knows nothing of what the memory is for. Memory outside the heap is package cuda's (Backend.Alloc).
package pages

import "unsafe"

// hugeBytes is the size, and the alignment, of a huge page where it is usual.
const hugeBytes = 2 << 20

// Bytes are n zeroed bytes, aligned to 64. From 4 MiB on they begin at the border of a huge page, and up to one such page
// more is taken.
func Bytes(n int) []byte {
	if n < 2*hugeBytes {
		return aligned(n, 64)
	}
	b := aligned(n, hugeBytes)
	advise(b)
	return b
}

// Float32s are n zeroed values in such memory.
func Float32s(n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(Bytes(4*n)))), n)
}

// aligned makes n zeroed bytes, the first at a multiple of align.
func aligned(n, align int) []byte {
	b := make([]byte, n+align)
	past := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % uintptr(align))
	if past == 0 {
		return b[:n:n]
	}
	return b[align-past:][:n:n]
}
