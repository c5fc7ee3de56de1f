//go:build !native

package e2e

// buildFlags give the commands the backend that this test was built with.
var buildFlags []string

// backends are what the commands are tested with.
var backends = []string{"go"}
