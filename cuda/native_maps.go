//go:build native

package cuda

/*
#include <stdlib.h>
#include "dense_bridge.h"

#cgo nocallback bridge_relu_forward
#cgo nocallback bridge_relu_backward
#cgo nocallback bridge_add_bias
#cgo nocallback bridge_column_sums
#cgo nocallback bridge_scale
#cgo nocallback bridge_transpose
#cgo nocallback bridge_pool_forward
#cgo nocallback bridge_pool_backward
#cgo nocallback bridge_softmax_forward
#cgo nocallback bridge_softmax_backward
#cgo noescape bridge_relu_forward
#cgo noescape bridge_relu_backward
#cgo noescape bridge_add_bias
#cgo noescape bridge_column_sums
#cgo noescape bridge_scale
#cgo noescape bridge_transpose
#cgo noescape bridge_pool_forward
#cgo noescape bridge_pool_backward
#cgo noescape bridge_softmax_forward
#cgo noescape bridge_softmax_backward
*/
import "C"

import (
	"sync"
	"unsafe"
)

// linkedMaps are the operations of the native library, of one instruction set.
type linkedMaps struct {
	table *C.gb_maps
	rows  *sync.Pool // of *[]float32, one row of a softmax
}

// nativeMaps takes the instruction set of that name, or the best.
func nativeMaps(isa string) maps {
	name := C.CString(isa)
	defer C.free(unsafe.Pointer(name))
	return &linkedMaps{C.gb_maps_of(name), newFloatsPool()}
}

// lastFlag is 1 where the channels are last.
func lastFlag(l Layout) C.uint32_t { return bit(l == NHWC) }

func (m *linkedMaps) reluForward(x, y []float32) {
	C.bridge_relu_forward(m.table, first(x), C.int64_t(len(x)), first(y))
}

func (m *linkedMaps) reluBackward(y, gradY, gradX []float32) {
	C.bridge_relu_backward(m.table, first(y), first(gradY), C.int64_t(len(y)), first(gradX))
}

func (m *linkedMaps) addBias(a *addBias) {
	C.bridge_add_bias(m.table, first(a.x), first(a.bias), C.int64_t(a.rows), C.int64_t(a.columns), first(a.y))
}

func (m *linkedMaps) columnSums(a *ColumnSums) {
	C.bridge_column_sums(m.table, first(a.X), C.int64_t(a.Rows), C.int64_t(a.Columns), first(a.Out))
}

func (m *linkedMaps) scale(a *Scale) {
	C.bridge_scale(m.table, first(a.X), first(a.By), C.int64_t(a.N), C.int64_t(a.C), C.int64_t(a.Plane),
		lastFlag(a.Layout), first(a.Out))
}

func (m *linkedMaps) relayout(a *Relayout) {
	rows, columns := a.C, a.Plane
	if a.From == NHWC {
		rows, columns = a.Plane, a.C
	}
	C.bridge_transpose(m.table, first(a.X), C.int64_t(a.N), C.int64_t(rows), C.int64_t(columns), first(a.Y))
}

func (p *MaxPool2d) native() C.gb_pool_shape {
	return C.gb_pool_shape{n: C.int64_t(p.N), c: C.int64_t(p.C), h: C.int64_t(p.H), w: C.int64_t(p.W),
		kernel_h: C.int64_t(p.KernelH), kernel_w: C.int64_t(p.KernelW), stride_h: C.int64_t(p.StrideH),
		stride_w: C.int64_t(p.StrideW),
		pad_h:    C.int64_t(p.PadH), pad_w: C.int64_t(p.PadW), out_h: C.int64_t(p.outHeight()),
		out_w:  C.int64_t(p.outWidth()),
		x_last: lastFlag(p.XLayout), y_last: lastFlag(p.YLayout)}
}

func argmaxOf(x []int32) *C.int32_t { return (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(x))) }

func (m *linkedMaps) poolForward(a *MaxPool2dForward) {
	s := a.native()
	C.bridge_pool_forward(m.table, &s, first(a.X), first(a.Y), argmaxOf(a.ArgMax))
}

func (m *linkedMaps) poolBackward(a *MaxPool2dBackward) int {
	s := a.native()
	return int(C.bridge_pool_backward(m.table, &s, first(a.GradY), argmaxOf(a.ArgMax), first(a.GradX)))
}

// row is room for one row, up to a whole vector's end, to be given back.
func (m *linkedMaps) row(columns int) *[]float32 {
	r := m.rows.Get().(*[]float32)
	*r = grow(*r, (columns+15)/16*16)
	return r
}

func (m *linkedMaps) softmaxForward(a *RowSoftmax) {
	row := m.row(a.Columns)
	defer m.rows.Put(row)
	C.bridge_softmax_forward(m.table, first(a.X), C.int64_t(a.Rows), C.int64_t(a.Columns), bit(a.Log),
		first(*row), first(a.Y))
}

func (m *linkedMaps) softmaxBackward(a *RowSoftmaxBackward) {
	row := m.row(a.Columns)
	defer m.rows.Put(row)
	C.bridge_softmax_backward(m.table, first(a.Y), first(a.GradY), C.int64_t(a.Rows), C.int64_t(a.Columns), bit(a.Log),
		first(*row), first(a.GradX))
}
