package harness

import (
	"runtime"
	"testing"
)

// A member in a process of its own is held to the processors that it is told; 0 is all, and so is company.
func TestLimitProcs(t *testing.T) {
	before := runtime.GOMAXPROCS(3)
	defer runtime.GOMAXPROCS(before)
	for _, c := range []struct {
		alone bool
		n     int
		want  int
	}{{true, 0, 3}, {false, 1, 3}, {true, 2, 2}} {
		(&Member{alone: c.alone}).LimitProcs(c.n)
		if got := runtime.GOMAXPROCS(0); got != c.want {
			t.Errorf("alone %t, told %d: %d processors, want %d", c.alone, c.n, got, c.want)
		}
	}
}
