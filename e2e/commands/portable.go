//go:build !native

package commands

// flags are those of go build.
func flags() []string { return nil }

// kind returns no flags: the commands of make are native.
func kind() []string { return nil }
