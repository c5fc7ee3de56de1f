//go:build native

package cuda

/*
#include <dlfcn.h>
#include <stdlib.h>
#include "bridge.h"

typedef const gb_api* (*bridge_entry)(uint32_t abi);

static const gb_api* bridge_enter(void* entry) { return ((bridge_entry)entry)(GB_ABI); }
*/
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// findAPI gives a backend's table of functions, of the linked library or of the shared one at the path.
func findAPI(name, path string) (*C.gb_api, error) {
	if path != "" {
		return loadAPI(name, path)
	}
	var api *C.gb_api
	switch name {
	case "cpu":
		api = C.gb_backend(C.GB_ABI)
	case "emu":
		api = emuAPI()
	case "cuda":
		if api = C.gb_cuda_backend(C.GB_ABI); api == nil {
			return nil, fmt.Errorf("%w: the native library was built without CUDA; use cpu, or rebuild where nvcc is",
				ErrNoBackend)
		}
	}
	if api == nil {
		return nil, fmt.Errorf("%w: the native library is of another version: rebuild it", ErrNoBackend)
	}
	return api, nil
}

// loadAPI takes it from a shared library, which stays loaded: its threads and its device outlive any backend.
func loadAPI(name, path string) (*C.gb_api, error) {
	symbol := map[string]string{"cpu": "gb_backend", "cuda": "gb_cuda_backend"}[name]
	if symbol == "" {
		return nil, fmt.Errorf("%w: backend %s comes from no shared library; cpu and cuda do", ErrArgument, name)
	}
	file, entry := C.CString(path), C.CString(symbol)
	defer C.free(unsafe.Pointer(file))
	defer C.free(unsafe.Pointer(entry))
	library := C.dlopen(file, C.RTLD_NOW|C.RTLD_LOCAL)
	if library == nil {
		why := C.GoString(C.dlerror()) // which begins with the path, or with a library that this one needs
		return nil, fmt.Errorf("%w: kernel library %s: %s", ErrNoBackend, path, strings.TrimPrefix(why, path+": "))
	}
	at := C.dlsym(library, entry)
	if at == nil {
		return nil, fmt.Errorf("%w: kernel library %s has no function %s: it is no libgradbus.so", ErrNoBackend, path, symbol)
	}
	api := C.bridge_enter(at)
	if api == nil && name == "cuda" {
		if cpu, err := loadAPI("cpu", path); err == nil && cpu != nil {
			return nil, fmt.Errorf("%w: kernel library %s was built without CUDA; rebuild it where nvcc is", ErrNoBackend, path)
		}
	}
	if api == nil || api.abi != C.GB_ABI {
		return nil, fmt.Errorf("%w: kernel library %s does not speak version %d of the interface: rebuild it from these "+
			"sources", ErrNoBackend, path, int(C.GB_ABI))
	}
	return api, nil
}

// Built says what this build has besides Go, for a version screen.
func Built() string { return "libgradbus; CUDA backend " + C.GoString(C.gradbus_cuda_why()) }

// LacksCUDA says why this build cannot open the backend cuda, and what can; empty where it can, or where the
// environment names a library.
func LacksCUDA() string {
	if C.gb_cuda_backend(C.GB_ABI) != nil || namedLibrary() != "" {
		return ""
	}
	return "this program has no CUDA backend, which was " + C.GoString(C.gradbus_cuda_why()) + ": build it where nvcc is"
}
