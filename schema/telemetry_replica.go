package schema

// ReplicaReport is the replica of a job on other ps. The job's ps reports it once another ps has had a replica, and
// always if several ps replicate each other's jobs.
type ReplicaReport struct {
	Off    string `json:"off,omitempty"`    // why no ps can have a replica of the job; empty: one can
	Server string `json:"server,omitempty"` // id of the ps with the replica; empty: none, or several
	URL    string `json:"url,omitempty"`    // its address for trainers
	Ready  bool   `json:"ready,omitempty"`  // the job would continue there now

	// Peers is set if several ps replicate each other's jobs. Kept then has the replicas of the job's shards by ps id,
	// and Version is the version that all of them have.
	Peers bool         `json:"peers,omitempty"`
	Kept  []KeptReport `json:"kept,omitempty"`

	Version     Version `json:"version"`                // newest version that is complete there; 0: none
	ToldMS      int64   `json:"told_ms,omitempty"`      // time at which it was complete, by the clock of this ps
	TookSeconds Real    `json:"took_seconds,omitempty"` // time of sending the last version
	Bytes       uint64  `json:"bytes,omitempty"`        // bytes sent in total

	// Failure is why the job is not ready to continue there: an answer of another ps, or the loss of its connection.
	Failure string `json:"failure,omitempty"`
	// UnreadyMS is how long the job has not been ready, also before the first time; 0: it is ready.
	UnreadyMS int64 `json:"unready_ms,omitempty"`
	// LateMS is how long trainers have been past the newest version; 0: they are not.
	LateMS int64 `json:"late_ms,omitempty"`
}

// KeptReport is a ps's replica of a job's shards, as the ps has reported it to the coordinator.
type KeptReport struct {
	Server  string   `json:"server"`          // id of the ps
	Of      []string `json:"of"`              // ids of the ps that serve those shards, its own first
	Ready   bool     `json:"ready,omitempty"` // it has room for them and receives their state
	Version Version  `json:"version"`         // newest version that it has completely; 0: none
	Failure string   `json:"failure,omitempty"`
}

// PrimaryReport is the state of the ps whose jobs a ps replicates, as the latter sees it; or, if several ps replicate
// each other's jobs, what one has of the others.
type PrimaryReport struct {
	URL      string       `json:"url"`               // configured URL, without a password; empty: see Peers
	Peers    bool         `json:"peers,omitempty"`   // it replicates jobs of all other such ps at one control server
	Reached  bool         `json:"reached,omitempty"` // the ps answers; with Peers, the control server does
	SilentMS int64        `json:"silent_ms"`         // time since the last answer; 0: there was none
	Refused  string       `json:"refused,omitempty"` // why this ps is refused
	Jobs     []HeldReport `json:"jobs,omitempty"`    // replicas of jobs of other ps, by name
}

// HeldReport is the replica of a job.
type HeldReport struct {
	Job     JobName  `json:"job"`
	RunID   RunID    `json:"run_id,string"`
	Of      []string `json:"of,omitempty"`      // ids of the other ps whose shards are replicated; empty: all of the job's
	Version Version  `json:"version"`           // version that is complete; 0: none
	Failure string   `json:"failure,omitempty"` // why there is no version, and will be none
	Lost    string   `json:"lost,omitempty"`    // why the job's ps counts as lost; its trainers are expected here then
	// Missing lists the trainers that have not joined here, if the job waits for more than half of them.
	Missing []Member `json:"missing,omitempty"`
}
