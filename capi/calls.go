//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"
	"time"
	"unsafe"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/trainer"
)

// Errors that no other package has.
var (
	errArgument = errors.New("not possible")
	errConfig   = errors.New("options")
	errCanceled = errors.New("canceled by gradbus_cancel")
	errClosed   = errors.New("closed")
	errFault    = errors.New("fault of the library")
	errFile     = errors.New("file")
	errVersion  = errors.New("no such version any more")
)

// codes are those of errors, the first that fits.
var codes = []struct {
	err  error
	code C.int32_t
}{
	{errFault, C.GRADBUS_INTERNAL}, {errCanceled, C.GRADBUS_CANCELED}, {trainer.ErrRewound, C.GRADBUS_REWOUND},
	{errClosed, C.GRADBUS_CLOSED},
	{errArgument, C.GRADBUS_ARGUMENT},
	{errFile, C.GRADBUS_FILE}, {errConfig, C.GRADBUS_CONFIG}, {trainer.ErrConfig, C.GRADBUS_CONFIG},
	{errVersion, C.GRADBUS_VERSION},
	{trainer.ErrOrder, C.GRADBUS_ORDER}, {&trainer.Refused{}, C.GRADBUS_JOB}, {trainer.ErrJobFailed, C.GRADBUS_JOB},
	{trainer.ErrServerLost, C.GRADBUS_SERVER}, {trainer.ErrNoAnswer, C.GRADBUS_SERVER},
	{fabric.ErrNoServer, C.GRADBUS_SERVER},
	{fabric.ErrRefused, C.GRADBUS_SERVER}, {fabric.ErrLost, C.GRADBUS_SERVER}, {fabric.ErrClosed, C.GRADBUS_SERVER},
	{context.DeadlineExceeded, C.GRADBUS_SERVER},
	{trainer.ErrLeft, C.GRADBUS_CLOSED}, {trainer.ErrWorkload, C.GRADBUS_ARGUMENT}, {trainer.ErrModel, C.GRADBUS_FILE},
}

func codeOf(err error) C.int32_t {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	var manifest schema.JobErrors
	var file *fs.PathError
	var network net.Error
	switch {
	case errors.As(err, &manifest):
		return C.GRADBUS_CONFIG
	case errors.As(err, &file):
		return C.GRADBUS_FILE
	case errors.As(err, &network):
		return C.GRADBUS_SERVER
	}
	return C.GRADBUS_INTERNAL
}

// end returns the code of an error, and stores its text for the thread.
func end(t *C.gradbus_thread, err error) C.int32_t {
	if err == nil {
		return C.GRADBUS_OK
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	to := unsafe.Slice((*byte)(unsafe.Pointer(&t.text[0])), len(t.text))
	if n := len(to) - 1; len(text) > n {
		text = strings.ToValidUTF8(text[:n-3], "") + "..."
	}
	to[copy(to, text)] = 0
	return codeOf(err)
}

// guarded returns the error of a body. A panic becomes an error, since it would end the caller's process.
func guarded(body func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errFault, p)
		}
	}()
	return body()
}

// now makes a call that does not wait.
func now(t *C.gradbus_thread, body func() error) C.int32_t { return end(t, guarded(body)) }

// call is one that waits. It is made on the thread of its caller, as often as the thread's patience ends: then its
// context ends with trainer.ErrAgain.
type call struct {
	ctx  context.Context // of what it waits for, without patience
	body func(context.Context) error
}

// wait makes a call that waits.
func wait(t *C.gradbus_thread, ctx context.Context, body func(context.Context) error) C.int32_t {
	if t.pending != 0 {
		return end(t, fmt.Errorf("%w: a call of this thread gave GRADBUS_AGAIN: want gradbus_resume first", trainer.ErrOrder))
	}
	c := &call{ctx, body}
	err := c.within(t.patience)
	if errors.Is(err, trainer.ErrAgain) {
		t.pending = C.uint64_t(all.add(c))
		return C.GRADBUS_AGAIN
	}
	return end(t, err)
}

// within makes the call, for as long as a patience lasts.
func (c *call) within(ms C.int32_t) error {
	if ms < 0 {
		return guarded(func() error { return c.body(c.ctx) })
	}
	ctx, stop := context.WithTimeoutCause(c.ctx, time.Duration(ms)*time.Millisecond, trainer.ErrAgain)
	defer stop()
	return guarded(func() error { return c.body(ctx) })
}

// beside makes a body that cannot be interrupted one that can: it runs beside the caller's thread where that has no
// patience for ever.
func beside(t *C.gradbus_thread, ctx context.Context, body func() error) C.int32_t {
	var err error
	var done chan struct{}
	forever := t.patience < 0
	return wait(t, ctx, func(ctx context.Context) error {
		if forever {
			return body()
		}
		if done == nil {
			done = make(chan struct{})
			go func() {
				defer close(done)
				err = guarded(body)
			}()
		}
		select {
		case <-done:
			return err
		case <-ctx.Done():
		}
		if context.Cause(ctx) != trainer.ErrAgain {
			<-done // which ends by the same cause
			return err
		}
		return trainer.ErrAgain
	})
}

//export go_resume
func go_resume(t *C.gradbus_thread) C.int32_t {
	if t.pending == 0 {
		return end(t, fmt.Errorf("%w: resume: no call of this thread gave GRADBUS_AGAIN", trainer.ErrOrder))
	}
	c, err := get[*call](uint64(t.pending))
	if err == nil {
		err = c.within(t.patience)
	}
	if errors.Is(err, trainer.ErrAgain) {
		return C.GRADBUS_AGAIN
	}
	all.remove(uint64(t.pending))
	t.pending = 0
	return end(t, err)
}

// handles maps the numbers that callers use to objects.
type handles struct {
	mu   sync.RWMutex // a leaf
	last uint64
	of   map[uint64]any
}

var all = &handles{of: map[uint64]any{}}

// spread makes numbers that counting does not reach; since it is odd, and times gathered is 1, each comes from one.
const (
	spread   = 0x9e3779b97f4a7c15
	gathered = 0xf1de83e19937733d
)

func (h *handles) add(what any) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	h.of[h.last*spread] = what
	return h.last * spread
}

func (h *handles) remove(handle uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.of, handle)
}

// get returns the object of a handle.
func get[T any](handle uint64) (T, error) {
	all.mu.RLock()
	what, last := all.of[handle], all.last
	all.mu.RUnlock()
	is, ok := what.(T)
	if number := handle * gathered; !ok && what == nil && number >= 1 && number <= last {
		return is, fmt.Errorf("%w: handle %#x is gone", errClosed, handle)
	} else if !ok {
		return is, fmt.Errorf("%w: handle %#x: want one that this library gave, for this kind of call", errArgument, handle)
	}
	return is, nil
}
