//go:build !race

package schema

// raced reports that the race detector is off.
const raced = false
