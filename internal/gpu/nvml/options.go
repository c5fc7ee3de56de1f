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
	// Topology has the probe say how the GPUs are connected, and end: no sample is taken.
	Topology bool
}

const libraryDefault = "libnvidia-ml.so.1"
