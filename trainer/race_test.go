//go:build race

package trainer

// raced says that the race detector is on, under which counts of allocations mean nothing.
const raced = true
