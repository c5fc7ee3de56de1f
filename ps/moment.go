package ps

import (
	"sync/atomic"
	"time"
)

// moment is when something last happened, set and read by any goroutine; zero before it did. It is kept as the clock
// gave it, with its monotonic reading: a number of nanoseconds since 1970 loses that, and an hour that the machine's
// clock is set forward would be an hour in which nothing had happened.
type moment struct{ at atomic.Pointer[time.Time] }

func (m *moment) set(now time.Time) { m.at.Store(&now) }

func (m *moment) get() time.Time {
	if at := m.at.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// now is the time, by the clock that was handed in.
func (s *Server) now() time.Time {
	if s.clock == nil {
		return time.Now()
	}
	return s.clock()
}
