//go:build native && emu

package cuda

/*
#cgo LDFLAGS: ${SRCDIR}/../build/libgradbus_emu.a ${SRCDIR}/../build/libgradbus.a -lstdc++
#include <stdbool.h>
#include "bridge.h"

#ifndef GRADBUS_EMU_STAMP
#error "the library was configured without GRADBUS_EMU: run make TESTS=ON"
#endif
const gb_api* gb_emu_backend(uint32_t abi);
static inline const char* gradbus_emu_stamp(void) { return GRADBUS_EMU_STAMP; }

// The switches of csrc/emu/emu.h, which are C++ functions.
void emu_reset(void) __asm__("_ZN7gradbus3emu5ResetEv");
static int bridge_emu_reset(void) { emu_reset(); return 0; } // what cgo makes of no argument and no result is a warning
void bridge_emu_defer(bool on) __asm__("_ZN7gradbus3emu5DeferEb");
void bridge_emu_fail_at(int64_t n, int error) __asm__("_ZN7gradbus3emu6FailAtEli");
int64_t bridge_emu_calls(void) __asm__("_ZN7gradbus3emu5CallsEv");
*/
import "C"

// emuBuilt says whether the emulated CUDA backend is in this build, which is for tests alone (tag emu).
const emuBuilt = true

// emuAPI is the backend made of the CUDA sources compiled for the CPU.
func emuAPI() *C.gb_api { return C.gb_emu_backend(C.GB_ABI) }

// emuStamp is the SHA-256 of the emulated backend's library.
func emuStamp() string { return C.GoString(C.gradbus_emu_stamp()) }

// The switches of the emulated device, for tests; what they do is in csrc/emu/emu.h.
func emuReset()                     { C.bridge_emu_reset() }
func emuDefer(on bool)              { C.bridge_emu_defer(C.bool(on)) }
func emuFailAt(n int64, code int32) { C.bridge_emu_fail_at(C.int64_t(n), C.int(code)) }
func emuCalls() int64               { return int64(C.bridge_emu_calls()) }
