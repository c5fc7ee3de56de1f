//go:build native

package commands

// flags are those of go build.
func flags() []string { return []string{"-tags", "native"} }
