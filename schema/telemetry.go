package schema

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Telemetry is a member's report about itself, published once per second for watchers. It is sent as JSON in a
// heartbeat (EncodeHeartbeat): a trainer's on gradbus.v1.{job}.t3.beat.all, that of a ps on
// gradbus.v1.ps.p-{id}.beat.all. No member waits for a report or depends on one. A lost report does no harm, since
// counters are totals since the member's start and never decrease.
//
// Exactly one of Trainer and Server is set.
type Telemetry struct {
	Serial    uint64 `json:"serial"`     // rises by one
	StartedMS int64  `json:"started_ms"` // milliseconds since 1970 at the member's start, by its clock
	NowMS     int64  `json:"now_ms"`     // the same, of this report
	EveryMS   int64  `json:"every_ms"`   // time until the next
	Host      string `json:"host"`       // name of the machine
	PID       int    `json:"pid"`

	Trainer *TrainerReport `json:"trainer,omitempty"`
	Server  *ServerReport  `json:"server,omitempty"`

	FrameBytes int `json:"-"` // size of the frame that it was read from; 0 if it was not read
}

// TrainerReport is the part of a trainer's report, since its start or its last restart. Times are totals in seconds of
// wall time of the goroutine that trains. They add up to the time between its first batch and the last, except what the
// program does after each batch.
type TrainerReport struct {
	RunID RunID `json:"run_id,string"`

	Batch        Batch     `json:"batch"`                   // batch under way, or the next one
	Batches      uint64    `json:"batches"`                 // completed
	Planned      Batch     `json:"planned"`                 // batch before which the run under way ends; 0 between runs
	Hosted       bool      `json:"hosted,omitempty"`        // it trains with hosted modules, without a planned end
	Samples      uint64    `json:"samples"`                 // of this trainer's lanes
	Behind       uint64    `json:"behind"`                  // sum over batches of the versions that they were computed behind
	Doing        Doing     `json:"doing"`                   // current activity or wait
	DoingMS      int64     `json:"doing_ms"`                // duration of it so far
	AwaitedShard *int      `json:"awaited_shard,omitempty"` // first shard for which it waits
	Loss         TrainLoss `json:"loss"`

	// GradientNorm is the L2 norm of the mean gradient over this trainer's samples of batch GradientBatch, of dense
	// parameters and rows. It is measured about once per second. nil before the first measurement.
	GradientNorm  *Real `json:"gradient_norm,omitempty"`
	GradientBatch Batch `json:"gradient_batch,omitempty"`

	KeysSeconds    Real `json:"keys_seconds"`    // asking the workload for keys, finding the distinct ones, building lookups
	LookupSeconds  Real `json:"lookup_seconds"`  // waiting for rows
	ComputeSeconds Real `json:"compute_seconds"` // in the workload, and summing lanes
	SendSeconds    Real `json:"send_seconds"`    // building gradient frames, and sending those for which the windows have room
	ResultSeconds  Real `json:"result_seconds"`  // waiting for results after everything was sent

	Traffic         Traffic `json:"traffic"`
	LookupsRepeated uint64  `json:"lookups_repeated"`          // number of repeated requests for rows
	LanesSkipped    uint64  `json:"lanes_skipped,omitempty"`   // lanes absent from a batch because their gradient was not finite
	Pulls           uint64  `json:"pulls"`                     // number of requests for late results
	GradientFrames  uint64  `json:"gradient_frames"`           // number of gradient frames sent, each counted once
	Resent          uint64  `json:"resent"`                    // number of retransmitted gradient frames
	Results         uint64  `json:"results"`                   // number of rounds whose outcome arrived
	ResultsRepeated uint64  `json:"results_repeated"`          // outcomes that arrived again, or after their batch
	ResultsByRows   uint64  `json:"results_by_rows,omitempty"` // part of Results that rows proved to be over

	Links    []LinkReport    `json:"links,omitempty"`    // to every shard it sends to, ascending; at most LinksMax
	Replicas []ReplicaDigest `json:"replicas,omitempty"` // in mean: of recent versions, ascending; at most ReplicasMax
	Process  ProcessReport   `json:"process"`
	Backend  string          `json:"backend"` // cuda.Describe
	GPUs     []GPUReport     `json:"gpus,omitempty"`
	Disks    []DiskReport    `json:"disks,omitempty"`

	Verification VerifyReport `json:"verification,omitzero"` // of the output of its own backend
}

