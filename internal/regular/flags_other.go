//go:build !unix

package regular

import "os"

// openFlags are those of a system without pipes that have names.
const openFlags = os.O_RDONLY
