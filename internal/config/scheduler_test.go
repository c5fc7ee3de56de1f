package config

import (
	"runtime"
	"testing"
)

func TestPaceScheduler(t *testing.T) {
	own := runtime.NumCPU()
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for given, want := range map[int]int{own: max(own, processorsMin), own + 1: own + 1} {
		runtime.GOMAXPROCS(given)
		PaceScheduler()
		if got := runtime.GOMAXPROCS(0); got != want {
			t.Errorf("%d of %d processors became %d, want %d", given, own, got, want)
		}
	}
}

func TestShareScheduler(t *testing.T) {
	own := runtime.NumCPU()
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, c := range []struct{ given, processes, want int }{
		{own, 1, own}, {own, own, 1}, {own, 100 * own, 1}, {own, 0, own}, {own + 1, own, own + 1},
	} {
		runtime.GOMAXPROCS(c.given)
		ShareScheduler(c.processes)
		if got := runtime.GOMAXPROCS(0); got != c.want {
			t.Errorf("%d of %d processors, %d processes: %d each, want %d", c.given, own, c.processes, got, c.want)
		}
	}
}
