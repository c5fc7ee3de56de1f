// Package status makes one view of all jobs from the reports of their members: what the page, the API and the terminal
// show, with one sentence that says why a job does not make progress.
//
// It is pure: reports and times in, statuses out. It knows no HTTP, no clock and no NATS, and its only state is a
// Tracker's. An operator on call must see within five seconds what is wrong, on which trainer, shard or GPU, since
// when, and what to do. So everything here ends in problems, and each problem in one sentence:
//
//	tracker    which reports are accepted, one status a second, and what is forgotten when
//	members    ps, runs, trainers and shards as known; rates over ten seconds
//	build      the view of one moment: rows of trainers, shards, ps, GPUs
//	jobs       problems of jobs: silent, gone or awaited members; durability and replicas
//	servers    problems of machines, ps, GPUs and the control server; full disks, refused frames, NaN
//	rank       the beginning and end of problems, their order, the sentence
//	events     events, and the points of curves
//
// # Time
//
// Only the caller's times count, and durations in reports: clocks of other machines may be hours off, or be set while
// a job runs. A member that stops reporting grows older and does not vanish: trainers stay with their run, a ps or a
// GPU for ten minutes. A silent member is shown after two intervals and 0.9 s, and a trainer that a batch waits for
// already after one and a half. A pause of this process makes no member silent.
//
// # Which reports count
//
// The sender of a report is that of its subject, which the NATS server enforces; a different claim in the body changes
// nothing. Reports of a ps that is not in the registry are ignored, as are those of a trainer in a run that no ps has
// reported. Repeated and late reports change nothing. A run belongs to the ps that reported it first, while that ps
// reports. Shards are reported by the ps that the run's coordinator names. A GPU is identified by machine and UUID,
// and its worst report counts. Counters that fall begin a new life: rates are never negative.
//
// # Memory
//
// A Tracker keeps, in bytes at most:
//
//	a run        224 x 3600 for its series: 0.8 MB
//	a trainer    6,000
//	a shard      6,000
//	a ps         6,000
//	a GPU        200 for each that speaks of it, with 64 of these at most
//	events       2000 x (200 + text)
//
// times JobsMax, TrainersMax, ShardsMax, ServersMax and GPUsMax, and the latest reports of all members, of 64 MiB as
// frames. A job of 64 trainers and 16 shards takes about 4 MB. What is beyond a bound is not shown, and a problem says
// so.
package status

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"gradbus/schema"
)

// Status is everything that the page, the API and the terminal show of this moment: one view of all jobs, trainers,
// shards and GPUs that this ps receives reports of, whichever ps coordinates them. GET /api/v1/status returns it and
// the stream sends it once a second. It is immutable once made. Times are milliseconds since 1970 by the clock of the
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
	// all that is wrong, the worst first, at most ProblemsMax; Why is made from the first
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
	Replica    *Replica    `json:"standby"` // nil where no ps has held a replica
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
	HeldMS  int64  `json:"held_ms"` // for how long others have waited for it; 0 where none does
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
}

// Replicas compares the trainers' replicas at one version.
type Replicas struct {
	Version uint64            `json:"version"` // the newest that two or more have told of, or at which two differ
	Equal   bool              `json:"equal"`
	Digests map[string]string `json:"digests"` // by member, hexadecimal
}

// Durability is the coordinator's report on the part of a job that survives the end of all of its processes, with the age
// of the newest durable version by the local clock.
type Durability struct {
	schema.DurabilityReport
	AgeMS int64 `json:"age_ms"`
}