// Bounds of lists in a report. A body as a whole has at most bodyBytesMax.
const (
	LinksMax            = 256
	ReplicasMax         = 8
	telemetryGPUsMax    = 64
	TelemetryDisksMax   = 16
	TelemetryJobsMax    = 256         // in the report of a ps
	TelemetryKeptMax    = 256         // ps that have replicas of shards of a job
	TelemetryRefusedMax = 16          // joins, by job and reason
	TelemetryFollowsMax = 8           // earlier runs that a run continues, the latest first
	TelemetryShardsMax  = 1024        // of all jobs on one ps
	TelemetryBucketsMax = 64          // of one shard: its first ones, and its rows
	telemetryNamesMax   = ShardsMax   // members of a job, those that a round waits for, ps that serve its shards
	telemetryCountsMax  = 256         // entries of a map: reasons, codes of XIDs
	TelemetryEveryMax   = 3600 * 1000 // milliseconds between two reports
)

// Doing is the current activity of a trainer.
type Doing string

// Activities of a trainer.
const (
	DoingJoining Doing = "joining" // until all trainers have joined
	DoingKeys    Doing = "keys"    // asking the workload for keys, building lookups
	DoingLookup  Doing = "lookup"  // waiting for rows
	DoingCompute Doing = "compute" // in the workload
	DoingSend    Doing = "send"    // building and publishing gradients
	DoingResult  Doing = "result"  // waiting for results
	DoingOther   Doing = "other"   // outside of Run, or in its caller's report
)

// TrainLoss is the loss over this trainer's samples since its start, and of its last batch.
type TrainLoss struct {
	Sum     Real   `json:"sum"` // of the losses of samples that were finite
	Samples uint64 `json:"samples"`
	Last    Real   `json:"last"` // mean of the last completed batch; may be NaN or infinite
	Bad     uint64 `json:"bad"`  // batches whose loss was NaN or infinite
}

// Traffic is payload over all connections of a member.
type Traffic struct {
	BytesSent        uint64 `json:"bytes_sent"`
	BytesReceived    uint64 `json:"bytes_received"`
	MessagesSent     uint64 `json:"messages_sent"`
	MessagesReceived uint64 `json:"messages_received"`
	Reconnects       uint64 `json:"reconnects"`
	Dropped          uint64 `json:"dropped"` // messages lost to a slow reader, or damaged
	Connected        bool   `json:"connected"`
}

// LinkReport is a trainer's window to one shard.
type LinkReport struct {
	Shard        int    `json:"shard"`
	PendingBytes int64  `json:"pending_bytes"` // sent and not acknowledged
	WindowBytes  int64  `json:"window_bytes"`  // that may be under way
	Frames       uint64 `json:"frames"`
	Resent       uint64 `json:"resent"`
	// Recent time until a frame is acknowledged; 0 before the first.
	RoundTrip Real `json:"round_trip_seconds"`
}

// ReplicaDigest is the CRC-32C of a trainer's replica of the dense parameters, in the manifest's order, at one version.
type ReplicaDigest struct {
	Version Version `json:"version"`
	Digest  uint32  `json:"digest"`
}

// ProcessReport is the use of resources by a process.
type ProcessReport struct {
	CPUSeconds    Real  `json:"cpu_seconds"`
	ResidentBytes int64 `json:"resident_bytes"`
	HeapBytes     int64 `json:"heap_bytes"` // live Go heap
	Goroutines    int   `json:"goroutines"`
	CPUs          int   `json:"cpus"` // number that it may use
}

