package fabric

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"gradbus/internal/loglimit"
	"gradbus/internal/testkit"
)

// A client that has the server complain without end, in formats of its own, is limited, and hides neither what the
// server says itself nor a reader that is cut off.
func TestNoisyClientHidesNoServerErrors(t *testing.T) {
	var out testkit.Text
	l := &serverLog{log: loglimit.Logger(slog.New(slog.NewTextHandler(&out, nil)))}
	const noisy = 10_000
	for n := range noisy {
		l.Errorf(fmt.Sprintf("127.0.0.1:%d - cid:%d - Subscription Violation - Subject %q, SID %%d", n, n, fmt.Sprint(n)), n)
		l.Warnf("%s - %s%s", fmt.Sprintf("127.0.0.1:1 - cid:%d", n), "Readloop processing time", "")
	}
	if lines := strings.Count(out.String(), "\n"); lines > noisy/10 {
		t.Errorf("%d lines of %d", lines, 2*noisy)
	}
	l.Errorf("Error trying to accept: %v", errors.New("too many open files"))
	l.Warnf("JetStream is short of %s", "room")
	l.Noticef("127.0.0.1:2 - cid:7 - Slow Consumer Detected: %d", 1)
	for _, wants := range []string{"too many open files", "short of room", "Slow Consumer Detected: 1"} {
		if !strings.Contains(out.String(), wants) {
			t.Errorf("the log lacks %q", wants)
		}
	}
}
