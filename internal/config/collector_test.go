package config

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestPaceCollector(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	for given, want := range map[int]int{100: gcPercent, 50: 50, -1: -1} {
		debug.SetGCPercent(given)
		PaceCollector()
		if got := debug.SetGCPercent(100); got != want {
			t.Errorf("GOGC %d: became %d, want %d", given, got, want)
		}
	}
}

func TestHeapLimiter(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	HeapLimiter()(1 << 40)
	if got := debug.SetMemoryLimit(-1); got != 1<<40 {
		t.Errorf("limit %d, want %d", got, int64(1)<<40)
	}
	HeapLimiter()(1 << 30)
	if got := debug.SetMemoryLimit(-1); got != 1<<40 {
		t.Errorf("limit %d: one that was given was overruled", got)
	}
}
