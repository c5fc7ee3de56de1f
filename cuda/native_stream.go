//go:build native

package cuda

/*
#include <errno.h>
#include "bridge.h"
#ifdef __linux__
#include <sys/eventfd.h>
static int bridge_eventfd(void) { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); }
#else
static int bridge_eventfd(void) { errno = ENOSYS; return -1; }
#endif

static gb_status bridge_stream_open(const gb_api* api, gb_context* context, gb_stream** stream, gb_report* r) {
  r->size = sizeof *r;
  return api->stream_open(context, stream, r);
}
static void bridge_stream_close(const gb_api* api, gb_context* context, gb_stream* stream) {
  api->stream_close(context, stream);
}
static gb_status bridge_stream_wait(const gb_api* api, gb_context* context, gb_stream* stream, gb_report* r) {
  r->size = sizeof *r;
  return api->stream_wait(context, stream, r);
}
static gb_status bridge_stream_notify(const gb_api* api, gb_context* context, gb_stream* stream, int fd, gb_report* r) {
  r->size = sizeof *r;
  return api->stream_notify(context, stream, fd, r);
}
static gb_status bridge_device_alloc(const gb_api* api, gb_context* context, uint64_t bytes, void** p, gb_report* r) {
  r->size = sizeof *r;
  return api->device_alloc(context, bytes, p, r);
}
static void bridge_device_free(const gb_api* api, gb_context* context, void* p) { api->device_free(context, p); }
static gb_status bridge_copy(const gb_api* api, gb_context* context, gb_stream* stream, void* to, void* from,
                             int64_t bytes) {
  gb_copy_args a = {sizeof a, 0, from, to, bytes};
  gb_workspace w = {0, 0};
  return api->copy ? api->copy(context, stream, &a, w, NULL) : GB_UNSUPPORTED;
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// nativeQueue is a stream of the library. Its workspace lies on the device and is shared by all that is queued, which
// runs in order.
type nativeQueue struct {
	n         *native
	stream    *C.gb_stream
	workspace *DeviceMemory
	replaced  []*DeviceMemory // smaller workspaces that queued commands may still use
}

func (n *native) openQueue() (queue, error) {
	if n.regions == nil {
		return nil, fmt.Errorf("%w: backend %s has no device of its own", ErrUnsupported, n.name)
	}
	if n.closed.Load() {
		return nil, ErrClosed
	}
	q := &nativeQueue{n: n, workspace: &DeviceMemory{}}
	var report C.gb_report
	if status := C.bridge_stream_open(n.api, n.context, &q.stream, &report); status != C.GB_OK {
		return nil, n.failure("stream", status, &report)
	}
	return q, nil
}

func (q *nativeQueue) eventfd() (int, error) {
	fd, err := C.bridge_eventfd()
	if fd < 0 {
		return 0, err
	}
	return int(fd), nil
}

func (q *nativeQueue) alloc(bytes int) (*DeviceMemory, error) {
	const op = "alloc on device"
	if bytes < 0 {
		return nil, fmt.Errorf("%s: %w: %d bytes", op, ErrArgument, bytes)
	}
	if bytes == 0 {
		return &DeviceMemory{}, nil
	}
	n := q.n
	var p unsafe.Pointer
	var report C.gb_report
	if status := C.bridge_device_alloc(n.api, n.context, C.uint64_t(bytes), &p, &report); status != C.GB_OK {
		return nil, n.failure(op, status, &report)
	}
	n.regions.add(p, bytes, onDevice)
	return &DeviceMemory{region: Vector{p, bytes, Uint8}, free: func() {
		n.regions.remove(p)
		if !n.closed.Load() {
			C.bridge_device_free(n.api, n.context, p)
		}
	}}, nil
}

// reserve makes the workspace as large as a batch needs.
func (q *nativeQueue) reserve(bytes int) error {
	if q.workspace.len() >= bytes {
		return nil
	}
	larger, err := q.alloc(bytes + bytes/4)
	if err != nil {
		return err
	}
	q.replaced = append(q.replaced, q.workspace)
	q.workspace = larger
	return nil
}

func (q *nativeQueue) submit(b *Batch) (int, error) {
	c, err := q.n.batchOf(b)
	if err != nil {
		return 0, err
	}
	if c.host {
		return 0, fmt.Errorf("submit: %w: the batch names memory that the device cannot reach; use AllocDevice or Alloc",
			ErrArgument)
	}
	if len(c.encoded) == 0 {
		return 0, nil
	}
	if err := q.reserve(c.needs); err != nil {
		return 0, err
	}
	ws := q.workspace.region
	list, n, answer := c.addresses()
	status := C.bridge_submit(q.n.table, q.n.context, q.stream, list, n, (*C.uint8_t)(ws.data), C.uint64_t(ws.n), answer)
	c.ran = len(c.encoded)
	if status != C.GB_OK {
		c.ran = int(c.answer.done)
		err = c.failed(c.ran, status, &c.answer.report)
	}
	q.n.counted.n.Add(uint64(c.ran))
	return c.ran, err
}

func (q *nativeQueue) outcome(b *Batch) error {
	c := b.commands.(*nativeBatch)
	c.tell()
	for i, encoded := range c.encoded[:c.ran] {
		if r := &encoded.report; r.status == C.GB_BUSY {
			return fmt.Errorf("command %d: %w: it never ended", i, ErrDevice)
		} else if r.status != C.GB_OK {
			return c.failed(i, r.status, r)
		}
	}
	return nil
}

func (q *nativeQueue) copy(to, from Vector) error {
	if from.n == 0 {
		return nil
	}
	if q.n.regions.of(to) == onHost || q.n.regions.of(from) == onHost {
		return fmt.Errorf("copy: %w: memory that the device cannot reach; use AllocDevice or Alloc", ErrArgument)
	}
	status := C.bridge_copy(q.n.api, q.n.context, q.stream, to.data, from.data, C.int64_t(from.n*from.dtype.Bytes()))
	if status != C.GB_OK {
		return q.n.failure("copy", status, &C.gb_report{})
	}
	return nil
}

func (q *nativeQueue) notify(fd int) error {
	var report C.gb_report
	if status := C.bridge_stream_notify(q.n.api, q.n.context, q.stream, C.int(fd), &report); status != C.GB_OK {
		return q.n.failure("wait", status, &report)
	}
	return nil
}

func (q *nativeQueue) wait() error {
	var report C.gb_report
	status := C.bridge_stream_wait(q.n.api, q.n.context, q.stream, &report)
	for _, m := range q.replaced {
		m.Free()
	}
	q.replaced = q.replaced[:0]
	if status != C.GB_OK {
		return q.n.failure("wait", status, &report)
	}
	return nil
}

func (q *nativeQueue) close() {
	q.wait()
	q.workspace.Free()
	C.bridge_stream_close(q.n.api, q.n.context, q.stream)
}
