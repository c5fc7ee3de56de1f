//go:build cgo && linux

package gpu

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
const char *gradbus_nvml_open(const char *path);
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// openLibrary opens the driver's library and finds its functions, which go-nvml then calls (library.c). It says why it
// cannot be opened.
func openLibrary(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	runtime.LockOSThread() // the reason lies in memory of the thread
	defer runtime.UnlockOSThread()
	if why := C.gradbus_nvml_open(name); why != nil {
		return errors.New(C.GoString(why))
	}
	return nil
}
