package testkit

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Clock is the machine's clock for a test that sets it: it is handed in where a program has time.Now. The zero value is
// not set off.
type Clock struct{ off atomic.Int64 }

// Now returns time.Now with the date changed by all jumps so far, and with the same monotonic reading, which
// differences use.
func (c *Clock) Now() time.Time { return jumped(time.Now(), time.Duration(c.off.Load())) }

// Jump sets the clock forward, or back, by whole seconds.
func (c *Clock) Jump(by time.Duration) { c.off.Add(int64(by.Truncate(time.Second))) }

// jumped changes the date alone, which no method of time.Time does: the seconds of a time with a monotonic reading are
// 33 bits above 30 of nanoseconds in its first word.
func jumped(now time.Time, by time.Duration) time.Time {
	if now == now.Round(0) {
		panic("no monotonic reading: a clock cannot be set within synctest")
	}
	*(*uint64)(unsafe.Pointer(&now)) += uint64(by/time.Second) << 30
	return now
}
