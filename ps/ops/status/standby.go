package status

import (
	"fmt"
	"strings"

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
	Off     string `json:"off,omitempty"`  // why nobody can stand by for the job; empty: somebody can
	Server  string `json:"server"`         // id of the ps that stands by; empty: none does, or several do
	URL     string `json:"url"`            // where trainers find that
	Peers   bool   `json:"peers"`          // several ps stand by for each other
	Kept    []Kept `json:"kept,omitempty"` // what each of these keeps, by id
	Ready   bool   `json:"ready"`          // the job would go on there now
	Version uint64 `json:"version"`        // the newest that is whole there; 0: none
	AgeMS   int64  `json:"age_ms"`         // since it became that
	TookMS  int64  `json:"took_ms"`        // to tell the last version; less than 1 is 0
	Bytes   uint64 `json:"bytes"`          // that were told in all
	Failure string `json:"failure,omitempty"`
	// UnreadyMS is for how long the job has not been ready to go on elsewhere, though it was to be; LateMS for how long
	// trainers have been past the version.
	UnreadyMS int64 `json:"unready_ms"`
	LateMS    int64 `json:"late_ms"`
}

// Kept is what a ps keeps of a job's shards, where several stand by for each other.
type Kept struct {
	Server  string   `json:"server"`
	Of      []string `json:"of"`      // ids of the ps that serve those shards
	Ready   bool     `json:"ready"`   // it has room for them, and hears what they have
	Version uint64   `json:"version"` // the newest that it has whole; 0: none
	Failure string   `json:"failure,omitempty"`
}

// StandsBy is the ps that another one stands by for, as that sees it. Where several stand by for each other it is what
// one of them keeps of the others.
type StandsBy struct {
	URL      string `json:"url"`               // empty: those of Peers
	Peers    bool   `json:"peers"`             // all others that stand by, too
	Reached  bool   `json:"reached"`           // it answers; of Peers the control server does
	SilentMS int64  `json:"silent_ms"`         // since it did; 0: it never has
	Refused  string `json:"refused,omitempty"` // why this ps may not stand by for it
	Jobs     []Held `json:"jobs"`              // of the other ps, by name
}

// Held is what a ps that stands by has of a job.
type Held struct {
	Job     string   `json:"job"`
	RunID   string   `json:"run_id"`
	Of      []string `json:"of,omitempty"`      // ids of the ps whose shards it keeps; nil: it has all of the job
	Version uint64   `json:"version"`           // with which it could go on; 0: none
	Failure string   `json:"failure,omitempty"` // why it has none, and will have none
	Lost    string   `json:"lost,omitempty"`    // why the job's ps counts as lost, so that its trainers are awaited here
}

// standbyOf is what a run's coordinator says of who stands by, with the age of the version by the clock here.
func (t *Tracker) standbyOf(r *run) *Standby {
	said := r.said.Standby
	if said == nil || r.over() {
		return nil
	}
	b := &Standby{Off: said.Off, Server: brief(said.Server), URL: brief(said.URL), Peers: said.Peers, Ready: said.Ready,
		Version: uint64(said.Version), TookMS: int64(min(finite(said.TookSeconds)*1000, msMax)), Bytes: said.Bytes,
		Failure: said.Failure, UnreadyMS: min(said.UnreadyMS, msMax), LateMS: min(said.LateMS, msMax)}
	for _, k := range said.Kept {
		b.Kept = append(b.Kept, Kept{Server: brief(k.Server), Of: briefs(k.Of), Ready: k.Ready, Version: uint64(k.Version),
			Failure: k.Failure})
	}
	if b.Version > 0 {
		b.AgeMS = t.now - r.saidAt
		if s := t.servers[r.coordinator]; s != nil && said.ToldMS > 0 {
			b.AgeMS = min(max(t.now-hereMS(said.ToldMS, &s.heard), 0), 10*msMax)
		}
	}
	return b
}

func briefs(texts []string) (all []string) {
	for _, t := range texts[:min(len(texts), ServersMax)] {
		all = append(all, brief(t))
	}
	return all
}

// standsByOf is what a ps says of the one that it stands by for.
func standsByOf(h *heard, said *schema.StandsByReport, now int64) *StandsBy {
	if said == nil {
		return nil
	}
	b := &StandsBy{URL: brief(said.URL), Peers: said.Peers, Reached: said.Reached && h.fresh(now),
		SilentMS: min(said.SilentMS, msMax), Refused: said.Refused, Jobs: []Held{}}
	for _, j := range said.Jobs {
		b.Jobs = append(b.Jobs, Held{Job: string(j.Job), RunID: runID(j.RunID), Of: briefs(j.Of),
			Version: uint64(j.Version), Failure: j.Failure, Lost: j.Lost})
	}
	return b
}

