package monitor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"gradbus/schema"
)

// OrderDevices makes CUDA count its devices as the driver does, unless whoever started this process wants another
// order. It gives the value of CUDA_VISIBLE_DEVICES, and is called before CUDA is used. Both are CUDA's own variables.
func OrderDevices() (visible string, err error) {
	const order = "CUDA_DEVICE_ORDER"
	if os.Getenv(order) == "" {
		if err := os.Setenv(order, "PCI_BUS_ID"); err != nil {
			return "", fmt.Errorf("order the GPUs: %w", err)
		}
	}
	return os.Getenv("CUDA_VISIBLE_DEVICES"), nil
}

// takeWait is how long Take waits for the driver's first word.
const takeWait = 20 * time.Second

// Take asks whether this process may compute on the GPU that CUDA gives it first, and notes that it does. visible is
// the value of CUDA_VISIBLE_DEVICES, and CUDA must count devices as the driver does (CUDA_DEVICE_ORDER=PCI_BUS_ID). The
// error says why the GPU may not be used, and what to do. A GPU of which nothing is known may be used: whoever wants to
// be sure requires the GPUs.
func (m *Monitor) Take(ctx context.Context, visible string) error {
	m.Wait(ctx, takeWait)
	g, ok := first(visible, m.GPUs())
	if !ok {
		m.config.Log.Warn("it is not known which GPU is used", "cuda_visible_devices", visible)
		return nil
	}
	if err := m.May(g.UUID); err != nil {
		return fmt.Errorf("take a GPU: %w Another can be chosen with CUDA_VISIBLE_DEVICES", err)
	}
	m.Use(g.UUID)
	m.config.Log.Info("GPU taken", "gpu", g.UUID)
	return nil
}

// first is the GPU that CUDA counts as 0: the first that CUDA_VISIBLE_DEVICES names, by index or the beginning of a
// UUID, or the first of all where it is not set.
func first(visible string, gpus []schema.GPUReport) (schema.GPUReport, bool) {
	name, _, _ := strings.Cut(visible, ",")
	name = strings.TrimSpace(name)
	for _, g := range gpus {
		switch {
		case g.UUID == "": // expected, and not there
		case name == "" || name == fmt.Sprint(g.Index) || len(name) > len("GPU-") && strings.HasPrefix(g.UUID, name):
			return g, true
		}
	}
	return schema.GPUReport{}, false
}
