package status

import "gradbus/schema"

// Status is everything that the page, the API and the terminal show of this moment: one whole view of all jobs,
// trainers, shards and GPUs that this ps hears of, whoever coordinates them. It is what GET /api/v1/status answers and
// what the stream sends once a second. It is immutable once made. Times are milliseconds since 1970 by the clock of the
// ps that answers; ages are milliseconds.
type Status struct {
	NowMS    int64    `json:"now_ms"`
	Serial   uint64   `json:"serial"` // rises by one with every status of this process
	Server   string   `json:"server"` // id of the ps that answers
	Version  string   `json:"version"`
	Why      Why      `json:"why"`      // of all jobs: the worst
	Injected bool     `json:"injected"` // some fault that is shown was injected by --inject
	Jobs     []Job    `json:"jobs"`     // running ones first, then by name; those that ended in the last minutes too
	Servers  []Server `json:"servers"`  // by id
	GPUs     []GPU    `json:"gpus"`     // by machine and index
	// all that is wrong, worst first, each cause before what follows from it; at most ProblemsMax. Why is made from the
	// first
	Problems []Problem `json:"problems"`

	Own *schema.Telemetry `json:"-"` // the latest report of the ps that answers, for its metrics; nil before
}

// Level says how bad something is. It is shown by colour, text and icon.
type Level string

// Levels, from best to worst.
const (
	OK       Level = "ok"
	Info     Level = "info"     // nothing is wrong, and nothing happens: no job, or one that gathers
	Warning  Level = "warning"  // it works, worse than it should
	Critical Level = "critical" // it does not work, or its results may be wrong
)

// Why is the one sentence at the top.
type Why struct {
	Level  Level  `json:"level"`
	Text   string `json:"text"`   // "batch 10432 waits 18 s for trainer t3 on host a (pid 71), last seen 17 s ago"
	Action string `json:"action"` // what to do; empty where nothing is to be done
	Code   string `json:"code"`   // of the problem; empty where there is none
	Job    string `json:"job"`    // that it is about; empty where it is none
}

// Problem is something that is wrong now.
type Problem struct {
	Code    string `json:"code"` // short and stable, as labels of metrics and names of runbooks: "trainer-silent"
	Level   Level  `json:"level"`
	Text    string `json:"text"`
	Action  string `json:"action"`
	Job     string `json:"job,omitempty"`
	Member  string `json:"member,omitempty"` // t3, s0, p-host-4222
	GPU     string `json:"gpu,omitempty"`    // its UUID
	SinceMS int64  `json:"since_ms"`
	Runbook string `json:"runbook,omitempty"` // heading of /runbooks
	Symptom bool   `json:"symptom,omitempty"` // it follows from the problem before it that is none
}

// Job is one training run.
type Job struct {
	Name        string     `json:"name"`
	Workload    string     `json:"workload"`
	RunID       string     `json:"run_id"`
	Phase       string     `json:"phase"`                // gathering, running, ended
	End         schema.End `json:"end,omitempty"`        // completed, stopped, failed, continued; empty while it has not ended
	EndReason   string     `json:"end_reason,omitempty"` // why it was stopped, or has failed
	EndBy       string     `json:"end_by,omitempty"`     // member that caused that
	Coordinator string     `json:"coordinator"`          // id of its ps
	Consistency string     `json:"consistency"`
	Apply       string     `json:"apply"`
	Reduce      string     `json:"reduce"`
	Lanes       int        `json:"lanes"`
	Missing     int        `json:"missing"` // trainers that have not joined
	AgeMS       int64      `json:"age_ms"`  // of what its coordinator last said
	StartedMS   int64      `json:"started_ms"`
	EndedMS     int64      `json:"ended_ms"`
	Parameters  int64      `json:"parameters"`

	Batch            uint64      `json:"batch"`
	Planned          uint64      `json:"planned"`            // batches of the run under way; 0 where not known
	LeftMS           int64       `json:"left_ms"`            // estimate until it is done; 0 where not known
	SamplesPerSecond schema.Real `json:"samples_per_second"` // of all trainers, over the last 10 s
	BatchesPerSecond schema.Real `json:"batches_per_second"`
	// mean over all trainers' samples of the last second that had any, NaN where one was not finite; nil before
	Loss         *schema.Real `json:"loss"`
	GradientNorm *schema.Real `json:"gradient_norm"` // mean over trainers of their latest

	Trainers []Trainer `json:"trainers"` // by number
	Shards   []Shard   `json:"shards"`   // by number
	Replicas *Replicas `json:"replicas"` // nil but in mean
	// nil where its coordinator does not say
	Durability *Durability `json:"durability"`
	Standby    *Standby    `json:"standby"` // nil where nobody has stood by
	// key of GET /api/v1/series?job=: the name, and for a run that a later one has followed NAME.RUN_ID
	Series string `json:"series"`
	Why    Why    `json:"why"`
}

