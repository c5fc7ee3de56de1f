package sample

import (
	"time"

	"gradbus/schema"
)

// Checkpoints is how versions of the job are written; the zero value tells nothing of it.
type Checkpoints struct {
	Off     string       // why none is
	Every   int          // seconds between two that become durable
	Batches schema.Batch // told in place of Every
	Failure string       // none has become durable since it was set

	version  schema.Version
	at       time.Time
	late     time.Time
	failures uint64
}

// write lets a second pass: a version becomes durable, or is due and does not.
func (c *Cluster) write() {
	d := &c.Durable
	if d.Every == 0 || c.Phase != "running" || int(c.second)%d.Every != 0 {
		return
	}
	if d.Failure == "" {
		d.version, d.at, d.late = schema.Version(c.batch), c.Now, time.Time{}
		return
	}
	d.failures++
	if d.late.IsZero() {
		d.late = c.Now
	}
}

// durability is what the coordinator says of it.
func (c *Cluster) durability() *schema.DurabilityReport {
	d := &c.Durable
	if d.Off != "" {
		return &schema.DurabilityReport{Off: d.Off}
	}
	if d.Every == 0 {
		return nil
	}
	p := &schema.DurabilityReport{EveryMS: int64(d.Every) * 1000, Failure: d.Failure, Failures: d.failures,
		Version: d.version}
	if d.Batches > 0 {
		p.EveryMS, p.EveryBatches = 0, d.Batches
	}
	if d.version > 0 {
		p.DurableMS, p.Bytes, p.TookSeconds = d.at.UnixMilli(), 87*mib, 3.1
	}
	if !d.late.IsZero() {
		p.LateMS = c.Now.Sub(d.late).Milliseconds()
	}
	return p
}