// ServerReport is the part of a ps's report: its jobs and shards.
type ServerReport struct {
	ID          string      `json:"id"`
	State       ServerState `json:"state,omitempty"` // empty while it serves
	Version     string      `json:"version"`         // of gradbus
	URL         string      `json:"url"`             // of its data server
	Page        string      `json:"page"`            // URL of its page; empty if it serves none
	Backend     string      `json:"backend"`         // cuda.Describe
	Deadline    Real        `json:"deadline_seconds"`
	Control     string      `json:"control,omitempty"` // host:port of the control server; empty if that is this ps itself
	ControlLost bool        `json:"control_lost"`

	Frames       uint64            `json:"frames"` // received, by shards and coordinator
	Bytes        uint64            `json:"bytes"`
	Dropped      uint64            `json:"dropped"`
	SlowReaders  uint64            `json:"slow_readers"`
	Reasons      map[string]uint64 `json:"reasons"`         // refused or repeated frames by reason; all reasons except ok
	Calls        map[string]uint64 `json:"calls,omitempty"` // operations of the shards' arithmetic, by the backend that did them
	Traffic      Traffic           `json:"traffic"`
	Memory       MemoryReport      `json:"memory"`
	Process      ProcessReport     `json:"process"`
	Verification VerifyReport      `json:"verification"`
	Disks        []DiskReport      `json:"disks,omitempty"`

	Jobs   []JobReport   `json:"jobs,omitempty"`   // jobs coordinated here, and those that ended in the last minutes
	Shards []ShardReport `json:"shards,omitempty"` // shards on this ps
	Ended  []EndedShard  `json:"ended,omitempty"`  // shards of this ps that ended recently
	GPUs   []GPUReport   `json:"gpus,omitempty"`   // of its machine

	Refused []RefusedReport `json:"refused,omitempty"` // joins refused in the last minutes, the latest last

	Primary *PrimaryReport `json:"stands_by,omitempty"` // nil if it has no replica of other ps
}

// ServerState is the state of a ps after a request to stop.
type ServerState string

// States of a ps that was told to stop, in this order.
const (
	ServerDraining ServerState = "draining" // its jobs are being handed over, or their last versions written
	ServerEnded    ServerState = "ended"    // last report: it has no jobs and no shards any more
)

// RefusedReport counts joins to a job that were refused for one reason.
type RefusedReport struct {
	Job     JobName `json:"job"`
	Reason  string  `json:"reason"`          // as in Refused: "invalid_job"
	Field   string  `json:"field,omitempty"` // manifest field, if there is one: "tables"
	Text    string  `json:"text"`            // description of the last refusal: what was wrong, and what would be valid
	Host    string  `json:"host"`            // machine and process id of the last refused trainer
	Count   uint64  `json:"count"`
	FirstMS int64   `json:"first_ms"` // milliseconds since 1970, by the clock of this ps
	LastMS  int64   `json:"last_ms"`
}

// MemoryReport is a ps's memory budget in bytes: its size, and what is promised to jobs.
type MemoryReport struct {
	PromisedBytes int64 `json:"promised_bytes"`
	MaxBytes      int64 `json:"max_bytes"`
}

// DiskReport is a file system that the process writes to, and that may fill up.
type DiskReport struct {
	Path       string `json:"path"`       // configured path on it; the first if there are several
	FreeBytes  int64  `json:"free_bytes"` // bytes that an unprivileged process may still write
	TotalBytes int64  `json:"total_bytes"`
	Use        string `json:"use,omitempty"` // what is written there: "models, curves"
	// NeedBytes is the size of the next large write there, such as a model; 0 if writes are small.
	NeedBytes int64 `json:"need_bytes,omitempty"`
	SampleMS  int64 `json:"sample_ms,omitempty"` // time of the last measurement; 0 from members that do not report it
	// Device distinguishes file systems of one machine: "8:1"; empty if unknown.
	Device string `json:"device,omitempty"`
}

// VerificationOf returns the verification counters of a backend, such as a *cuda.Verified. gpus are the GPUs of its
// process.
func VerificationOf(v interface {
	OneIn() int
	Checked() (blocks, mismatches uint64)
	Injected() bool
}, gpus []GPUReport) VerifyReport {
	p := VerifyReport{OneIn: v.OneIn(), Injected: v.Injected()}
	p.Blocks, p.Mismatches = v.Checked()
	for i := range gpus {
		if gpus[i].Used && p.Mismatches > 0 {
			p.Device = gpus[i].UUID
		}
	}
	return p
}

