//go:build native && !emu

package cuda

// #include "bridge.h"
import "C"

const emuBuilt = false

func emuAPI() *C.gb_api { return nil }

func emuStamp() string { return "" }
