//go:build native && installed

package cuda

// The library that make install has put below a prefix, as its pkg-config file says: the archive, what it needs, and in
// GRADBUS_INSTALLED its hash. Go's caches know neither what pkg-config says nor a header outside this folder, but
// CGO_CPPFLAGS: with the flag in there, too, they see a new library (docs/install.md).

// #cgo pkg-config: gradbus-static
import "C"
