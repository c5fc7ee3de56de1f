//go:build native

package e2e

// backends are what the commands are tested with.
var backends = []string{"go", "cpu"}
