//go:build race

package schema

// raced reports that the race detector is on.
const raced = true
