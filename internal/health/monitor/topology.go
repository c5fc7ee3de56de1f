package monitor

import (
	"context"
	"fmt"
	"time"

	"gradbus/internal/health"
)

// Topology has a probe, which is told by its arguments to ask for that alone, say how the GPUs are connected, within
// some time. It gives nil and why where there is nobody to ask, or no answer.
func Topology(ctx context.Context, probe []string, within time.Duration) (*health.Topology, string) {
	c, err := startChild(probe)
	if err != nil {
		return nil, fmt.Sprintf("the probe cannot be started: %v", err)
	}
	defer func() {
		c.kill()
		c.waitUntil(time.Now().Add(probeGraceTime))
	}()
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		select {
		case line, more := <-c.lines:
			switch {
			case !more:
				return nil, c.wait()
			case line.None != nil:
				return nil, line.None.Reason
			case line.Topology != nil:
				return line.Topology, ""
			}
		case <-late.C:
			return nil, fmt.Sprintf("the driver has not answered within %v", within)
		case <-ctx.Done():
			return nil, context.Cause(ctx).Error()
		}
	}
}
