// Package kernelflag is the flag --kernel-library of the commands that compute.
//
// It wires cuda.LibraryVariable to a command line. It must not know any command.
package kernelflag

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"gradbus/cuda"
)

// Add adds the flag. Its value becomes the variable, which has its name. So it holds for every backend of this process,
// and for the processes that it starts: trainers, servers and members of a benchmark.
func Add(set *pflag.FlagSet) {
	set.Var(new(library), "kernel-library",
		"`PATH`: libgradbus.so to load kernels from; empty is the built-in library")
}

// library is the flag's value.
type library struct{ path string }

func (l *library) String() string { return l.path }

// Type is what the settings of a command take it for.
func (l *library) Type() string { return "string" }

// Set makes the path absolute: the dynamic linker looks for a bare name elsewhere, and what is started may have
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