// Server is one ps.
type Server struct {
	ID               string                `json:"id"`
	State            string                `json:"state,omitempty"` // draining where it was asked to end
	Host             string                `json:"host"`
	PID              int                   `json:"pid"`
	Level            Level                 `json:"level"`
	AgeMS            int64                 `json:"age_ms"`
	StartedMS        int64                 `json:"started_ms"`
	Version          string                `json:"version"`
	URL              string                `json:"url"`
	Page             string                `json:"page"`
	Backend          string                `json:"backend"`
	ControlLost      bool                  `json:"control_lost"`
	BytesPerSecond   schema.Real           `json:"bytes_per_second"`
	RefusedPerSecond schema.Real           `json:"refused_per_second"`
	Reasons          map[string]uint64     `json:"reasons"` // totals; those that are not 0
	Dropped          uint64                `json:"dropped"`
	SlowReaders      uint64                `json:"slow_readers"`
	CPU              schema.Real           `json:"cpu"`
	ResidentBytes    int64                 `json:"resident_bytes"`
	PromisedBytes    int64                 `json:"promised_bytes"`
	MemoryMaxBytes   int64                 `json:"memory_max_bytes"`
	Verified         uint64                `json:"verified"`
	Mismatches       uint64                `json:"mismatches"`
	Disks            []Disk                `json:"disks"`
	Primary          *schema.PrimaryReport `json:"stands_by,omitempty"` // nil if it holds replicas for no other ps
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

// GPU is a GPU and the members that use it.
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

// Series is the answer of GET /api/v1/series?job=NAME&since=MS: columns of equal length, times ascending, null where
// there was no report. Points are EveryMS apart: a second at first, and twice as long whenever 3,600 points are kept.
type Series struct {
	Job     string  `json:"job"`
	RunID   string  `json:"run_id"`
	EveryMS int64   `json:"every_ms"`
	AtMS    []int64 `json:"at_ms"`
	// Columns by name: batch, loss, norm, samples, keys, lookup, compute, send, result, sent, received, pending, refused,
	// resent.
	Columns map[string][]*schema.Real `json:"columns"`
}

// Event is something that happened, newest last. At most eventsMax are kept.
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

// eventsMax bounds the events that are kept, and ProblemsMax the problems of a status.
const (
	eventsMax   = 1000
	ProblemsMax = 256
)

// Update is the event "update" of GET /api/v1/stream, sent once a second and at once when the worst problem changes. A
// slow client misses updates and delays no other; it notices that by Serial, and requests the series and events since
// what it knows.
type Update struct {
	Status Status           `json:"status"`
	Points map[string]Point `json:"points"` // the newest of each running job
	Events []Event          `json:"events"` // since the update before, newest last
}

// Code is one thing that can be wrong: the label of a metric, the name of a runbook, and the code of problems and
// events.
type Code struct {
	Code    string
	Level   Level  // at worst; some are less where nothing depends on what is wrong
	Runbook string // heading of docs/runbooks.md
	Title   string // what it is, in a few words
	Action  string // what to do, where nothing better is known of the case

	// hold is how long it must last before it is a problem, and linger how long it stays one after it is over, so
	// that what comes and goes is one problem: in milliseconds.
	hold, linger int64
}

// Codes of problems.
const (
	CodeReplicas         = "replicas-differ"
	CodeVerification     = "verification-mismatch"
	CodeGPUUnhealthy     = "gpu-unhealthy"
	codeGPUAbsent        = "gpu-absent"
	CodeDiskFull         = "disk-full"
	CodeCoordinator      = "coordinator-lost"
	CodeServerSilent     = "server-silent"
	CodeControlLost      = "control-lost"
	codeTrainerGone      = "trainer-gone"
	CodeSilent           = "trainer-silent"
	CodeLeftEarly        = "trainer-left-early"
	codeJobFailed        = "job-failed"
	codeLossBad          = "loss-not-finite"
	codeShardSilent      = "shard-silent"
	CodeShardUnready     = "shard-not-ready"
	CodeHeldUp           = "trainer-held-up"
	codeNoProgress       = "no-progress"
	CodeTrainerLost      = "trainer-lost"
	codeGPUDegraded      = "gpu-degraded"
	codeGPUUnknown       = "gpu-unknown"
	CodeRefusals         = "frames-refused"
	codeMemory           = "memory-short"
	CodeDiskLow          = "disk-low"
	codeDiskHangs        = "disk-hangs"
	codeNotDurable       = "not-durable"
	CodeNoReplica        = "not-stood-by"
	CodePrimaryUnreached = "standby-unreached"
	codeMissing          = "trainers-missing"
	codeMajority         = "majority-missing"
	codeVersions         = "versions-differ"
	CodeTooMany          = "too-many-members"
)

// burstHold is longer than one burst of some seconds counts in a rate, such as the frames of trainers that do not know
// yet that their ps was started again.
const burstHold = rateWindow + 5_000

// Codes is every code that a Problem can have, causes before what follows from them: of two problems of one level the
// earlier here is the one to look at.
func Codes() []Code {
	all := make([]Code, len(codes))
	for i, c := range codes {
		_, all[i] = rank(c.Code)
	}
	return all
}

// codes is never written to. Runbooks have the names of their codes.
var codes = [...]Code{
	{Code: CodeReplicas, Level: Critical, Title: "trainers have different parameters at one version",
		Action: "Stop the job: its results are not those of the data. Start it again from its last good model, without the " +
			"trainer that differs."},
	{Code: CodeVerification, Level: Critical, Title: "a result came out otherwise when it was computed again",
		Action: "Take that GPU, or that machine, out of use; start the job again from a model saved before the mismatch."},
	{Code: CodeGPUUnhealthy, Level: Critical, Title: "a GPU may compute wrongly, or not at all",
		Action: "Move the job to another GPU and have this one reset or replaced."},
	{Code: codeGPUAbsent, Level: Critical, Title: "a GPU that is expected is not there",
		Action: "Look at `nvidia-smi` and the kernel's log on that machine; a reset or a restart of the machine may " +
			"bring it back."},
	{Code: CodeDiskFull, Level: Critical, Title: "a disk that is written to is full",
		Action: "Free space there; nothing can be saved until then."},
	{Code: codeDiskHangs, Level: Warning, Title: "a disk that is written to does not answer", linger: 5_000,
		Action: "Look at that machine's kernel log, and at the server of the file system where it is on the network: " +
			"processes that save there wait until it answers."},
	{Code: CodeControlLost, Level: Critical, Title: "a ps cannot reach the control server", linger: 3_000,
		Action: "Look at the control server and the network to it; running jobs continue for their deadline."},
	{Code: CodeCoordinator, Level: Critical, Title: "the ps that coordinates a job is not heard of",
		Action: "Look at that ps and its machine; start it again if it has ended, and the job after it."},
	{Code: CodeServerSilent, Level: Critical, Title: "a ps is not heard of",
		Action: "Look at that ps and its machine; start it again if it has ended."},
	{Code: codeTrainerGone, Level: Critical, Title: "a trainer's connection is gone",
		Action: "Look why it ended: its log, and the kernel's for out of memory."},
	{Code: CodeSilent, Level: Critical, Title: "a trainer is not heard of",
		Action: "Look whether the process runs and its machine answers."},
	{Code: CodeLeftEarly, Level: Critical, Title: "a trainer has left while others need it",
		Action: "Start the job again with the same number of batches on every trainer."},
	{Code: codeJobFailed, Level: Critical, Title: "a job has failed",
		Action: "Fix the cause and start the job again."},
	{Code: codeMajority, Level: Critical, Title: "a job waits for the majority of its trainers",
		Action: "Start the trainers that are named, or let them reach that ps. If the lost ps has ended, let the job continue " +
			"without them: `./bin/ps takeover JOB`."},
	{Code: codeLossBad, Level: Critical, Title: "the loss, or the gradient, is NaN or infinite",
		Action: "Stop the job and start it from an earlier model with a smaller learning rate; look at the data of " +
			"that batch."},
	{Code: codeShardSilent, Level: Critical, Title: "a shard is not told of by its ps", hold: 2_000, linger: 2_000,
		Action: "Look at the log of the ps that has it."},
	{Code: CodeShardUnready, Level: Critical, Title: "a shard is not ready", hold: 5_000,
		Action: "Look at the log of the ps that has it."},
	{Code: codeGPUDegraded, Level: Warning, Title: "a GPU works with a warning",
		Action: "Watch it; plan for a replacement if it comes again."},
	{Code: CodeTrainerLost, Level: Warning, Title: "a job continues without a trainer",
		Action: "In async it is readmitted if its process continues; no other trainer can take its place in this run. " +
			"If its share " +
			"of the data is needed, end the job and start it again."},
	{Code: CodeHeldUp, Level: Critical, Title: "a batch waits for one trainer", linger: 3_000,
		Action: "Look at what that trainer does: its log, its machine's load."},
	{Code: codeNoProgress, Level: Critical, Title: "no batch is completed", linger: 2_000,
		Action: "Look at what each trainer does (table of trainers), and at the log of the shard that it waits for; without an end " +
			"to it, start the job again."},
	{Code: codeGPUUnknown, Level: Warning, Title: "a GPU cannot be asked", hold: 3_000, linger: 3_000,
		Action: "Run `./bin/ps doctor` and `nvidia-smi` on that machine."},
	{Code: CodeRefusals, Level: Warning, Title: "frames are refused", hold: burstHold, linger: 15_000,
		Action: "Look at the reason: damaged frames point to the network or memory, others to a defect of the sender."},
	{Code: codeMemory, Level: Warning, Title: "a ps has promised nearly all of its memory", hold: 5_000, linger: 5_000,
		Action: "Give it more (`./bin/ps --memory-mib`), or wait until a job has ended: further jobs are refused."},
	{Code: CodeDiskLow, Level: Warning, Title: "a disk that is written to is nearly full", linger: 5_000,
		Action: "Free space there."},
	{Code: codeNotDurable, Level: Warning, Title: "versions of a job do not become durable", hold: 3_000,
		Action: "Look at the disk under `--checkpoint-dir` and at the log of that ps: a crash now costs all that was " +
			"trained since the newest durable version."},
	{Code: CodeNoReplica, Level: Warning, Title: "no ps has a replica of a job", hold: 3_000,
		Action: "Start another ps with `--replicas 1` (in a pair also `--peer` and the address of this one), or give the ps that " +
			"is named more memory (`--memory-mib`): if this ps is lost now, the job continues from its newest durable version, " +
			"or from nothing."},
	{Code: CodePrimaryUnreached, Level: Warning, Title: "a ps does not reach the one for which it holds replicas",
		hold: replicaGrace,
		Action: "Look at that ps and the network to it, and at the log of the one that holds the replica: the address, the token " +
			"or the certificates of `--peer` may be wrong."},
	{Code: codeMissing, Level: Warning, Title: "a job waits for trainers to join",
		Action: "Start the trainers that are missing."},
	{Code: codeVersions, Level: Warning, Title: "ps of different versions run together", hold: 5_000,
		Action: "Run one version everywhere."},
	{Code: CodeTooMany, Level: Warning, Title: "there is more than can be shown", linger: 60_000,
		Action: "Look who announces so much; training is not touched by it."},
}

// rank is the place of a code in the table, and the code; what is not there is last.
func rank(code string) (int, Code) {
	for i, c := range codes {
		if c.Code == code {
			c.Runbook = c.Code
			return i, c
		}
	}
	return len(codes), Code{Code: code, Level: Warning}
}

// levels in order of weight.
func weight(l Level) int {
	switch l {
	case Critical:
		return 3
	case Warning:
		return 2
	case Info:
		return 1
	}
	return 0
}

func worse(a, b Level) Level {
	if weight(b) > weight(a) {
		return b
	}
	return a
}

// Ago writes a duration of ms milliseconds for sentences: "0.4 s", "18 s", "3 min", "2 h 5 min", "3 days".
func Ago(ms int64) string {
	switch s := ms / 1000; {
	case s < 1:
		return fmt.Sprintf("0.%d s", max(ms/100, 1))
	case s < 120:
		return fmt.Sprintf("%d s", s)
	case s < 120*60:
		return fmt.Sprintf("%d min", s/60)
	case s < 48*3600:
		if m := s / 60 % 60; m > 0 {
			return fmt.Sprintf("%d h %d min", s/3600, m)
		}
		return fmt.Sprintf("%d h", s/3600)
	default:
		return fmt.Sprintf("%d days", s/86400)
	}
}

// Count writes a quantity with its thousands apart: "12,300". Numbers of batches and versions are names, and are written
// as in logs.
func Count(f float64) string {
	if math.IsNaN(f) || math.Abs(f) >= 1e15 {
		return "very many"
	}
	if f < 10 && f != math.Trunc(f) {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	digits := strconv.FormatFloat(math.Round(f), 'f', 0, 64)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Figure writes a number with three significant digits: "0.41", "12.3", "NaN".
func Figure(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 0):
		return "infinite"
	case f == 0:
		return "0"
	case math.Abs(f) >= 1000 && math.Abs(f) < 1e6:
		return Count(f)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}

// Amount writes a number of bytes: "512 MiB".
func Amount(bytes int64) string {
	const units = "KMGTP"
	f, unit := float64(bytes), ""
	for i := 0; f >= 1024 && i < len(units); i++ {
		f, unit = f/1024, units[i:i+1]+"i"
	}
	if f < 10 && unit != "" {
		return fmt.Sprintf("%.1f %sB", f, unit)
	}
	return fmt.Sprintf("%.0f %sB", f, unit)
}

// list writes names: "t0", "t0 and t3", "t0, t1 and 3 more".
func list(names []string) string {
	switch n := len(names); {
	case n == 0:
		return "none"
	case n == 1:
		return names[0]
	case n <= 4:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	default:
		return strings.Join(names[:3], ", ") + fmt.Sprintf(" and %d more", n-3)
	}
}

// plural writes a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
