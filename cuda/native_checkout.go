//go:build native && !installed

package cuda

// The library that make builds in this checkout.

// #cgo LDFLAGS: ${SRCDIR}/../build/libgradbus.a -lstdc++ -lm -ldl -lrt -lpthread
import "C"
