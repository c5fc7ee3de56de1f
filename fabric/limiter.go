package fabric

import (
	"sync"
	"time"
)

// Limiter bounds how many refusals are sent, so that a flood of bad frames costs its sender's line and not ours. What it
// holds back is still counted.
type Limiter struct {
	PerSecond int

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
