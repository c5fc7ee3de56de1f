package hybrid

import (
	"fmt"
	"io"

	"gradbus"
	"gradbus/bench/machine"
)

// Banner writes where and with what it is measured.
func Banner(to io.Writer, c *Config) error {
	here := machine.This()
	_, err := fmt.Fprintf(to, "gradbus %s, %s, %s\n%s, %d cores\n%s\n%d trainers, %d servers, embeddings %d x %d by %s, tables %s, %d epochs of %d batches after %d of warm-up\n\n",
		gradbus.Version, here.Go, here.Kernel, here.CPU, here.Cores, topology(),
		c.Trainers, c.Servers, c.Embeddings, c.inputs(), c.Placement, c.Mode, c.Epochs, c.Batches, c.Warmup)
	return err
}

func topology() string { return "GPUs: none (no NVML library)" }
