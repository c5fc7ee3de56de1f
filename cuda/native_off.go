//go:build !native

package cuda

import (
	"fmt"
)

// nativeBuilt says whether the native library is in this build.
const nativeBuilt = false

const emuBuilt = false

func openNative(string, string, Options) (Backend, error) { return nil, ErrNoBackend }

// Built says what this build has besides Go, for a version screen.
func Built() string { return "none: the portable backend alone; " + howToBuild }

// LacksCUDA says why this build cannot open the backend cuda, and what can; empty where it can.
func LacksCUDA() string { return "this program has no CUDA backend: " + howToBuild + ", where nvcc is" }

// nativeMaps are the operations of the native library where there is one.
func nativeMaps(string) maps { return goMaps{} }

// openProducts opens a library of the system.
func openProducts(string, string) (products, error) {
	return nil, fmt.Errorf("%w: this build has no native library: %s, or use own", ErrNoBackend, howToBuild)
}