// standby says that a job would not go on elsewhere though it was to, or with what is much older than usual.
func (j *ranking) standby(job *Job, r *run) {
	b := job.Standby
	if b == nil || b.Off != "" || job.Phase != schema.PhaseRunning {
		return
	}
	unready, since := b.UnreadyMS > standbyGrace, b.UnreadyMS
	if !unready {
		if since = b.LateMS; since <= j.standbyLimit(job, r) {
			return
		}
	}
	tell := tellStandby
	if b.Peers {
		tell = tellPeers
	}
	brief, action := tell(job, unready)
	text := brief
	if b.Failure != "" {
		text += ": " + gist(b.Failure)
	}
	f := j.find(CodeNotStoodBy, "%s", text).about(job.Name, "").from(j.s.NowMS-since).do(action).
		after(byJob+job.Name, byControl, byServer+r.coordinator)
	for _, k := range b.Kept {
		f.after(byServer + k.Server)
	}
	f.brief = brief
	if b.Server == "" && len(b.Kept) == 0 { // of the jobs of a ps the first is told, and the others below it
		f.after(byStandby + r.coordinator).before(byStandby + r.coordinator)
	}
}

// standsBy says that a ps cannot stand by as it was told to. Of several that do for each other their jobs say so.
func (j *ranking) standsBy(v *Server, about func(*finding)) {
	b := v.StandsBy
	switch {
	case b == nil || b.Peers:
	case b.Refused != "":
		about(j.find(CodeStandbyCut, "ps %s may not stand by for the ps at %s: %s", v.ID, b.URL, gist(b.Refused)))
	case !b.Reached && b.SilentMS == 0:
		about(j.find(CodeStandbyCut, "ps %s has not reached the ps at %s, which it is to stand by for", v.ID, b.URL))
	case !b.Reached:
		about(j.find(CodeStandbyCut, "ps %s has heard nothing for %s of the ps at %s, which it stands by for", v.ID,
			ago(b.SilentMS), b.URL))
	}
}

// tellStandby says what is wrong with the ps that stands by for a job; action is empty where that is the usual one.
func tellStandby(job *Job, unready bool) (text, action string) {
	switch b := job.Standby; {
	case unready && b.Server == "":
		return fmt.Sprintf("no ps has stood by for %s for %s", job.Name, ago(b.UnreadyMS)), ""
	case unready:
		return fmt.Sprintf("ps %s, which stands by, has had no version of %s for %s", b.Server, job.Name, ago(b.UnreadyMS)),
			fmt.Sprintf("Look at what ps %s says of it: mostly it has too little memory (`./bin/ps --memory-mib`).", b.Server)
	default:
		return fmt.Sprintf("ps %s, which stands by, has taken no version of %s since version %d, %s ago", b.Server, job.Name,
				b.Version, ago(b.AgeMS)),
			fmt.Sprintf("Look at the load of ps %s and of this one, and at the network between them.", b.Server)
	}
}

// tellPeers is tellStandby where several ps stand by for each other.
func tellPeers(job *Job, unready bool) (text, action string) {
	b := job.Standby
	newest, behind := uint64(0), []string(nil)
	for _, k := range b.Kept {
		newest = max(newest, k.Version)
	}
	for _, k := range b.Kept {
		if !k.Ready || k.Version < newest {
			behind = append(behind, k.Server)
		}
	}
	waits := ""
	if len(behind) > 0 && b.Failure == "" {
		waits = fmt.Sprintf(", and ps %s lags", brief(strings.Join(behind, ", ")))
	}
	switch {
	case unready && len(b.Kept) == 0:
		return fmt.Sprintf("the shards of %s have not been kept at two ps for %s", job.Name, ago(b.UnreadyMS)),
			"Have every ps with shards of the job, and another one, run with `--standby-peers`: when one is lost now, the job " +
				"goes on from its newest durable version, or from nothing."
	case unready:
		return fmt.Sprintf("no version of %s has been kept at two ps for %s", job.Name, ago(b.UnreadyMS)) + waits,
			"Look at what the ps that is named says of it: mostly it has too little memory (`./bin/ps --memory-mib`)."
	default:
		return fmt.Sprintf("no version of %s has been kept at two ps since version %d, %s ago", job.Name, b.Version,
				ago(b.AgeMS)) + waits,
			"Look at the load of the ps that keep its shards, and at the network between them."
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
