//go:build native

package cuda

/*
#cgo CFLAGS: -I${SRCDIR}/../csrc/include -Wall -Wextra -Werror
#cgo LDFLAGS: ${SRCDIR}/../build/libgradbus.a -lstdc++ -lm -ldl -lrt -lpthread
#include <stdlib.h>
#include "bridge.h"

// The library neither keeps pointers nor calls back, so arguments may stay on the stack and a call costs less.
#cgo noescape bridge_bag_forward
#cgo nocallback bridge_bag_forward
#cgo noescape bridge_bag_backward
#cgo nocallback bridge_bag_backward
#cgo noescape bridge_coalesce
#cgo nocallback bridge_coalesce
#cgo noescape bridge_merge
#cgo nocallback bridge_merge
#cgo noescape bridge_average
#cgo nocallback bridge_average
#cgo noescape bridge_apply_rows
#cgo nocallback bridge_apply_rows
#cgo noescape bridge_apply_dense
#cgo nocallback bridge_apply_dense
#cgo noescape bridge_matmul
#cgo nocallback bridge_matmul
#cgo noescape bridge_softmax
#cgo nocallback bridge_softmax
#cgo noescape bridge_first_nonfinite
#cgo nocallback bridge_first_nonfinite
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// nativeBuilt says whether the native library is in this build.
const nativeBuilt = true

// native is a backend of the library. Checks of shape run in Go; those that read the data run in the library, whose
// report is turned into the same errors.
type native struct {
	api     *C.gb_api
	context *C.gb_context
	name    string
	isa     string
	why     string
	calls   sync.Pool // of *call
	closed  atomic.Bool
}

// call is the memory of one call: the workspace, and the terms of a sum with the pins of what they point to.
type call struct {
	report    C.bridge_report
	workspace []byte
	pins      runtime.Pinner
	terms     []C.gb_term
	rowsTerms []C.gb_rows_term
}

// workspaceBytes is what a new call starts with; a larger need shows in the first call and is kept.
const workspaceBytes = 64 << 10

func openNative(name, isa, why string) (Backend, error) {
	var api *C.gb_api
	switch name {
	case "cpu":
		api = C.gb_backend(C.GB_ABI)
	case "emu":
		api = emuAPI()
	case "cuda":
		if api = C.gb_cuda_backend(C.GB_ABI); api == nil {
			return nil, fmt.Errorf("%w: the native library was built without CUDA; use cpu, or rebuild where nvcc is", ErrNoBackend)
		}
	}
	if api == nil {
		return nil, fmt.Errorf("%w: the native library is of another version: rebuild it", ErrNoBackend)
	}
	text := C.CString(isa)
	defer C.free(unsafe.Pointer(text))
	n := &native{api: api, name: C.GoString(api.name), why: why}
	var report C.bridge_report
	if status := C.bridge_open(api, text, &n.context, &report); status != C.GB_OK {
		message := C.GoString(C.bridge_message(report.message))
		if isa != "" && name == "cpu" {
			return nil, fmt.Errorf("%w: instruction set %q: %s; want baseline, avx2 or avx512, or none for the best", ErrNoBackend, isa, message)
		}
		return nil, fmt.Errorf("%w: %s (code %d)", ErrNoBackend, message, report.value)
	}
	n.isa = C.GoString(C.bridge_isa(api, n.context))
	n.calls.New = func() any { return &call{workspace: make([]byte, workspaceBytes)} }
	return n, nil
}

// nativeStamp is the SHA-256 of the library that this build links.
func nativeStamp() string { return C.GoString(C.gradbus_stamp()) }

func (n *native) Name() string   { return n.name }
func (n *native) ISA() string    { return n.isa }
func (n *native) reason() string { return n.why }

// Alloc maps memory outside the Go heap; see allocate.
func (n *native) Alloc(float32s int) (*Buffer, error) { return allocate(float32s) }

// Close ends the backend. No other call may be under way.
func (n *native) Close() error {
	if n.closed.CompareAndSwap(false, true) {
		C.bridge_close(n.api, n.context)
	}
	return nil
}

// run calls f, once more with a larger workspace where the library asks for it.
func (n *native) run(op string, f func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status) (int, error) {
	if n.closed.Load() {
		return 0, fmt.Errorf("%s: %w", op, ErrClosed)
	}
	c := n.calls.Get().(*call)
	defer n.calls.Put(c)
	status := f(c, (*C.uint8_t)(unsafe.SliceData(c.workspace)), C.uint64_t(len(c.workspace)))
	if status == C.GB_WORKSPACE {
		c.workspace = make([]byte, int(c.report.value)+int(c.report.value)/4)
		status = f(c, (*C.uint8_t)(unsafe.SliceData(c.workspace)), C.uint64_t(len(c.workspace)))
	}
	if status != C.GB_OK {
		return 0, c.err(op, status)
	}
	return int(c.report.count), nil
}

// err is the library's report as an error of this package.
func (c *call) err(op string, status C.gb_status) error {
	r := &c.report
	text := "failed"
	if r.message != 0 {
		text = C.GoString(C.bridge_message(r.message))
	}
	switch status {
	case C.GB_ID:
		return &IDError{op, int(r.position), int64(r.value), int64(r.limit)}
	case C.GB_ROOM:
		return tooFew(op, int(r.limit), int(r.value))
	case C.GB_ORDER:
		return orderError(int(r.term), int(r.position))
	}
	sentinel := map[C.gb_status]error{
		C.GB_UNSUPPORTED: ErrUnsupported, C.GB_SHAPE: ErrShape, C.GB_ARGUMENT: ErrArgument, C.GB_NODE: ErrNode,
		C.GB_MEMORY: ErrMemory, C.GB_DEVICE: ErrDevice, C.GB_NO_DEVICE: ErrDevice,
	}[status]
	if sentinel == nil {
		sentinel = fmt.Errorf("%w: status %d", ErrDevice, status)
	}
	return fmt.Errorf("%s: %w: %s (position %d, have %d, want %d)", op, sentinel, text, r.position, r.value, r.limit)
}

func floats(s []float32) *C.float  { return (*C.float)(unsafe.SliceData(s)) }
func ints(s []int64) *C.int64_t    { return (*C.int64_t)(unsafe.SliceData(s)) }
func words(s []uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.SliceData(s)) }
func size[T any](s []T) C.int64_t  { return C.int64_t(len(s)) }

func bit(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}
