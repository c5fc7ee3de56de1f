package harness

import (
	"fmt"

	"github.com/spf13/pflag"
)

// deviceCPU is the device that every system computes on.
const deviceCPU = "cpu"

// Device is what the model of a system is to be computed on. Systems whose layers have a GPU path have flags of their
// own in its place.
type Device struct {
	GPUs   int
	Device string
}

// DefaultDevice is the processor.
func DefaultDevice() Device { return Device{Device: deviceCPU} }

// AddTo gives a command the flags.
func (d *Device) AddTo(set *pflag.FlagSet) {
	set.IntVar(&d.GPUs, "gpus", d.GPUs, "`N`: GPUs that compute the model; only 0 is supported")
	set.StringVar(&d.Device, "device", d.Device, "`NAME`: device that computes the model; only cpu is supported")
}

// noGPUPath is why a model cannot be computed on a GPU.
const noGPUPath = "its layers have no GPU path yet, and would stay on the CPU"

// Validate refuses whatever would leave a part of the model on the CPU, before anything is started.
func (d *Device) Validate() error {
	switch {
	case d.GPUs < 0:
		return fmt.Errorf("gpus %d: want 0", d.GPUs)
	case d.GPUs > 0:
		return fmt.Errorf("gpus %d: want 0: %s", d.GPUs, noGPUPath)
	case d.Device != deviceCPU:
		return fmt.Errorf("device %q: want %s: %s", d.Device, deviceCPU, noGPUPath)
	}
	return nil
}
