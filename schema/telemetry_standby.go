package schema

// StandbyReport is which ps stands by for a job, and what that has of it. The ps that coordinates the job tells it once
// another one has stood by. Where several stand by for each other it always does.
type StandbyReport struct {
	Off    string `json:"off,omitempty"`    // why no ps can stand by for the job; empty: one can
	Server string `json:"server,omitempty"` // id of the ps that stands by; empty: none does, or several do
	URL    string `json:"url,omitempty"`    // where trainers find that
	Ready  bool   `json:"ready,omitempty"`  // the job would go on there now

	// Peers says that several ps stand by for each other, and Kept which of them keep the job's shards, by id. Version is
	// then the one that all of them have.
	Peers bool         `json:"peers,omitempty"`
	Kept  []KeptReport `json:"kept,omitempty"`

	Version     Version `json:"version"`                // the newest that is whole there; 0: none
	ToldMS      int64   `json:"told_ms,omitempty"`      // when it became that, by the clock of this ps
	TookSeconds Real    `json:"took_seconds,omitempty"` // to tell the last version
	Bytes       uint64  `json:"bytes,omitempty"`        // that were told in all

	// Failure says why the job is not ready to go on there: what another ps has said, or that it is gone.
	Failure string `json:"failure,omitempty"`
	// UnreadyMS is for how long the job has not been ready, though it was to be, for the first time too; 0: it is ready.
	UnreadyMS int64 `json:"unready_ms,omitempty"`
	// LateMS is for how long trainers have been past the newest version; 0: they are not.
	LateMS int64 `json:"late_ms,omitempty"`
}

// KeptReport is the replica that a ps has of a job's shards, as it has reported it to the coordinator.
type KeptReport struct {
	Server  string   `json:"server"`          // its id
	Of      []string `json:"of"`              // ids of the ps that serve those shards, its own first
	Ready   bool     `json:"ready,omitempty"` // it has room for them, and hears what they have
	Version Version  `json:"version"`         // the newest that it has whole; 0: none
	Failure string   `json:"failure,omitempty"`
}

// StandsByReport is the ps that another one stands by for, as that sees it. Where several stand by for each other it is
// what one of them keeps of the others.
type StandsByReport struct {
	URL      string       `json:"url"`               // as it was told, without a password; empty: those of Peers
	Peers    bool         `json:"peers,omitempty"`   // all others of one control server that stand by, too
	Reached  bool         `json:"reached,omitempty"` // it answers; of Peers the control server does
	SilentMS int64        `json:"silent_ms"`         // since it did; 0: it never has
	Refused  string       `json:"refused,omitempty"` // why this ps may not stand by for it
	Jobs     []HeldReport `json:"jobs,omitempty"`    // of other ps, by name
}

// HeldReport is the replica of a job at a standby.
type HeldReport struct {
	Job     JobName  `json:"job"`
	RunID   RunID    `json:"run_id,string"`
	Of      []string `json:"of,omitempty"`      // ids of the other ps whose shards it keeps; empty: it has all of the job
	Version Version  `json:"version"`           // that it has whole; 0: none
	Failure string   `json:"failure,omitempty"` // why it has none, and will have none
	Lost    string   `json:"lost,omitempty"`    // why the job's ps counts as lost, so that its trainers are awaited here
	// Missing is the trainers that have not joined here, where the job waits for more than half of them.
	Missing []Member `json:"missing,omitempty"`
}