// Trainer is one trainer of a job: what it says of itself, and what its coordinator says of it.
type Trainer struct {
	Member  string `json:"member"`
	Host    string `json:"host"`
	PID     int    `json:"pid"`   // 0 where not known
	State   string `json:"state"` // free, joining, running, waiting, late, silent, lost, left
	Level   Level  `json:"level"`
	AgeMS   int64  `json:"age_ms"` // since it last spoke; of its reports, and where there are none, of its heartbeats
	Batch   uint64 `json:"batch"`
	Lag     uint64 `json:"lag"`     // batches behind the foremost trainer
	HeldMS  int64  `json:"held_ms"` // for how long others have waited for it; 0 where nobody does
	Doing   string `json:"doing"`   // schema.Doing
	DoingMS int64  `json:"doing_ms"`
	Shard   *int   `json:"shard,omitempty"` // that it waits for

	SamplesPerSecond schema.Real  `json:"samples_per_second"`
	Loss             *schema.Real `json:"loss"`
	Phases           Phases       `json:"phases"` // share of the last 10 s
	SentPerSecond    schema.Real  `json:"sent_per_second"`
	ReceivedPerSec   schema.Real  `json:"received_per_second"`
	PendingBytes     int64        `json:"pending_bytes"`
	WindowBytes      int64        `json:"window_bytes"`
	RoundTripSeconds schema.Real  `json:"round_trip_seconds"` // worst of its links
	ResentPerSecond  schema.Real  `json:"resent_per_second"`
	Reconnects       uint64       `json:"reconnects"`
	LanesSkipped     uint64       `json:"lanes_skipped,omitempty"` // whose gradient was not finite
	Connected        bool         `json:"connected"`
	CPU              schema.Real  `json:"cpu"` // processors' worth of time it takes: 1.5 is one and a half
	ResidentBytes    int64        `json:"resident_bytes"`
	Backend          string       `json:"backend"`
	Verified         uint64       `json:"verified"` // blocks that it computed again
	Mismatches       uint64       `json:"mismatches"`
	Disks            []Disk       `json:"disks,omitempty"`

	Report  *schema.Telemetry `json:"-"` // its latest, for metrics; nil before
	HeardMS int64             `json:"-"` // when that came
}

// Phases are shares of a trainer's time, 0 to 1. What is missing to 1 was spent elsewhere.
type Phases struct {
	Keys    schema.Real `json:"keys"`
	Lookup  schema.Real `json:"lookup"`
	Compute schema.Real `json:"compute"`
	Send    schema.Real `json:"send"`
	Result  schema.Real `json:"result"`
}

