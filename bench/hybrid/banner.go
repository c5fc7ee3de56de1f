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
	_, err := fmt.Fprintf(to, "gradbus %s, %s, %s\n%s, %d cores\n%s\n%d trainers, %d servers, embeddings %d x %d by "+
		"%s, %d epochs of %d batches after %d of warm-up\ntables %s: %s\n\n",
		gradbus.Version, here.Go, here.Kernel, here.CPU, here.Cores, machine.TheseProcessors(),
		c.Trainers, c.Servers, c.Embeddings, c.inputs(), c.Placement, c.Epochs, c.Batches, c.Warmup, c.Mode,
		c.seen())
	return err
}

// seen is what a trainer's rows have in them.
func (c *Config) seen() string {
	if c.Mode == modeSync {
		return "the mean of all trainers' gradients is applied once a batch; the next rows have it"
	}
	return "a trainer's gradients are applied when they arrive; its next rows have all of its own updates"
}
