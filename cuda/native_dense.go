//go:build native

package cuda

/*
#include <stdlib.h>
#include "dense_bridge.h"

#cgo nocallback bridge_gemm
#cgo nocallback bridge_conv_forward
#cgo nocallback bridge_conv_input
#cgo nocallback bridge_conv_params
#cgo noescape bridge_gemm
#cgo noescape bridge_conv_forward
#cgo noescape bridge_conv_input
#cgo noescape bridge_conv_params
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// packages names the Debian packages of a library.
var packages = map[string]string{
	"onednn":   "libdnnl2",
	"openblas": "libopenblas0-pthread or libopenblas0-serial",
	"cublas":   "the CUDA runtime and cuBLAS, version 11, 12 or 13",
}

// linkedProducts are those of a library that was opened at run time. Where it has no convolutions they are made of
// products.
type linkedProducts struct {
	lowered
	handle    *C.gb_dense
	text      string
	convolves bool
}

// openProducts opens a library of the system, or the one at the path.
func openProducts(name, path string) (products, error) {
	library := C.CString(name)
	defer C.free(unsafe.Pointer(library))
	var file *C.char
	if path != "" {
		file = C.CString(path)
		defer C.free(unsafe.Pointer(file))
	}
	const room = 1024
	text := (*C.char)(C.calloc(room, 1))
	defer C.free(unsafe.Pointer(text))
	l := &linkedProducts{}
	if status := C.gb_dense_open(library, file, &l.handle, text, room); status != C.GB_OK {
		return nil, fmt.Errorf("%w: %s; install %s, or use own", ErrNoBackend, C.GoString(text), packages[name])
	}
	l.text = C.GoString(text)
	l.convolves = C.gb_dense_convolves(l.handle) == C.GB_OK
	l.lowered = newLowered(l.gemm)
	return l, nil
}

func (l *linkedProducts) name() string { return l.text }

func (l *linkedProducts) close() { C.gb_dense_close(l.handle) }

// first is the address of a tensor's values, nil for none.
func first(x []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(x))) }

func (l *linkedProducts) gemm(a *Gemm) error {
	s := C.gb_gemm_shape{m: C.int64_t(a.M), n: C.int64_t(a.N), k: C.int64_t(a.K), trans_a: bit(a.TransA),
		trans_b:    bit(a.TransB),
		accumulate: bit(a.Accumulate), relu: bit(a.ReLU)}
	var r C.gb_report
	status := C.bridge_gemm(l.handle, &s, first(a.A), first(a.B), first(a.Bias), first(a.C), &r)
	return denseError("gemm", status, &r)
}

func denseError(op string, status C.gb_status, r *C.gb_report) error {
	if status == C.GB_OK {
		return nil
	}
	return nativeError(op, status, r)
}

func (c *Conv2d) native(relu bool) C.gb_conv_shape {
	return C.gb_conv_shape{n: C.int64_t(c.N), c: C.int64_t(c.C), h: C.int64_t(c.H), w: C.int64_t(c.W),
		out:      C.int64_t(c.Out),
		kernel_h: C.int64_t(c.KernelH), kernel_w: C.int64_t(c.KernelW), stride_h: C.int64_t(c.StrideH),
		stride_w: C.int64_t(c.StrideW),
		pad_h:    C.int64_t(c.PadH), pad_w: C.int64_t(c.PadW), channels_last: bit(c.Layout == NHWC), relu: bit(relu)}
}

func (l *linkedProducts) convForward(a *Conv2dForward) error {
	if !l.convolves {
		return l.lowered.convForward(a)
	}
	s, r := a.native(a.ReLU), C.gb_report{}
	status := C.bridge_conv_forward(l.handle, &s, first(a.X), first(a.Weight), first(a.Bias), first(a.Y), &r)
	return denseError("conv2d forward", status, &r)
}

func (l *linkedProducts) convBackwardInput(a *Conv2dBackwardInput) error {
	if !l.convolves {
		return l.lowered.convBackwardInput(a)
	}
	s, r := a.native(false), C.gb_report{}
	status := C.bridge_conv_input(l.handle, &s, first(a.GradY), first(a.Weight), first(a.GradX), &r)
	return denseError("conv2d backward input", status, &r)
}

func (l *linkedProducts) convBackwardParams(a *Conv2dBackwardParams) error {
	if !l.convolves {
		return l.lowered.convBackwardParams(a)
	}
	s, r := a.native(false), C.gb_report{}
	status := C.bridge_conv_params(l.handle, &s, first(a.X), first(a.GradY), first(a.GradWeight), first(a.GradBias), &r)
	return denseError("conv2d backward params", status, &r)
}