// Shard is one shard of a job.
type Shard struct {
	Member         string      `json:"member"` // s0
	Server         string      `json:"server"` // id of the ps that has it
	Level          Level       `json:"level"`
	AgeMS          int64       `json:"age_ms"`
	Ready          bool        `json:"ready"`
	Version        uint64      `json:"version"`
	Lag            uint64      `json:"lag"` // versions behind the foremost shard
	BytesPerSecond schema.Real `json:"bytes_per_second"`
	RoundsPerSec   schema.Real `json:"rounds_per_second"`
	Load           schema.Real `json:"load"` // share of one processor's time spent in steps and publishing
	StagedBytes    int64       `json:"staged_bytes"`
	StagedBytesMax int64       `json:"staged_bytes_max"`
	QueueBytes     int64       `json:"queue_bytes"`
	MemoryBytes    int64       `json:"memory_bytes"`   // promised
	HeldBytes      int64       `json:"held_bytes"`     // rows, parameters and gradients that it holds
	Idle           string      `json:"idle,omitempty"` // why the job has nothing for it to do
	WaitsFor       []string    `json:"waits_for"`      // trainers
	WaitsBatch     uint64      `json:"waits_batch"`
	WaitsMS        int64       `json:"waits_ms"`
	Buckets        []Bucket    `json:"buckets,omitempty"` // that have had a round, ascending
}

// Bucket is how the rounds of one bucket fare on a shard, since it was made or since POST /api/v1/buckets/reset. Times
// are means over its rounds, and where the name says max, those of the slowest.
type Bucket struct {
	Bucket    uint32      `json:"bucket"`
	Sparse    bool        `json:"sparse,omitempty"` // all rows on the shard
	Rounds    uint64      `json:"rounds"`
	Straggler schema.Real `json:"straggler_seconds"` // from the first trainer's whole gradient to the last one's

	StragglerMax schema.Real `json:"straggler_max_seconds"`
	Batch        schema.Real `json:"batch_seconds"` // from the first until all were answered
	BatchMax     schema.Real `json:"batch_max_seconds"`
	Arrival      schema.Real `json:"arrival_seconds"` // adding gradients up as they came
	Average      schema.Real `json:"average_seconds"` // the rest of the sum, and the division
}

// Replicas compares the trainers' replicas at one version.
type Replicas struct {
	Version uint64            `json:"version"` // the newest that two or more have told of, or at which two differ
	Equal   bool              `json:"equal"`
	Digests map[string]string `json:"digests"` // by member, hexadecimal
}

// Durability is what of a job outlives all of its processes.
type Durability struct {
	Off          string `json:"off,omitempty"` // why nothing is durable; empty where versions are written
	Version      uint64 `json:"version"`       // the newest that is durable; 0: none yet
	AgeMS        int64  `json:"age_ms"`        // since it became that
	Bytes        int64  `json:"bytes"`
	TookMS       int64  `json:"took_ms"`  // from being asked for until durable; 0 of a version that was resumed
	EveryMS      int64  `json:"every_ms"` // between two versions; 0: they are counted in batches
	EveryBatches uint64 `json:"every_batches"`
	Failures     uint64 `json:"failures"`          // versions that were asked for and did not become durable
	Failure      string `json:"failure,omitempty"` // why the last did not; empty since one did
	LateMS       int64  `json:"late_ms"`           // for how long a version has been due and is not durable
}

// Server is one ps.
type Server struct {
	ID               string            `json:"id"`
	State            string            `json:"state,omitempty"` // draining where it was asked to end
	Host             string            `json:"host"`
	PID              int               `json:"pid"`
	Level            Level             `json:"level"`
	AgeMS            int64             `json:"age_ms"`
	StartedMS        int64             `json:"started_ms"`
	Version          string            `json:"version"`
	URL              string            `json:"url"`
	Page             string            `json:"page"`
	Backend          string            `json:"backend"`
	ControlLost      bool              `json:"control_lost"`
	BytesPerSecond   schema.Real       `json:"bytes_per_second"`
	RefusedPerSecond schema.Real       `json:"refused_per_second"`
	Reasons          map[string]uint64 `json:"reasons"` // totals; those that are not 0
	Dropped          uint64            `json:"dropped"`
	SlowReaders      uint64            `json:"slow_readers"`
	CPU              schema.Real       `json:"cpu"`
	ResidentBytes    int64             `json:"resident_bytes"`
	PromisedBytes    int64             `json:"promised_bytes"`
	MemoryMaxBytes   int64             `json:"memory_max_bytes"`
	Verified         uint64            `json:"verified"`
	Mismatches       uint64            `json:"mismatches"`
	Disks            []Disk            `json:"disks"`
	StandsBy         *StandsBy         `json:"stands_by,omitempty"` // nil where it stands by for no other ps
}

