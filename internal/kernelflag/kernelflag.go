// Package kernelflag adds the flag --kernel-library to commands that compute. It connects the flag to
// cuda.LibraryVariable. It must not know any command.
package kernelflag

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"gradbus/cuda"
)

// Add adds the flag. Its value is set as the environment variable, so it applies to every backend of this process and
// to the processes that it starts: trainers, servers and members of a benchmark.
func Add(set *pflag.FlagSet) {
	set.Var(new(library), "kernel-library",
		"`PATH`: libgradbus.so to load kernels from; empty is the built-in library")
}

// library is the flag's value.
type library struct{ path string }

func (l *library) String() string { return l.path }

// Type returns the type of the value for the settings of a command.
func (l *library) Type() string { return "string" }

// Set makes the path absolute: the dynamic linker searches for a bare name elsewhere, and child processes may have
// another working directory.
func (l *library) Set(path string) error {
	if l.path = path; path == "" {
		return os.Unsetenv(cuda.LibraryVariable)
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("kernel library: %w", err)
	}
	return os.Setenv(cuda.LibraryVariable, absolute)
}