// VerifyReport counts optimizer blocks that another backend recomputed, of a shard, or of a trainer with replicas.
type VerifyReport struct {
	OneIn      int    `json:"one_in"` // 0: never
	Blocks     uint64 `json:"blocks"`
	Mismatches uint64 `json:"mismatches"`
	Device     string `json:"device,omitempty"`   // UUID of the GPU with the last mismatch
	Injected   bool   `json:"injected,omitempty"` // a wrong bit was injected on request, as a rehearsal
}

// Phases of a job.
const (
	PhaseGathering = "gathering" // trainers are missing, or shards are not ready
	PhaseRunning   = "running"
	PhaseEnded     = "ended"
)

// JobReport is a job as its coordinator sees it.
type JobReport struct {
	Name        JobName        `json:"name"`
	Workload    string         `json:"workload"`
	RunID       RunID          `json:"run_id,string"`
	Phase       string         `json:"phase"` // gathering, running, ended
	Consistency string         `json:"consistency"`
	Apply       string         `json:"apply"`
	Reduce      string         `json:"reduce"`
	Trainers    int            `json:"trainers"`
	Shards      int            `json:"shards"`
	Lanes       int            `json:"lanes"`
	Ahead       int            `json:"ahead,omitempty"` // batches that a trainer may run ahead, in bounded
	Batch       Batch          `json:"batch"`
	Parameters  int64          `json:"parameters"` // values of dense parameters and tables
	StartedMS   int64          `json:"started_ms"` // by the clock of this ps; 0 before the start
	EndedMS     int64          `json:"ended_ms,omitempty"`
	End         End            `json:"end,omitempty"`     // reason for its end; empty before
	Failed      *Ended         `json:"failed,omitempty"`  // details, unless all trainers left normally
	Follows     []RunID        `json:"follows,omitempty"` // earlier runs that this one continues; at most TelemetryFollowsMax
	Members     []MemberReport `json:"members"`           // in order of their ids
	Keepers     []string       `json:"keepers"`           // ids of the ps that serve its shards

	Durability *DurabilityReport `json:"durability,omitempty"` // nil from a ps that does not report it
	Replica    *ReplicaReport    `json:"standby,omitempty"`    // nil if no ps has had a replica
}

// DurabilityReport is the durable version of a job, and its age.
type DurabilityReport struct {
	Off          string `json:"off,omitempty"` // why no version is written; empty if versions are
	EveryMS      int64  `json:"every_ms,omitempty"`
	EveryBatches Batch  `json:"every_batches,omitempty"`

	Version     Version `json:"version"`                // newest durable version, of this run or the one that it resumes; 0: none
	DurableMS   int64   `json:"durable_ms,omitempty"`   // time at which it became durable, by the clock of the reporting member
	Bytes       int64   `json:"bytes,omitempty"`        // of its parts
	TookSeconds Real    `json:"took_seconds,omitempty"` // time from the request until durable; 0 for a resumed version

	// Failures is the number of requested versions that did not become durable. Failure is the reason of the last, and is
	// cleared by the next success.
	Failures uint64 `json:"failures,omitempty"`
	Failure  string `json:"failure,omitempty"`
	// LateMS is how long trainers have been past a requested version that is not durable; 0: they are not.
	LateMS int64 `json:"late_ms,omitempty"`
}

// FailureBytesMax bounds the texts of a DurabilityReport and a CheckpointPart: a ps may report many jobs with the same
// disk.
const FailureBytesMax = 512

// ClipFailure shortens a text to FailureBytesMax. It omits the middle, since the end of an error with a path has the
// reason.
func ClipFailure(text string) string {
	const dots, end = "...", 200
	if text = strings.ToValidUTF8(text, "\ufffd"); len(text) <= FailureBytesMax {
		return text
	}
	from, to := FailureBytesMax-end-len(dots), len(text)-end
	for text[from]&0xc0 == 0x80 { // not within a character
		from--
	}
	for text[to]&0xc0 == 0x80 {
		to++
	}
	return text[:from] + dots + text[to:]
}

