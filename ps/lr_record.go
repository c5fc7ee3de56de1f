package ps

import (
	"context"
	"maps"
	"slices"

	"gradbus/schema"
)

// lrRecord is the changes of a job's learning rates, to be written into its record.
type lrRecord struct {
	name    schema.JobName
	run     schema.RunID
	changes []schema.LRChange
}

// noteLR asks for changes to be recorded. It never waits; the control loop hears when it is done.
func (r *registry) noteLR(n lrRecord) {
	r.mu.Lock()
	r.lr[n.name] = n
	r.mu.Unlock()
	nudge(r.wake)
}

// recordLR writes what was noted into the records of jobs that this ps coordinates. What cannot be written now is tried
// again at the next renewal.
func (r *registry) recordLR(ctx context.Context) {
	r.mu.Lock()
	noted := r.lr
	r.lr = map[schema.JobName]lrRecord{}
	r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(noted)) {
		n, o := noted[name], r.own[name]
		if o == nil || o.record.RunID != n.run {
			continue // has ended
		}
		o.record.LR = n.changes
		within, cancel := context.WithTimeout(ctx, renewWithin)
		err := r.write(o,
			func(value []byte) (uint64, error) { return r.jobs.Update(within, string(name), value, o.revision) })
		cancel()
		if err == nil {
			r.tell(ctx, registryNews{changed: n})
			continue
		}
		r.log.Warn("learning rates not recorded, tried again", "job", name, "err", err)
		r.mu.Lock()
		if _, newer := r.lr[name]; !newer {
			r.lr[name] = n
		}
		r.mu.Unlock()
	}
}
