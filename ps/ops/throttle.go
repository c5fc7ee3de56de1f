package ops

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// throttle slows down who guesses: after some free failures an address waits before it may try again, twice as long
// after each failure. Others are not slowed: it goes by address, or by network of 64 bits in IPv6, of which one user
// has many addresses. Whoever shares an address with one who guesses (a proxy, a machine) waits with them at the form,
// but is let in with a cookie or a header as ever.
type throttle struct {
	now func() time.Time

	mu     sync.Mutex
	failed map[netip.Prefix]failures // at most addressesMax
}

// failures of an address.
type failures struct {
	count int
	last  time.Time
}

const (
	failuresFree   = 5
	failureWait    = time.Second // after as many
	failureWaitMax = 30 * time.Second
	failureForgot  = 10 * time.Minute // after the last one
	// addressesMax bounds the table, some 100 KiB. Where it is full, the address that failed longest ago is forgotten.
	addressesMax = 1024
)

func newThrottle(now func() time.Time) *throttle {
	return &throttle{now: now, failed: map[netip.Prefix]failures{}}
}

// origin is whose failures count together: the zero value for what is no address.
func origin(remote string) netip.Prefix {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // which is within an address's length
	return p
}

// wait is how long an address has to wait until it may try; 0 lets it try now. A try that is let counts as a failure
// until succeeded takes that back, so that many at once are no more than one.
func (t *throttle) wait(remote string) time.Duration {
	from, now := origin(remote), t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.failed[from]
	if now.Sub(f.last) >= failureForgot {
		f.count = 0
	}
	if f.count >= failuresFree {
		pause := min(failureWait<<min(f.count-failuresFree, 10), failureWaitMax)
		if left := f.last.Add(pause).Sub(now); left > 0 {
			return left
		}
	}
	t.makeRoom(from)
	t.failed[from] = failures{f.count + 1, now}
	return 0
}

// makeRoom forgets an address where another one needs its place.
func (t *throttle) makeRoom(from netip.Prefix) {
	if _, known := t.failed[from]; known || len(t.failed) < addressesMax {
		return
	}
	var oldest netip.Prefix
	var at time.Time
	for p, f := range t.failed {
		if at.IsZero() || f.last.Before(at) {
			oldest, at = p, f.last
		}
	}
	delete(t.failed, oldest)
}

// succeeded forgets what an address did wrong.
func (t *throttle) succeeded(remote string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.failed, origin(remote))
}