// MemberReport is the slot of one trainer in a job.
type MemberReport struct {
	Member   Member `json:"member"`
	Host     string `json:"host"` // empty if the slot is free
	Batch    Batch  `json:"batch"`
	SilentMS int64  `json:"silent_ms"` // time since its last message
	Left     bool   `json:"left,omitempty"`
	Lost     bool   `json:"lost,omitempty"` // lost, in a job that continues without it
	Gone     bool   `json:"gone,omitempty"` // its connection has ended
	// Waited is set if rounds of WaitedBatch wait for it, since WaitedMS.
	Waited      bool  `json:"waited,omitempty"`
	First       bool  `json:"first,omitempty"` // the earliest of these rounds waits for it
	WaitedBatch Batch `json:"waited_batch,omitempty"`
	WaitedMS    int64 `json:"waited_ms,omitempty"`
	LimitMS     int64 `json:"limit_ms,omitempty"` // time after which the job gives it up, or ends
}

// ShardReport is one shard of one job.
type ShardReport struct {
	Job            JobName  `json:"job"`
	Shard          int      `json:"shard"`
	Ready          bool     `json:"ready"`
	Version        Version  `json:"version"`
	Frames         uint64   `json:"frames"` // accepted contributions and requests
	Bytes          uint64   `json:"bytes"`
	Acks           uint64   `json:"acks"`
	Lookups        uint64   `json:"lookups"`
	Pulls          uint64   `json:"pulls"`
	Repeats        uint64   `json:"repeats"`
	Rounds         uint64   `json:"rounds"` // closed rounds
	StagedBytes    int64    `json:"staged_bytes"`
	StagedBytesMax int64    `json:"staged_bytes_max"`
	QueueFrames    int      `json:"queue_frames"`
	QueueBytes     int64    `json:"queue_bytes"`
	MemoryBytes    int64    `json:"memory_bytes"`         // memory promised to it
	HeldBytes      int64    `json:"held_bytes,omitempty"` // rows, parameters and gradients that it holds
	Idle           string   `json:"idle,omitempty"`       // why it has no work in the job; empty if it has
	StepSeconds    Real     `json:"step_seconds"`         // in the state machine: checking, adding, applying
	PublishSeconds Real     `json:"publish_seconds"`      // handing results to the network
	ApplySeconds   Real     `json:"apply_seconds"`        // in kernels: sums and optimizer
	ApplyBytes     uint64   `json:"apply_bytes"`          // read and written by these
	Waiting        *Waiting `json:"waiting,omitempty"`

	Buckets []BucketReport `json:"buckets,omitempty"` // buckets that had a round, ascending; at most TelemetryBucketsMax
}

// EndedShard has the last figures of a shard that has ended.
type EndedShard struct {
	Job     JobName        `json:"job"`
	Run     RunID          `json:"run,string"`
	Shard   int            `json:"shard"`
	Buckets []BucketReport `json:"buckets,omitempty"`
}

// BucketReport has the times of one bucket's rounds on a shard since it was made. Times are sums over the rounds, or,
// as their names tell, minima, maxima or sums of squares. Jobs in grouped have none.
type BucketReport struct {
	Bucket Bucket `json:"bucket"`
	Sparse bool   `json:"sparse,omitempty"` // all rows on the shard
	Rounds uint64 `json:"rounds"`           // answered rounds

	StragglerSeconds    Real `json:"straggler_seconds"` // from the first trainer's whole gradient to the last one's
	StragglerMaxSeconds Real `json:"straggler_max_seconds"`
	BatchSeconds        Real `json:"batch_seconds"` // from the first until all were answered
	BatchMaxSeconds     Real `json:"batch_max_seconds"`
	ArrivalSeconds      Real `json:"arrival_seconds"` // time of adding gradients as they arrived
	// AverageSeconds is the time of the remaining sums and the division, and of the optimizer if the shard has it.
	AverageSeconds Real `json:"average_seconds"`

	StragglerMinSeconds     Real `json:"straggler_min_seconds,omitempty"`
	StragglerSquaredSeconds Real `json:"straggler_squared_seconds,omitempty"`
	BatchMinSeconds         Real `json:"batch_min_seconds,omitempty"`
	BatchSquaredSeconds     Real `json:"batch_squared_seconds,omitempty"`
	AverageMinSeconds       Real `json:"average_min_seconds,omitempty"`
	AverageMaxSeconds       Real `json:"average_max_seconds,omitempty"`
	AverageSquaredSeconds   Real `json:"average_squared_seconds,omitempty"`
}

