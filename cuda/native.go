//go:build native

package cuda

/*
#cgo CPPFLAGS: -I${SRCDIR}/../csrc/include
#cgo CFLAGS: -Wall -Wextra
#include <stdlib.h>
#include "bridge.h"

// The library neither keeps pointers nor calls back, so a call costs less. There is no noescape for bridge_call on
// purpose: a command holds addresses as numbers, so what they point to must not lie on a stack, which may move.
#cgo nocallback bridge_call
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
	api     *C.gb_api   // a copy outside the Go heap
	table   C.uintptr_t // its address: cgo looks into what a pointer leads to, which costs 10 ns a call
	context *C.gb_context
	name    string
	isa     string
	why     string
	threads int
	calls   sync.Pool   // of *call
	regions *regions    // of a backend with a device, else nil
	gathers bool        // the library has the operation
	lost    atomic.Bool // the device: outputs in place may be half written
	cpu     *native     // of a GPU's: for calls that the CPU does sooner, or nil where the GPU does all
	closed  atomic.Bool
	counted callCounter
}

// call is the memory of one call. The garbage collector sees numbers alone in command and terms.
type call struct {
	command   [commandWords]uint64 // a bridge_command
	terms     []uint64             // gb_terms or gb_rows_terms
	workspace []byte
	pins      pins // what the terms point to
}

const commandWords = C.sizeof_bridge_command / 8

// workspaceBytes is the initial workspace of a call; a larger one, found in the first call, is kept.
const workspaceBytes = 64 << 10

func openNative(name, why string, o Options) (Backend, error) {
	api, err := findAPI(name, o.Library)
	if err != nil {
		return nil, err
	}
	if o.Library != "" {
		why += "; kernels of " + o.Library
	}
	n := &native{name: C.GoString(api.name), why: why, threads: max(o.Threads, 1)}
	n.api = (*C.gb_api)(C.malloc(C.sizeof_gb_api))
	n.table = C.uintptr_t(uintptr(unsafe.Pointer(n.api)))
	C.bridge_adopt(api, n.api)
	text := C.CString(o.ISA)
	defer C.free(unsafe.Pointer(text))
	var report C.gb_report
	if status := C.bridge_open(n.api, text, C.uint32_t(n.threads), &n.context, &report); status != C.GB_OK {
		C.free(unsafe.Pointer(n.api))
		message := C.GoString(report.message)
		if o.ISA != "" && name == "cpu" {
			return nil, fmt.Errorf("%w: instruction set %q: %s; want baseline, avx2 or avx512, or none for the best",
				ErrNoBackend, o.ISA, message)
		}
		return nil, fmt.Errorf("%w: %s (code %d)", ErrNoBackend, message, report.value)
	}
	n.isa, n.gathers = C.GoString(C.bridge_isa(n.api, n.context)), n.api.gather != nil
	n.calls.New = func() any { return &call{workspace: make([]byte, workspaceBytes)} }
	if C.bridge_has_device(n.api) == 0 {
		return n, nil
	}
	n.regions, n.threads = new(regions), 1
	if name == "cuda" && !o.EveryCall {
		cpu, err := openNative("cpu", why, Options{Threads: o.Threads, Library: o.Library})
		if err != nil {
			n.Close()
			return nil, err
		}
		n.cpu = cpu.(*native)
		n.why += "; calls that " + n.cpu.isa + " ends sooner stay on the CPU"
	}
	return n, nil
}

// nativeStamp is the SHA-256 of the library that this build links.
func nativeStamp() string { return C.GoString(C.gradbus_stamp()) }

func (n *native) Name() string   { return n.name }
func (n *native) ISA() string    { return n.isa }
func (n *native) Threads() int   { return n.threads }
func (n *native) reason() string { return n.why }

func (n *native) addCalls(by map[string]uint64) {
	by[n.name] += n.counted.n.Load()
	if n.cpu != nil {
		n.cpu.addCalls(by)
	}
}

// Close ends the backend. No other call may be under way, and batches, streams and memory of it must be gone.
func (n *native) Close() error {
	if !n.closed.CompareAndSwap(false, true) {
		return nil
	}
	C.bridge_close(n.api, n.context)
	if n.cpu != nil {
		return n.cpu.Close()
	}
	return nil
}

// begin gives the memory of a call, to be handed to run.
func (n *native) begin() *call { return n.calls.Get().(*call) }

// encoding gives where to encode the call's command, which has so many bytes of terms.
func (n *native) encoding(c *call, termBytes uintptr) encoding {
	e := encoding{command: unsafe.Pointer(&c.command), regions: n.regions}
	if termBytes > 0 {
		c.terms = grow(c.terms, int(termBytes/8))
		e.terms, e.pins = unsafe.Pointer(unsafe.SliceData(c.terms)), &c.pins
		e.holdAddress(e.terms)
	}
	return e
}

// run makes the call, once more with a larger workspace where the library asks for it, and takes the memory back. The
// report is the caller's, or nil.
func (n *native) run(c *call, e *encoding, report *Report) (int, error) {
	count, err := n.cross(c, e)
	if report != nil {
		*report = reportOf(e.report())
	}
	if e.pins != nil {
		c.pins.unpin()
	}
	n.calls.Put(c)
	return count, err
}

func (n *native) cross(c *call, e *encoding) (int, error) {
	if n.closed.Load() {
		return 0, fmt.Errorf("%s: %w", opName(e.op), ErrClosed)
	}
	if e.device {
		return 0, fmt.Errorf("%s: %w: memory of a device is for the batches of a stream", opName(e.op), ErrArgument)
	}
	if n.lost.Load() {
		return 0, fmt.Errorf("%s: %w before", opName(e.op), ErrDevice)
	}
	if n.cpu != nil && !e.work.paysOnDevice(n.cpu.threads) {
		return n.cpu.cross(c, e)
	}
	n.counted.n.Add(1)
	command := (*C.uint8_t)(e.command)
	status := C.bridge_call(n.table, n.context, e.op, command,
		(*C.uint8_t)(unsafe.SliceData(c.workspace)), C.uint64_t(len(c.workspace)), e.held)
	if status == C.GB_WORKSPACE {
		bytes := int(e.report().value)
		c.workspace = make([]byte, bytes+bytes/4)
		status = C.bridge_call(n.table, n.context, e.op, command,
			(*C.uint8_t)(unsafe.SliceData(c.workspace)), C.uint64_t(len(c.workspace)), e.held)
	}
	if status != C.GB_OK {
		return 0, n.failure(opName(e.op), status, e.report())
	}
	return int(e.report().count), nil
}

// failure is nativeError, and keeps that the device has failed.
func (n *native) failure(name string, status C.gb_status, r *C.gb_report) error {
	if status == C.GB_DEVICE {
		n.lost.Store(true)
	}
	return nativeError(name, status, r)
}

func reportOf(r *C.gb_report) Report {
	return Report{skipped: int64(r.skipped), nonFinite: int64(r.nonfinite)}
}

// nativeError is the library's report as an error of this package.
func nativeError(name string, status C.gb_status, r *C.gb_report) error {
	switch status {
	case C.GB_ID:
		return &idError{name, int(r.position), int64(r.value), int64(r.limit)}
	case C.GB_ROOM:
		return tooFew(name, int(r.limit), int(r.value))
	case C.GB_ORDER:
		return orderError(name, int(r.term), int(r.position))
	case C.GB_NONFINITE:
		return &NonFiniteError{name, int64(r.position), int64(r.value)}
	}
	var sentinel error
	switch status {
	case C.GB_UNSUPPORTED:
		sentinel = ErrUnsupported
	case C.GB_SHAPE:
		sentinel = ErrShape
	case C.GB_ARGUMENT:
		sentinel = ErrArgument
	case C.GB_NODE:
		sentinel = ErrNode
	case C.GB_MEMORY:
		sentinel = ErrMemory
	default:
		sentinel = ErrDevice
	}
	text := "failed"
	if r.message != nil {
		text = C.GoString(r.message)
	}
	return fmt.Errorf("%s: %w: %s (status %d, term %d, position %d, have %d, want %d)",
		name, sentinel, text, status, r.term, r.position, r.value, r.limit)
}

// pins keeps Go memory in place whose addresses C memory holds. A runtime.Pinner allocates from its sixth pin on, so
// each takes five: then pinning allocates nothing once the pinners are there.
type pins struct {
	pinners []runtime.Pinner
	n       int
}

const pinsEach = 5

func (p *pins) pin(at unsafe.Pointer) {
	if p.n == len(p.pinners)*pinsEach {
		p.pinners = append(p.pinners, runtime.Pinner{})
	}
	p.pinners[p.n/pinsEach].Pin(at)
	p.n++
}

func (p *pins) unpin() {
	for i := range (p.n + pinsEach - 1) / pinsEach {
		p.pinners[i].Unpin()
	}
	p.n = 0
}

func bit(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}
