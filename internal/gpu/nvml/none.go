//go:build !cgo || !linux

package nvml

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gradbus/internal/gpu"
)

// Built says whether this build can ask a driver.
const Built = false

// Serve says that this build cannot ask a driver.
func Serve(_ context.Context, o Options) error {
	line := gpu.Line{AtMS: time.Now().UnixMilli(), None: &gpu.None{Driver: true,
		Reason: "this build cannot ask the driver: it was made without cgo, or not for Linux"}}
	if err := json.NewEncoder(o.Out).Encode(line); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	return nil
}
