//go:build race

package faults

// raced says that the race detector is on, which takes several times a program's own memory.
const raced = true
