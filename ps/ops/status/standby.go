package status

import (
	"fmt"

	"gradbus/schema"
)

const (
	// standbyGrace is for how long a job may be without a standby, in milliseconds: a ps that is started again, as in a
	// rolling restart, is back by then, and has been told all of a job that is not large.
	standbyGrace = 30_000
	// tellings is how many times what the last version took is between two versions, about, and batchesApart how many
	// batches lie between them where these take longer than telling.
	tellings     = 6
	batchesApart = 2
)

// Standby is which ps stands by for a job, and what that has of it.
type Standby struct {
	Off     string `json:"off,omitempty"` // why nobody can stand by for the job; empty: somebody can
	Server  string `json:"server"`        // id of the ps that stands by; empty: none does
	URL     string `json:"url"`           // where trainers find that
	Ready   bool   `json:"ready"`         // the job would go on there now
	Version uint64 `json:"version"`       // the newest that is whole there; 0: none
	AgeMS   int64  `json:"age_ms"`        // since it became that
	TookMS  int64  `json:"took_ms"`       // to tell the last version; less than 1 is 0
	Bytes   uint64 `json:"bytes"`         // that were told in all
	Failure string `json:"failure,omitempty"`
	// UnreadyMS is for how long the job has not been ready to go on elsewhere, though it was, or was to be; LateMS for how
	// long trainers have been past the version.
	UnreadyMS int64 `json:"unready_ms"`
	LateMS    int64 `json:"late_ms"`
}

// StandsBy is the ps that another one stands by for, as that sees it.
type StandsBy struct {
	URL      string `json:"url"`
	Reached  bool   `json:"reached"`           // it answers
	SilentMS int64  `json:"silent_ms"`         // since it did; 0: it never has
	Refused  string `json:"refused,omitempty"` // why this ps may not stand by for it
	Jobs     []Held `json:"jobs"`              // of the other ps, by name
}

// Held is what a ps that stands by has of a job.
type Held struct {
	Job     string `json:"job"`
	RunID   string `json:"run_id"`
	Version uint64 `json:"version"`           // with which it could go on; 0: none
	Failure string `json:"failure,omitempty"` // why it has none, and will have none
	Lost    string `json:"lost,omitempty"`    // why the job's ps counts as lost, so that its trainers are awaited here
}

// standbyOf is what a run's coordinator says of who stands by, with the age of the version by the clock here.
func (t *Tracker) standbyOf(r *run) *Standby {
	said := r.said.Standby
	if said == nil || r.over() {
		return nil
	}
	b := &Standby{Off: said.Off, Server: brief(said.Server), URL: brief(said.URL), Ready: said.Ready,
		Version: uint64(said.Version), TookMS: int64(min(finite(said.TookSeconds)*1000, msMax)), Bytes: said.Bytes,
		Failure: said.Failure, UnreadyMS: min(said.UnreadyMS, msMax), LateMS: min(said.LateMS, msMax)}
	if b.Version > 0 {
		b.AgeMS = t.now - r.saidAt
		if s := t.servers[r.coordinator]; s != nil && said.ToldMS > 0 {
			b.AgeMS = min(max(t.now-hereMS(said.ToldMS, &s.heard), 0), 10*msMax)
		}
	}
	return b
}

// standsByOf is what a ps says of the one that it stands by for.
func standsByOf(h *heard, said *schema.StandsByReport, now int64) *StandsBy {
	if said == nil {
		return nil
	}
	b := &StandsBy{URL: brief(said.URL), Reached: said.Reached && h.fresh(now), SilentMS: min(said.SilentMS, msMax),
		Refused: said.Refused, Jobs: []Held{}}
	for _, j := range said.Jobs {
		b.Jobs = append(b.Jobs, Held{Job: string(j.Job), RunID: runID(j.RunID), Version: uint64(j.Version),
			Failure: j.Failure, Lost: j.Lost})
	}
	return b
}

// standby says that a job would not go on elsewhere though it was to, or with what is much older than usual.
func (j *ranking) standby(job *Job, r *run) {
	b := job.Standby
	if b == nil || b.Off != "" || job.Phase != schema.PhaseRunning {
		return
	}
	since, text, action := b.UnreadyMS, "", ""
	switch {
	case b.UnreadyMS > standbyGrace && b.Server == "":
		text = fmt.Sprintf("no ps has stood by for %s for %s", job.Name, ago(b.UnreadyMS))
	case b.UnreadyMS > standbyGrace:
		text = fmt.Sprintf("ps %s, which stands by, has had no version of %s for %s", b.Server, job.Name, ago(b.UnreadyMS))
		action = fmt.Sprintf("Look at what ps %s says of it: mostly it has too little memory (`./bin/ps --memory-mib`).",
			b.Server)
	case b.LateMS > j.standbyLimit(job, r):
		since = b.LateMS
		text = fmt.Sprintf("ps %s, which stands by, has taken no version of %s since version %d, %s ago", b.Server,
			job.Name, b.Version, ago(b.AgeMS))
		action = fmt.Sprintf("Look at the load of ps %s and of this one, and at the network between them.", b.Server)
	default:
		return
	}
	brief := text
	if b.Failure != "" {
		text += ": " + gist(b.Failure)
	}
	f := j.find(CodeNotStoodBy, "%s", text).about(job.Name, "").from(j.s.NowMS-since).do(action).
		after(byJob+job.Name, byControl, byServer+r.coordinator)
	if f.brief = brief; b.Server == "" { // of the jobs of a ps the first is told, and the others below it
		f.after(byStandby + r.coordinator).before(byStandby + r.coordinator)
	}
}

// standbyLimit is from when on a version is late, in milliseconds. While a checkpoint is written none is told.
func (j *ranking) standbyLimit(job *Job, r *run) int64 {
	interval := tellings*float64(job.Standby.TookMS) + batchesApart*float64(j.usualPeriod(r))
	if d := job.Durability; d != nil {
		interval += float64(d.TookMS)
	}
	return int64(min(max(lateIntervals*interval, lateLeast), msMax))
}
