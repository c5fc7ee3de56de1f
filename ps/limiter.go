package ps

import (
	"sync"
	"time"
)

// limiter bounds how many refusals are sent, so that a flood of bad frames costs its sender's line and not ours. What it
// holds back is still counted.
type limiter struct {
	perSecond int

	mu     sync.Mutex
	second int64
	used   int
}

// allow reports whether one more may go out at a time.
func (l *limiter) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := now.Unix(); s != l.second {
		l.second, l.used = s, 0
	}
	l.used++
	return l.used <= l.perSecond
}
