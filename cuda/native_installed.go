//go:build native && installed

package cuda

// The library that make install has put below a prefix, as its pkg-config file says: the archive, what it needs, and in
// GRADBUS_INSTALLED its hash. Go's caches see a new library by that flag, since they read no header outside this folder.

// #cgo pkg-config: gradbus-static
import "C"
