//go:build !native

package commands

// flags are those of go build.
func flags() []string { return nil }

// kind is that of the commands of make, which are native.
func kind() []string { return nil }
