//go:build cgo

// This library has the arithmetic without its CUDA backend: the static CUDA runtime wants 8 KiB of every thread's
// memory from the start of a process, and a library that is loaded later cannot have them. The names below come before
// those of the archive, so that nothing of CUDA is taken from there. The backend is to be had at run time, from the
// arithmetic's own shared library ("library" of gradbus_local).
#include <stddef.h>
#include <stdint.h>

__attribute__((visibility("hidden"))) const void *gb_cuda_backend(uint32_t abi) {
  (void)abi;
  return NULL;
}

__attribute__((visibility("hidden"))) const char *gradbus_cuda_why(void) { return "not in this library"; }
