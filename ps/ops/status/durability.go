package status

import (
	"fmt"
	"slices"
	"strings"

	"gradbus/schema"
)

// A version is late after lateIntervals of those between two, and no sooner than after lateLeast: it is named seconds
// before trainers reach it, and has to be written.
const (
	lateIntervals = 3
	lateLeast     = 15_000
)

// UseCheckpoints is what a ps writes to the folder of checkpoints, as its reports name the use of a disk.
const UseCheckpoints = "checkpoints"

// durabilityOf is what a run's coordinator says of checkpoints, or the trainer that writes them, with the age of the
// newest by the clock here.
func (t *Tracker) durabilityOf(r *run) *Durability {
	said, by := r.said.Durability, (*heard)(nil)
	if s := t.servers[r.coordinator]; s != nil {
		by = &s.heard
	}
	if said != nil && said.Off != "" {
		for _, tr := range r.trainers {
			report := tr.said()
			if report != nil && report.Durability != nil && (said.Off != "" || report.Durability.Version > said.Version) {
				said, by = report.Durability, &tr.heard
			}
		}
	}
	if said == nil {
		return nil
	}
	d := &Durability{Off: said.Off, Version: uint64(said.Version), Bytes: said.Bytes,
		TookMS:  int64(min(finite(said.TookSeconds)*1000, msMax)),
		EveryMS: min(said.EveryMS, msMax), EveryBatches: uint64(said.EveryBatches), Failures: said.Failures,
		Failure: said.Failure, LateMS: min(said.LateMS, msMax)}
	if d.Version > 0 {
		d.AgeMS = t.now - r.saidAt
		if by != nil && said.DurableMS > 0 {
			d.AgeMS = min(max(t.now-hereMS(said.DurableMS, by), 0), 10*msMax)
		}
	}
	return d
}

// durability says that versions do not become durable in time.
func (j *ranking) durability(job *Job, r *run) {
	d := job.Durability
	if d == nil || d.Off != "" || job.Phase != schema.PhaseRunning || d.LateMS <= j.lateLimit(d, r) {
		return
	}
	text := fmt.Sprintf("no version of %s is durable, and one has been due for %s", job.Name, ago(d.LateMS))
	if d.Version > 0 {
		text = fmt.Sprintf("no version of %s has become durable since version %d, %s ago, and one has been due for %s",
			job.Name, d.Version, ago(d.AgeMS), ago(d.LateMS))
	}
	if d.Failure != "" {
		text += ": " + gist(d.Failure)
	}
	f := j.find(CodeNotDurable, "%s", text).about(job.Name, "").from(j.s.NowMS-d.LateMS).after(byJob+job.Name, byControl)
	if r.said.Durability.Off == "" { // no trainer writes them
		f.after(byDisk + r.coordinator)
	}
	for _, id := range r.said.Keepers {
		f.after(byDisk+id, byServer+id)
	}
	f.brief = fmt.Sprintf("no version of %s has become durable for %s", job.Name, ago(d.LateMS))
}

// gist is a failure without what lies between where it was and what was wrong with which file.
func gist(failure string) string {
	parts := strings.Split(failure, ": ")
	if len(parts) > 4 {
		parts = slices.Concat(parts[:2], parts[len(parts)-2:])
	}
	return strings.Join(parts, ": ")
}

// lateLimit is from when on a version is late, in milliseconds.
func (j *ranking) lateLimit(d *Durability, r *run) int64 {
	interval := float64(d.EveryMS)
	if interval == 0 {
		interval = float64(d.EveryBatches) * float64(j.usualPeriod(r))
	}
	return int64(min(max(lateIntervals*interval, lateLeast), msMax))
}
