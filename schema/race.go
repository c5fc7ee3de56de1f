//go:build race

package schema

// raced says that the race detector is on.
const raced = true