// GPUReport is a GPU of a machine and its health. Values that the driver does not report are nil, never 0.
type GPUReport struct {
	Index  int    `json:"index"`
	UUID   string `json:"uuid"`
	Name   string `json:"name"`
	PCI    string `json:"pci"`
	Driver string `json:"driver"`
	Used   bool   `json:"used"` // used by this process

	State    GPUState `json:"state"`
	Reason   string   `json:"reason"` // one sentence; empty if healthy
	Code     string   `json:"code"`   // short and stable: "xid-79", "ecc-uncorrectable"; a label of metrics
	Action   string   `json:"action"` // recommended action, one sentence
	SinceMS  int64    `json:"since_ms"`
	SampleMS int64    `json:"sample_ms"` // time of the last query
	Injected bool     `json:"injected,omitempty"`

	Temperature     *Real  `json:"temperature_celsius,omitempty"`
	ThermalMargin   *Real  `json:"thermal_margin_celsius,omitempty"`
	PowerWatts      *Real  `json:"power_watts,omitempty"`
	PowerLimitWatts *Real  `json:"power_limit_watts,omitempty"`
	Utilisation     *Real  `json:"utilisation_ratio,omitempty"` // 0 to 1
	MemoryUsed      *int64 `json:"memory_used_bytes,omitempty"`
	MemoryTotal     *int64 `json:"memory_total_bytes,omitempty"`
	SMClockHz       *int64 `json:"sm_clock_hz,omitempty"`
	MemoryClockHz   *int64 `json:"memory_clock_hz,omitempty"`

	ECCCorrected   *uint64           `json:"ecc_corrected,omitempty"` // since the driver was loaded
	ECCUncorrected *uint64           `json:"ecc_uncorrected,omitempty"`
	RowsRemapped   *uint64           `json:"rows_remapped,omitempty"`
	RetiredPages   *uint64           `json:"retired_pages,omitempty"`
	PCIeReplays    *uint64           `json:"pcie_replays,omitempty"`
	PCIeWidth      *int              `json:"pcie_width,omitempty"`
	PCIeWidthMax   *int              `json:"pcie_width_max,omitempty"`
	NVLinkErrors   *uint64           `json:"nvlink_errors,omitempty"`
	Throttled      []string          `json:"throttled,omitempty"` // reasons of lower clocks: "hw_slowdown", "sw_thermal"
	XIDs           map[string]uint64 `json:"xids,omitempty"`      // number of events by code since the probe began
}

// GPUState is the health of a GPU.
type GPUState string

// States of a GPU. After the first two, which have no information, they are ordered from best to worst.
const (
	GPUAbsent    GPUState = "absent"    // expected, but not present
	GPUUnknown   GPUState = "unknown"   // it cannot be queried: no driver, or no answer
	GPUHealthy   GPUState = "healthy"   //
	GPUDegraded  GPUState = "degraded"  // works, slower or with a warning; clears after three clean polls
	GPUUnhealthy GPUState = "unhealthy" // may compute wrongly or not at all; stays until acknowledged
)

// Real is a number that may be NaN or infinite. Since JSON has no numbers for these, they are encoded as "NaN", "+Inf"
// and "-Inf".
type Real float64

// MarshalJSON implements json.Marshaler.
func (r Real) MarshalJSON() ([]byte, error) {
	switch f := float64(r); {
	case math.IsNaN(f):
		return []byte(`"NaN"`), nil
	case math.IsInf(f, 1):
		return []byte(`"+Inf"`), nil
	case math.IsInf(f, -1):
		return []byte(`"-Inf"`), nil
	default:
		return strconv.AppendFloat(nil, f, 'g', -1, 64), nil
	}
}

// UnmarshalJSON implements json.Unmarshaler. null changes nothing.
func (r *Real) UnmarshalJSON(b []byte) error {
	text := string(b)
	switch text {
	case "null":
		return nil
	case `"NaN"`, `"+Inf"`, `"-Inf"`:
		text = text[1 : len(text)-1]
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("number %s: want a number, \"NaN\", \"+Inf\" or \"-Inf\"", Clip(string(b)))
	}
	*r = Real(f)
	return nil
}
