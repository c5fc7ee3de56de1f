package hybrid

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gradbus"
	"gradbus/bench/machine"
)

// Banner writes where and with what it is measured.
func Banner(to io.Writer, c *Config) error {
	here := machine.This()
	_, err := fmt.Fprintf(to, "gradbus %s, %s, %s\n%s, %d cores\n%s\n%d trainers, %d servers, embeddings %d x %d by %s, "+
		"tables %s, %d epochs of %d batches after %d of warm-up\n\n",
		gradbus.Version, here.Go, here.Kernel, here.CPU, here.Cores, topology(),
		c.Trainers, c.Servers, c.Embeddings, c.inputs(), c.Placement, c.Mode, c.Epochs, c.Batches, c.Warmup)
	return err
}

// topology lists the GPUs that the driver of this machine shows to anybody, one a line, with the bus that each is at.
// What connects them only NVML would tell, which this program does not ask.
func topology() string { return topologyAt("/proc/driver/nvidia/gpus") }

func topologyAt(folder string) string {
	found, err := filepath.Glob(filepath.Join(folder, "*", "information"))
	if err != nil || len(found) == 0 {
		return "GPUs: none (no NVIDIA driver)"
	}
	lines := make([]string, 0, len(found))
	for i, path := range found {
		model := "unknown model"
		text, err := os.ReadFile(path)
		if err != nil {
			model = err.Error()
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "Model:"); ok {
				model = strings.TrimSpace(value)
			}
		}
		lines = append(lines, fmt.Sprintf("GPU %d: %s at %s", i, model, filepath.Base(filepath.Dir(path))))
	}
	return strings.Join(lines, "\n")
}
