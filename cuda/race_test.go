//go:build race

package cuda

// raceEnabled: counts of allocations mean nothing under the race detector.
const raceEnabled = true
