package ps

import (
	"maps"
	"slices"

	"gradbus/schema"
)

// report is what a ps tells of the shards that it keeps for others; there says that the control server is.
func (k *keeper) report(there bool) *schema.StandsByReport {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &schema.StandsByReport{Peers: true, Reached: there}
	all := map[schema.JobName]schema.HeldReport{}
	for _, id := range slices.Sorted(maps.Keys(k.runs)) {
		h := k.held(k.runs[id])
		if before, has := all[h.Job]; len(h.Of) > 0 && (!has || before.Lost != "") { // of two runs the one that goes on
			all[h.Job] = h
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(p.Jobs) < schema.TelemetryJobsMax {
			p.Jobs = append(p.Jobs, all[name])
		}
	}
	return p
}

// holds is what is kept of a run of a job.
func (k *keeper) holds(name schema.JobName, run schema.RunID) schema.HeldReport {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.runs[run]; r != nil {
		return k.held(r)
	}
	return schema.HeldReport{Job: name, RunID: run}
}

// held is what is kept of a run for others; of nobody where its shards have begun with it. mu is held.
func (k *keeper) held(r *keptRun) schema.HeldReport {
	h := schema.HeldReport{Job: r.job.Name, RunID: r.run, Failure: r.failure}
	if r.taken {
		return h
	}
	for _, d := range r.told.From {
		if d.ID != k.server.ID() {
			h.Of = append(h.Of, d.ID)
		}
	}
	if r.state != nil && r.failure == "" {
		h.Version = max(r.state.Version(), r.state.Whole())
	}
	if r.over.Lasts() {
		h.Lost = "its run has ended, and its trainers are awaited"
	}
	return h
}
