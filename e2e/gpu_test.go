package e2e

import (
	"syscall"
	"testing"
)

// A fault of the GPU that a ps counts as its own ends its jobs with the GPU's reason, and it takes no others. The GPU
// is made up, and everything says so.
func TestServerGPUFault(t *testing.T) {
	t.Parallel()
	ps, url := server(t, "--gpu-use", "0", "--inject", "gpu=0,remap-failed,after=2s,for=1s")
	data := index(t, 200)
	first := start(t, "trainer", long(url, data)...) // which is in the midst of it, or on its way
	first.fails(t, "GPU 0 (SIMULATED", "is unhealthy", "A faulty memory row could not be remapped")
	ps.says(t, "injected")
	start(t, "trainer", short(url, data)...).fails(t, "GPU 0 (SIMULATED")
	poll(t, "a job that runs again", func() bool {
		ps.signal(t, syscall.SIGUSR1) // which acknowledges; while the fault lasts it comes back
		return start(t, "trainer", short(url, data)...).status(t) == 0
	})
}

// A trainer whose own GPU fails ends with the GPU's reason, whatever it is at.
func TestTrainerGPUFault(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	data := index(t, 200)
	start(t, "trainer", long(url, data, "--gpu-use", "0", "--inject", "gpu=0,xid=79,after=2s")...).fails(t,
		"this process has lost its GPU: XID 79: the GPU has fallen off the bus. (Injected.)")
}

// Bad flags are one clear error.
func TestGPUFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--gpu", "on"}, `gpu "on": want auto, require or off`},
		{[]string{"--gpu-expected", "-1"}, "gpu-expected -1: want 0 to 64"},
		{[]string{"--inject", "xid"}, `inject "xid": xid: want a number, xid=N (for example gpu=0,xid=79,after=30s)`},
		{[]string{"--gpu", "off", "--inject", "lost"}, `inject "lost": want gpu auto with it, not off`},
		{[]string{"--gpu", "require", "--gpu-library", "/nonexistent/libnvidia-ml.so.1"},
			"gpu require: the driver's library cannot be loaded"},
	} {
		start(t, "ps", append([]string{"--listen", "127.0.0.1:0"}, c.args...)...).fails(t, c.want)
	}
}
