//go:build native

package cuda

/*
#include "bridge.h"

// Everything that these read lies outside the Go heap or is pinned, and they neither keep pointers nor call back.
#cgo noescape bridge_submit
#cgo nocallback bridge_submit
#cgo noescape bridge_submit_many
#cgo nocallback bridge_submit_many
#cgo noescape bridge_workspace
#cgo nocallback bridge_workspace
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// nativeBatch is a batch in the library's own form. All pointers but those to Go's reports lead outside the Go heap.
type nativeBatch struct {
	owner     *native
	arena     arena
	list      *C.gb_command // as the library reads it
	room      int
	encoded   []*C.bridge_command // what list points to
	answer    *C.bridge_batch
	wanted    []wantedReport
	pins      pins    // of everything that commands name
	needs     int     // bytes of workspace that the largest command needs
	workspace *Buffer // of the synchronous form
	device    bool    // some data lie in the device's memory
	host      bool    // some data lie where the device cannot read them
	ran       int     // how many commands the last run came to
}

type wantedReport struct {
	command int
	to      *Report
}

// NewBatch: see the interface.
func (n *native) NewBatch() *Batch {
	return newBatch(&nativeBatch{owner: n, arena: arena{alloc: n.Alloc}})
}

// arena is memory outside the Go heap, handed out in turn; on a backend with a device the device can write to it.
type arena struct {
	alloc  func(float32s int) (*Buffer, error)
	blocks []*Buffer
	at     int     // block in use
	used   uintptr // bytes of it
}

const arenaBytes = 64 << 10

// take gives memory aligned to 64 bytes. What it holds is anything.
func (a *arena) take(bytes uintptr) (unsafe.Pointer, error) {
	for ; a.at < len(a.blocks); a.at, a.used = a.at+1, 0 {
		block := a.blocks[a.at].values
		if a.used+bytes <= uintptr(len(block))*4 {
			p := unsafe.Add(unsafe.Pointer(unsafe.SliceData(block)), a.used)
			a.used += (bytes + 63) &^ 63
			return p, nil
		}
	}
	block, err := a.alloc(int(max(bytes, arenaBytes)+3) / 4)
	if err != nil {
		return nil, err
	}
	a.blocks = append(a.blocks, block)
	return a.take(bytes)
}

func (a *arena) reset() { a.at, a.used = 0, 0 }

func (a *arena) free() {
	for _, block := range a.blocks {
		block.Free()
	}
	a.blocks = nil
	a.reset()
}

func (c *nativeBatch) len() int { return len(c.encoded) }

func (c *nativeBatch) add(a command) error {
	if c.owner.closed.Load() {
		return ErrClosed
	}
	if err := c.grow(); err != nil {
		return err
	}
	e, err := c.encode(a)
	if err != nil {
		return err
	}
	if err := c.reserve(&e); err != nil {
		return err
	}
	for _, p := range e.held.p[:e.n] {
		c.pins.pin(unsafe.Pointer(p))
	}
	c.device, c.host = c.device || e.device, c.host || e.host
	if report := a.reported(); report != nil && *report != nil {
		c.wanted = append(c.wanted, wantedReport{len(c.encoded), *report})
	}
	i, encoded := len(c.encoded), (*C.bridge_command)(e.command)
	at := &unsafe.Slice(c.list, c.room)[i]
	at.op, at.reserved = e.op, 0
	address(unsafe.Pointer(&at.args), e.command)
	address(unsafe.Pointer(&at.report), unsafe.Pointer(&encoded.report))
	c.encoded = append(c.encoded, encoded)
	return nil
}

// encode writes the command. Data of terms are pinned at once; a command refused later leaves them pinned until reset.
func (c *nativeBatch) encode(a command) (encoding, error) {
	e := encoding{regions: c.owner.regions, pins: &c.pins}
	var err error
	if e.command, err = c.arena.take(C.sizeof_bridge_command); err != nil {
		return e, err
	}
	var terms uintptr
	switch a := a.(type) {
	case *Merge:
		terms = rowsTermBytes(a.Terms)
	case *Average:
		terms = termBytes(a.Terms)
	case *AverageApply:
		terms = termBytes(a.Terms)
	}
	if terms > 0 {
		if e.terms, err = c.arena.take(terms); err != nil {
			return e, err
		}
	}
	e.encode(a)
	return e, nil
}

func (e *encoding) encode(a command) {
	switch a := a.(type) {
	case *BagForward:
		e.bagForward(a)
	case *BagBackward:
		e.bagBackward(a)
	case *Coalesce:
		e.coalesce(a)
	case *Merge:
		e.merge(a)
	case *ApplyRows:
		e.applyRows(a)
	case *CoalesceApply:
		e.coalesceApply(a)
	case *ApplyDense:
		e.applyDense(a)
	case *Average:
		e.average(a)
	case *AverageApply:
		e.averageApply(a)
	case *MatMul:
		e.matMul(a)
	case *SoftmaxCrossEntropy:
		e.softmaxCrossEntropy(a)
	case *lookForNonFinite:
		e.firstNonFinite(a.values)
	case *copying:
		e.copy(a.to, a.from)
	}
}

// grow makes room for one more command in the list.
func (c *nativeBatch) grow() error {
	if c.answer == nil {
		p, err := c.arena.take(C.sizeof_bridge_batch)
		if err != nil {
			return err
		}
		clear(unsafe.Slice((*uint64)(p), C.sizeof_bridge_batch/8))
		c.answer = (*C.bridge_batch)(p)
		c.answer.report.size = C.sizeof_gb_report
	}
	if len(c.encoded) < c.room {
		return nil
	}
	room := max(64, 2*c.room)
	p, err := c.arena.take(uintptr(room) * C.sizeof_gb_command)
	if err != nil {
		return err
	}
	const words = C.sizeof_gb_command / 8
	if c.room > 0 {
		copy(unsafe.Slice((*uint64)(p), room*words), unsafe.Slice((*uint64)(unsafe.Pointer(c.list)), c.room*words))
	}
	c.list, c.room = (*C.gb_command)(p), room
	return nil
}

// reserve sees to it that the workspace suffices for the command.
func (c *nativeBatch) reserve(e *encoding) error {
	bytes := uint64(C.bridge_workspace(c.owner.api, c.owner.context, e.op, (*C.uint8_t)(e.command)))
	if bytes == math.MaxUint64 {
		return fmt.Errorf("%s: %w: the library does not know it", opName(e.op), ErrUnsupported)
	}
	c.needs = max(c.needs, int(bytes))
	if have := c.workspace; have != nil && len(have.values)*4 >= c.needs {
		return nil
	}
	larger, err := allocate(max(c.needs+c.needs/4, 4096) / 4)
	if err != nil {
		return err
	}
	c.workspace.Free()
	c.workspace = larger
	return nil
}

func (c *nativeBatch) count(i int) int {
	switch r := &c.encoded[i].report; {
	case i >= c.ran:
		return 0
	case unsafe.Slice(c.list, c.room)[i].op == C.GB_OP_FIRST_NONFINITE:
		return int(r.position)
	default:
		return int(r.count)
	}
}

func (c *nativeBatch) report(i int) Report {
	if i >= c.ran {
		return Report{}
	}
	return reportOf(&c.encoded[i].report)
}

// tell fills the reports that the arguments named.
func (c *nativeBatch) tell() {
	for _, w := range c.wanted {
		*w.to = c.report(w.command)
	}
}

func (c *nativeBatch) reset() {
	c.pins.unpin()
	clear(c.wanted)
	c.wanted, c.encoded = c.wanted[:0], c.encoded[:0]
	c.list, c.room, c.answer, c.needs, c.ran = nil, 0, nil, 0, 0
	c.device, c.host = false, false
	c.arena.reset()
}

func (c *nativeBatch) free() {
	c.arena.free()
	c.workspace.Free()
	c.workspace = nil
}

// batchOf is a batch that this backend may run now.
func (n *native) batchOf(b *Batch) (*nativeBatch, error) {
	c, ok := b.commands.(*nativeBatch)
	switch {
	case !ok || c.owner != n:
		return nil, fmt.Errorf("submit: %w: the batch is another backend's", ErrArgument)
	case n.closed.Load():
		return nil, fmt.Errorf("submit: %w", ErrClosed)
	case b.stream != nil:
		return nil, fmt.Errorf("submit: %w: the batch is queued on a stream and not waited for", ErrArgument)
	}
	return c, nil
}

// Submit: see the interface.
func (n *native) Submit(b *Batch) error { return n.submit(b, 1) }

// submit runs the batch several times in one crossing.
func (n *native) submit(b *Batch, times int) error {
	c, err := n.batchOf(b)
	if err != nil {
		return err
	}
	if c.device {
		return fmt.Errorf("submit: %w: memory of a device is for the batches of a stream", ErrArgument)
	}
	if len(c.encoded) == 0 {
		return nil
	}
	ws := c.workspace.values
	at, bytes := (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(ws))), C.uint64_t(len(ws)*4)
	list, count, answer := c.addresses()
	var status C.gb_status
	if times == 1 {
		status = C.bridge_submit(n.table, n.context, nil, list, count, at, bytes, answer)
	} else {
		status = C.bridge_submit_many(n.table, n.context, list, count, at, bytes, answer, C.int64_t(times))
	}
	c.ran = len(c.encoded)
	if status != C.GB_OK {
		err = c.failed(int(c.answer.done), status, &c.answer.report)
		c.ran = int(c.answer.done) + 1
	}
	n.counted.n.Add(uint64(c.ran * times))
	c.tell()
	return err
}

// addresses returns the arguments of the library as numbers, because cgo would check the memory that pointers refer to.
func (c *nativeBatch) addresses() (list C.uintptr_t, n C.int64_t, answer C.uintptr_t) {
	return C.uintptr_t(uintptr(unsafe.Pointer(c.list))), C.int64_t(len(c.encoded)),
		C.uintptr_t(uintptr(unsafe.Pointer(c.answer)))
}

func (c *nativeBatch) failed(i int, status C.gb_status, r *C.gb_report) error {
	return fmt.Errorf("command %d: %w", i, c.owner.failure(opName(unsafe.Slice(c.list, c.room)[i].op), status, r))
}
