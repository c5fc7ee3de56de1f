//go:build race

package shard

// raced says that the race detector is on, under which counts of allocations mean nothing.
const raced = true
