package fabric

import (
	"sync"
	"time"
)

// Limiter bounds how much is said in a second, refusals for example, so that a flood of bad frames costs its sender's
// line and not ours. It is safe for concurrent use.
type Limiter struct {
	PerSecond int // at most so many times; 0 allows none

	mu     sync.Mutex
	second int64
	used   int
}

// Allow reports whether one more may go out at a time.
func (l *Limiter) Allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := now.Unix(); s != l.second {
		l.second, l.used = s, 0
	}
	l.used++
	return l.used <= l.PerSecond
}
