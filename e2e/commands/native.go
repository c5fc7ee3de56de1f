//go:build native

package commands

// flags are those of go build.
func flags() []string { return []string{"-tags", "native"} }

// kind returns the build flags of the commands of make, whose packages need not be compiled again.
func kind() []string { return []string{"-trimpath", "-buildmode=pie"} }
