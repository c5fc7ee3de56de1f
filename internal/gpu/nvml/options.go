// Package nvml is the probe: it asks NVIDIA's driver, by its library libnvidia-ml.so.1, and writes what it hears as
// lines of JSON (gpu.Line). It is the only package that knows NVML, and it runs in a process of its own (ps
// gpu-probe); see package gpu for why.
//
// # What must be kept
//
//   - The library is opened at run time, and none of its functions is left to the loader: library.c defines all that
//     go-nvml refers
//     to, each passing its call on to the library that was opened. So a program with this package starts without a driver,
//     also with LD_BIND_NOW, or linked with -z now. A newer go-nvml may refer to more: a test compares, and writes functions.h anew.
//   - A function that the library lacks answers "function not found". Every one is looked up before it is called (has,
//     ask), so
//     that what is missing can be said; none but nvmlInit is called before that has succeeded.
//   - Errors are not asked for their text: that is a call too.
//   - A poll's line is written by the goroutine that asks, since it is the sign that the driver answers. Events come
//     from
//     another one, at once, also while the first hangs.
//
// A build without cgo, or not for Linux, has no probe; it says so in its only line.
package nvml

import (
	"io"
	"time"
)

// Options of Serve.
type Options struct {
	Library string        // name or path of the driver's library; empty is libnvidia-ml.so.1
	Kernel  string        // file with the kernel's log; empty is /dev/kmsg
	Every   time.Duration // between samples; 0 is a second
	Out     io.Writer     // gets the lines
	// In is read until it ends, and then Serve ends: whoever started the probe holds the other end. nil is never.
	In io.Reader
	// Parent is the process whose memory is ours, and that of programs beside it; 0 is none.
	Parent int
}

const libraryDefault = "libnvidia-ml.so.1"
