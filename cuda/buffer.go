package cuda

// Buffer is memory outside the Go heap, aligned to 64 bytes and zeroed. Its owner frees it; slices of it die with it.
type Buffer struct {
	values []float32
	free   func()
}

// Float32s is the buffer's memory, valid until Free.
func (b *Buffer) Float32s() []float32 { return b.values }

// Free gives the memory back. A second call does nothing.
func (b *Buffer) Free() {
	if b != nil && b.free != nil {
		b.free()
		b.free, b.values = nil, nil
	}
}
