//go:build !unix

package regular

import "os"

// openFlags are those of a system without named pipes: the simulation is compiled for WebAssembly.
const openFlags = os.O_RDONLY
