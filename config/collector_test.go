package config

import (
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
