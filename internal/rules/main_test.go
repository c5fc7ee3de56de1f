// Package rules holds the whole repository to its rules: which package may import which, how long files and functions
// may be, which keys log records have, and that the tests which documents name exist. It has tests only; each says at
// its top what it holds.
package rules

import (
	"os"
	"testing"
)

// atRoot steps to the repository's root, from which the rules name paths, until the test ends. A step before the tests
// run would hide the files that they read from Go's test cache, which then gives yesterday's answer whatever has
// changed.
func atRoot(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("go.mod"); err != nil {
		t.Chdir("../..")
	}
}
