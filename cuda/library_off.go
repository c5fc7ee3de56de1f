//go:build !native

package cuda

import "fmt"

// nativeMaps are the operations of the native library where there is one.
func nativeMaps(string) maps { return goMaps{} }

// openProducts opens a library of the system.
func openProducts(string, string) (products, error) {
	return nil, fmt.Errorf("%w: this build has no native library: %s, or use own", ErrNoBackend, howToBuild)
}
