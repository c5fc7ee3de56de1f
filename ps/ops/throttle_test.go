package ops

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// The first tries are free, and then one comes after each wait; a success gives them back.
func TestThrottle(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := newThrottle(func() time.Time { return now })
	const at = "192.0.2.1:1000"
	for range triesFree {
		if left := s.wait(at); left != 0 {
			t.Fatalf("a free try waits %v", left)
		}
	}
	for range 5 {
		for range 3 { // what is refused makes nothing longer
			if left := s.wait(at).Round(100 * time.Millisecond); left != tryEvery { // the limiter counts in fractions
				t.Fatalf("waits %v, want %v", left, tryEvery)
			}
		}
		now = now.Add(tryEvery - time.Second)
		if left := s.wait("192.0.2.1:2000").Round(100 * time.Millisecond); left != time.Second {
			t.Fatalf("from another port waits %v", left)
		}
		if left := s.wait("192.0.2.2:1000"); left != 0 {
			t.Fatalf("somebody else waits %v", left)
		}
		s.succeeded("192.0.2.2:1000")
		now = now.Add(time.Second + time.Millisecond)
		if left := s.wait(at); left != 0 {
			t.Fatalf("after the wait waits %v", left)
		}
	}
	s.succeeded(at)
	for range triesFree {
		if left := s.wait(at); left != 0 {
			t.Fatalf("after a success waits %v", left)
		}
	}
	if s.wait(at) == 0 {
		t.Fatal("is not slowed again")
	}
	now = now.Add(triesFree * tryEvery)
	if left := s.wait(at); left != 0 {
		t.Fatalf("after a pause waits %v", left)
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{"192.0.2.1:80": "192.0.2.1/32", "[::ffff:192.0.2.1]:80": "192.0.2.1/32",
		"[2001:db8::1:2:3:4]:80": "2001:db8::/64",
		"[fe80::1%eth0]:80":      "fe80::/64", "": "invalid Prefix", "pipe": "invalid Prefix"} {
		if got := origin(remote).String(); got != want {
			t.Errorf("%q: %s, want %s", remote, got, want)
		}
	}
}

// However many addresses guess, the table is bounded, and the latest are those that are slowed.
func TestThrottleIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := newThrottle(func() time.Time { return now })
	const latest = "198.51.100.1:1"
	for i := range 3 * addressesMax {
		now = now.Add(time.Microsecond)
		s.wait(fmt.Sprintf("10.%d.%d.1:1", i>>8, i&255))
		s.wait(latest)
	}
	if n := len(s.try); n != addressesMax {
		t.Errorf("%d addresses, want %d", n, addressesMax)
	}
	if s.wait(latest) == 0 {
		t.Error("who guesses most is forgotten")
	}
}

// A flood of wrong tokens at the form is let try a few times; the token in a header, a cookie and the form after the
// wait go on to work.
func TestLoginSlowsDown(t *testing.T) {
	t.Parallel()
	s := start(t, withToken)
	var mu sync.Mutex
	now := time.Now()
	s.tokens.Load().page.throttle.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	form := func(secret string) (*http.Response, string) {
		return s.do(t, "POST", "/login", strings.NewReader(url.Values{"token": {secret}}.Encode()),
			"Content-Type: application/x-www-form-urlencoded")
	}
	in, _ := form(someToken)
	cookie := in.Cookies()[0]
	tried := 0
	for i := range 50 {
		answer, body := form(fmt.Sprintf("guess-%d", i))
		switch answer.StatusCode {
		case http.StatusForbidden:
			tried++
		case http.StatusTooManyRequests:
			if answer.Header.Get("Retry-After") != "10" || !strings.Contains(body, "Try again in 10 s") ||
				!strings.Contains(body, "<form") {
				t.Fatalf("refused with %v: %q", answer.Header, body)
			}
		default:
			t.Fatalf("status %d", answer.StatusCode)
		}
	}
	if tried != triesFree {
		t.Errorf("%d of 50 guesses were tried, want %d", tried, triesFree)
	}
	if answer, _ := form(someToken); answer.StatusCode != http.StatusTooManyRequests {
		t.Errorf("within the wait a guess is told from others: %d", answer.StatusCode)
	}
	for _, header := range []string{"Cookie: gradbus=" + cookie.Value, "Authorization: Bearer " + someToken} {
		if answer, _ := s.get(t, "/api/v1/status", header); answer.StatusCode != 200 {
			t.Errorf("%s: %d", header, answer.StatusCode)
		}
	}
	if answer, _ := s.get(t, "/login"); answer.StatusCode != 200 {
		t.Errorf("the form: %d", answer.StatusCode)
	}
	mu.Lock()
	now = now.Add(tryEvery + time.Millisecond)
	mu.Unlock()
	if answer, _ := form(someToken); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("after the wait: %d", answer.StatusCode)
	}
}
