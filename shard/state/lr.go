package state

import (
	"sync/atomic"

	"gradbus/schema"
)

// LRChanges is the changes of a job's learning rates while it runs, for all state of one member. They are set before a
// step of the first batch of a new one; steps of earlier batches may run at the same time. A nil *LRChanges is none.
type LRChanges struct {
	all atomic.Pointer[[]schema.LRChange]
}

// Set replaces the changes. They ascend by batch, and are not to be changed afterwards.
func (c *LRChanges) Set(changes []schema.LRChange) { c.all.Store(&changes) }

// scale is the factor for the step that makes the next version of v.
func (c *LRChanges) scale(v schema.Version) float32 {
	if c == nil {
		return 1
	}
	if all := c.all.Load(); all != nil {
		return schema.LRScale(*all, v)
	}
	return 1
}
