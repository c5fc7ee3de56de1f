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