// Disk is a file system that a ps or a trainer writes to.
type Disk struct {
	Path       string `json:"path"`
	Use        string `json:"use,omitempty"` // what is written there: "models, curves"
	FreeBytes  int64  `json:"free_bytes"`
	TotalBytes int64  `json:"total_bytes"`
	NeedBytes  int64  `json:"need_bytes,omitempty"` // that will be written there at once, such as a model
	AgeMS      int64  `json:"age_ms"`               // since it answered

	device string // see schema.DiskReport
}

// GPU is a GPU and who has it.
type GPU struct {
	Host   string   `json:"host"`
	Server string   `json:"server"` // the ps, or job/member of the trainer, that asks it
	Level  Level    `json:"level"`
	AgeMS  int64    `json:"age_ms"`
	Users  []string `json:"users"` // p-..., job/t0
	schema.GPUReport
}

// Point is a job at one second. What was not told in that second is nil.
type Point struct {
	AtMS    int64        `json:"at_ms"`
	Batch   uint64       `json:"batch"`
	Loss    *schema.Real `json:"loss"`
	Norm    *schema.Real `json:"norm"`
	Samples *schema.Real `json:"samples"` // per second, of all trainers

	// Mean over trainers of the share of time.
	Keys    *schema.Real `json:"keys"`
	Lookup  *schema.Real `json:"lookup"`
	Compute *schema.Real `json:"compute"`
	Send    *schema.Real `json:"send"`
	Result  *schema.Real `json:"result"`

	Sent     *schema.Real `json:"sent"`     // bytes per second from trainers to shards
	Received *schema.Real `json:"received"` // and back
	Pending  *schema.Real `json:"pending"`  // bytes, of all windows
	Refused  *schema.Real `json:"refused"`  // frames per second, of all ps
	Resent   *schema.Real `json:"resent"`   // frames per second
}

// Series is what GET /api/v1/series?job=NAME&since=MS answers: columns of equal length, times ascending, null where
// nothing was told. Seconds are kept for ten minutes, means of ten seconds for three hours, and of a minute for two
// days; each time is in one of them only.
type Series struct {
	Job   string  `json:"job"`
	RunID string  `json:"run_id"`
	AtMS  []int64 `json:"at_ms"`
	// Columns by name: batch, loss, norm, samples, keys, lookup, compute, send, result, sent, received, pending, refused,
	// resent.
	Columns map[string][]*schema.Real `json:"columns"`
}

// Event is something that happened, newest last. At most EventsMax are kept.
type Event struct {
	Serial uint64 `json:"serial"` // rises by one; the first of a process is that of its time in milliseconds
	AtMS   int64  `json:"at_ms"`
	Level  Level  `json:"level"`
	Code   string `json:"code"`
	Text   string `json:"text"`
	Job    string `json:"job,omitempty"`
	Member string `json:"member,omitempty"`
	GPU    string `json:"gpu,omitempty"`
}

// EventsMax bounds the events that are kept, and ProblemsMax the problems of a status.
const (
	EventsMax   = 1000
	ProblemsMax = 256
)

// Update is what GET /api/v1/stream sends as event "update", once a second and at once when the worst problem changes.
// A client that is slow misses updates and never delays anybody; it sees by Serial that it has, and asks for the series
// and events since what it knows.
type Update struct {
	Status Status           `json:"status"`
	Points map[string]Point `json:"points"` // the newest of each running job
	Events []Event          `json:"events"` // since the update before, newest last
}
