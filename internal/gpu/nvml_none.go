//go:build !cgo || !linux

package gpu

import (
	"context"
	"encoding/json"
)

// Built says whether this build can ask a driver.
const Built = false

// Serve says that this build cannot ask a driver.
func Serve(_ context.Context, o ProbeOptions) error {
	return json.NewEncoder(o.Out).Encode(Line{None: &None{Driver: true,
		Reason: "this build cannot ask the driver: it was made without cgo, or not for Linux"}})
}
