package timerslack

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// slack is that of the calling thread, in nanoseconds.
func slack(t *testing.T) int {
	t.Helper()
	ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// TestStandard looks at a child by what it inherits. A shell cannot ask for it, but a process may read its own file.
func TestStandard(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, or is seen by other tests before
	before := slack(t)
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0) }()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 700_000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	inherited := func() string {
		out, err := exec.Command("cat", "/proc/self/timerslack_ns").Output()
		if err != nil {
			t.Skip("no timerslack_ns in /proc/self:", err)
		}
		return strings.TrimSpace(string(out))
	}
	if got := inherited(); got != "700000" {
		t.Fatalf("a child has %s ns, want the 700000 of its parent", got)
	}
	var got string
	if err := Standard(func() error { got = inherited(); return nil }); err != nil {
		t.Fatal(err)
	}
	if got != "50000" || slack(t) != 700_000 {
		t.Fatalf("within Standard a child has %s ns and after it the thread %d, want 50000 and 700000", got, slack(t))
	}
}
