//go:build native && emu

package cuda

/*
#cgo LDFLAGS: ${SRCDIR}/../build/libgradbus_emu.a ${SRCDIR}/../build/libgradbus.a -lstdc++
#include "bridge.h"

#ifndef GRADBUS_EMU_STAMP
#error "the library was configured with GRADBUS_TESTS=OFF"
#endif
const gb_api* gb_emu_backend(uint32_t abi);
static inline const char* gradbus_emu_stamp(void) { return GRADBUS_EMU_STAMP; }
*/
import "C"

// emuBuilt says whether the emulated CUDA backend is in this build, which is for tests alone (tag emu).
const emuBuilt = true

// emuAPI is the backend made of the CUDA sources compiled for the CPU.
func emuAPI() *C.gb_api { return C.gb_emu_backend(C.GB_ABI) }

// emuStamp is the SHA-256 of the emulated backend's library.
func emuStamp() string { return C.GoString(C.gradbus_emu_stamp()) }
