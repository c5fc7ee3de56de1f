// Package rules holds the whole repository to its rules: which package may import which, how long files and functions may be, which
// keys log records have, and that the tests which documents name exist. It has tests only; each says at its top what it holds.
package rules

import (
	"fmt"
	"os"
	"testing"
)

// TestMain steps to the repository's root, from which the rules name paths.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
