package schema

import (
	"fmt"
	"slices"

	"gradbus/lane"
)

// Control is the body of a control frame: exactly one field is set. It is sent as JSON; unknown fields are refused.
type Control struct {
	Join    *Join    `json:"join,omitempty"`
	Joined  *Joined  `json:"joined,omitempty"`
	Refused *Refused `json:"refused,omitempty"`
	Start   *Start   `json:"start,omitempty"`
	Leave   *Leave   `json:"leave,omitempty"`
	Ended   *Ended   `json:"ended,omitempty"`
	Assign  *Assign  `json:"assign,omitempty"`
	Report  *Report  `json:"report,omitempty"`
	LR      *LR      `json:"lr,omitempty"`
	LRTaken *LRTaken `json:"lr_taken,omitempty"`
	// Checkpoint asks for a durable version, and answers when it is.
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	Group      *Group      `json:"group,omitempty"`
	// Stalled tells all trainers which trainer a batch waits for.
	Stalled *Stalled `json:"stalled,omitempty"`

	Keep  *Keep  `json:"keep,omitempty"`
	Kept  *Kept  `json:"kept,omitempty"`
	Query *Query `json:"query,omitempty"`

	Follow *Follow `json:"follow,omitempty"`
	Drain  *Drain  `json:"drain,omitempty"`
	Jobs   *Jobs   `json:"jobs,omitempty"`
}

// Join asks the coordinator to admit a trainer. Wanted is a member id, or empty for the next free one.
type Join struct {
	Job    *Job   `json:"job"`
	Wanted Member `json:"wanted,omitempty"`
	Host   string `json:"host"`                      // host name and process id, for messages to people
	Data   string `json:"data,omitempty"`            // how it reaches shards: DataDirect (also "") or DataCluster
	URL    string `json:"url,omitempty" check:"url"` // of its own data server, if trainers reduce; else empty
	// Resume requests the newest durable version of the job instead of version 0.
	Resume bool `json:"resume,omitempty"`
	// Run is the earlier run that the trainer was part of. The trainer wants to rejoin it, or, with Resume, a run that
	// continues from its newest durable version (version 0 if there is none). 0: any run.
	Run RunID `json:"run_id,omitempty,string"`
	// Key identifies a request for a slot across repetitions and names; 0: none. If a trainer has a slot under an
	// earlier name with this key, it never received the answer.
	Key uint64 `json:"key,omitempty,string"`
	// Process identifies the trainer's process, so that a ps on the same machine notices its end; empty: unknown.
	Process string `json:"process,omitempty"`
	// Number is drawn by the trainer at its start: a restarted trainer has another one.
	Number uint64 `json:"number,omitempty,string"`
	// Promised is the generation of the trainer's slot in Run when it promised to follow another ps: Run takes it back
	// only after the slot has a later one. 0: it has promised nothing.
	Promised Generation `json:"promised,omitempty"`
}

// Voter is a trainer whose vote decides which ps continues its run: the slot and the number of its Join.
type Voter struct {
	Member Member `json:"member"`
	Number uint64 `json:"number,string"`
}

// How a trainer reaches shards.
const (
	DataDirect  = "direct"  // it dials the data server of every ps
	DataCluster = "cluster" // through the NATS server that carries control
)

// DataServer is the server of some shards of a job.
type DataServer struct {
	ID     string `json:"id" check:"id"`   // of the ps
	URL    string `json:"url" check:"url"` // nats://host:port or tls://host:port; "": the server that carries control
	Shards []int  `json:"shards" check:"shards,shard"`
}

// Joined admits a trainer. Started is true once all trainers have joined. A trainer that was already admitted receives
// it for the slot of a lost trainer, which it takes in addition to its own.
type Joined struct {
	Member     Member     `json:"member"`
	RunID      RunID      `json:"run_id,string"`
	Generation Generation `json:"generation"`
	FirstLane  lane.Lane  `json:"first_lane" check:"lane"`
	LaneCount  int        `json:"lane_count" check:"lanes"`
	Shards     int        `json:"shards" check:"shards"`
	Missing    int        `json:"missing" check:"lanes"` // trainers that have not joined
	Started    bool       `json:"started"`
	DeadlineMS int64      `json:"deadline_ms" check:"ms"` // after which a silent member counts as lost

	// First credit to each shard, and most bytes in flight; 0: 4 MiB.
	WindowBytes int64 `json:"window_bytes,omitempty" check:"bytes"`
	// ParkedBytes bounds what each shard stores of the parked lookups of one batch: frames, and 1 KiB for each.
	ParkedBytes int64 `json:"parked_bytes,omitempty" check:"bytes"`
	// Chunk size of this run, if all windows together have no room for the manifest's; 0: the manifest's.
	ChunkBytes int `json:"chunk_bytes,omitempty" check:"bytes"`

	LR []LRChange `json:"lr,omitempty" check:"changes"` // decided changes
	// Version is the version that the trainer begins with: 0, that of the checkpoint, or, for a slot in a running job,
	// the version that the current batch is computed on.
	Version Version `json:"version,omitempty"`
	// Durable is set if versions of the job are written, so that it can be resumed after its servers are lost.
	Durable bool `json:"durable,omitempty"`
	// Trainers is the number of trainers in this run; 0: that of the manifest.
	Trainers int `json:"trainers,omitempty" check:"lanes"`
	// Resumed is the version that the job was resumed at; 0: it was not resumed.
	Resumed Version `json:"resumed,omitempty"`

	// Replica is the URL where the job continues if its ps is lost; empty: nowhere.
	Replica string `json:"replica,omitempty" check:"url"`

	Servers []DataServer `json:"servers,omitempty" check:"shards"` // empty: all shards are on the server that answers
	// Peers is the data servers of all trainers, in the order of their ids, once started, if trainers reduce.
	Peers []string `json:"peers,omitempty" check:"lanes,url"`
}

// Refused rejects a joining trainer. If the job differs, Field names the first differing field of the manifest, Have
// the registered value and Want the trainer's.
type Refused struct {
	// "job_differs", "member_taken", "job_full", "invalid_job", "server_full", or RefusedBusy
	Reason string `json:"reason"`
	Field  string `json:"field,omitempty"`
	Have   string `json:"have,omitempty"`
	Want   string `json:"want,omitempty"`
	Text   string `json:"text"`
}

// RefusedLR is the reason of a Refused that answers a request to change the learning rates.
const RefusedLR = "lr"

// RefusedCheckpoint is the reason of a Refused that answers Checkpoint.
const RefusedCheckpoint = "checkpoint"

// RefusedBusy is the reason of a Refused that is not final: Text names the obstacle, and a repeated request may be
// admitted.
const RefusedBusy = "busy"

// FieldVoters is the Field of a busy Refused by a ps that counts the trainer's promise to follow it, and waits for
// more.
const FieldVoters = "voters"

// RefusedOver is the reason of a Refused that answers a join to a run which has ended or was never known there.
const RefusedOver = "job_over"

// RefusedReplaced is the reason of a Refused for a trainer whose slot was given to another one.
const RefusedReplaced = "replaced"

// Start tells the trainers that all have joined. It is repeated each second while another ps has a replica of the job.
type Start struct {
	// Replica is the URL where the job continues if its ps is lost; empty: nowhere.
	Replica string `json:"replica,omitempty" check:"url"`
}

// Leave ends a trainer's membership. A Reason that is not empty says that it could not finish, and fails the job unless
// the frame has FlagComplete: then the failure came after the training, and the others have its contributions. The
// coordinator sends it to a trainer that leaves later and may leave at once.
type Leave struct {
	Reason string `json:"reason,omitempty"`
	// HandOver says that another trainer may compute its lanes from now on.
	HandOver bool `json:"hand_over,omitempty"`
	// Later says that the trainer trains on until the run ends with a durable version, so that the others lose nothing. It
	// is repeated.
	Later bool `json:"later,omitempty"`
	// End is EndStopped if the trainer was asked to end, else empty.
	End End `json:"end,omitempty"`
}

// Stalled names a live trainer that keeps a batch waiting. The coordinator repeats it, seldom, while that lasts.
type Stalled struct {
	Member   Member `json:"member"`
	Host     string `json:"host"` // as of Join
	Batch    Batch  `json:"batch"`
	WaitedMS int64  `json:"waited_ms" check:"ms"`
	LimitMS  int64  `json:"limit_ms" check:"ms"` // after which the job gives up the trainer, or ends
}

// Ended tells the end of a run to its trainers, and to every ps that has shards or a replica of it, or the end of a
// trainer's part in it to that trainer. A ps that cannot continue sends it to the coordinator. It also answers a Query
// about a run that has ended, and continues at the answering ps.
type Ended struct {
	Member Member `json:"member,omitempty"` // the cause; empty: there is none
	Text   string `json:"text,omitempty"`
	// Back says that the job can be resumed: its trainers rejoin, and replicas are kept for a while. From a ps it says
	// that this one was asked to end, or could not read the version that the job begins with.
	Back bool `json:"back,omitempty"`
	// End is how; empty is EndFailed.
	End End `json:"end,omitempty"`
}

// End is the way in which a run, or a trainer's part in it, ended.
type End string

// Ways in which a run ends.
const (
	EndCompleted End = "completed" // all of its trainers left without a reason
	EndStopped   End = "stopped"   // a trainer or a ps was asked to end, or the run had not begun
	EndFailed    End = "failed"
	EndContinued End = "continued" // another run has continued it
)

// Ends lists every way in which a run ends.
func Ends() []End { return []End{EndCompleted, EndStopped, EndFailed, EndContinued} }

// check checks an optional end.
func (e End) check() error {
	if e != "" && !slices.Contains(Ends(), e) {
		return fmt.Errorf("end %q: want one of %v", Clip(string(e)), Ends())
	}
	return nil
}

// Refusal is the body of a refusal frame; the frame's head repeats batch, bucket, chunk and node of the refused frame.
type Refusal struct {
	Reason string `json:"reason"` // a Reason's name
	Text   string `json:"text"`
}

// Assign tells a ps to run some shards of a job; the coordinator sends it to the member p-{id}. It is repeated until a
// Report has its serial.
type Assign struct {
	Job     *Job     `json:"job"`
	Serial  int      `json:"serial" check:"serial"`        // rises with every change; a ps ignores older ones
	Shards  int      `json:"shards" check:"shards"`        // of the job
	Own     []int    `json:"own" check:"shards,shard"`     // shards of this ps
	Cluster []Member `json:"cluster" check:"lanes"`        // trainers that use the control NATS for data
	Gone    []Member `json:"gone,omitempty" check:"lanes"` // trainers of a grouped job that will contribute no more
	// WindowBytes repeats Joined.WindowBytes; 0: the ps uses the window that it would grant.
	WindowBytes int64 `json:"window_bytes,omitempty" check:"bytes"`
	// LR lists every change of the learning rates, the proposed one last.
	LR []LRChange `json:"lr,omitempty" check:"changes"`
	// Resume is the id of the checkpoint that the shards begin with; empty: they draw version 0.
	Resume string `json:"resume,omitempty" check:"resume"`
	// Checkpoints lists the versions that shards write; nil: none.
	Checkpoints *Checkpoints `json:"checkpoints,omitempty"`
	// Since is, by trainer, the generation in which its slot was taken last; empty: the first generation, for all.
	// Shards accept only frames of that generation.
	Since []Generation `json:"since,omitempty" check:"lanes"`
	// Incarnation is the number that the ps had drawn at its start when the job was registered; 0: not known. A ps that
	// was restarted since then has lost its shards.
	Incarnation uint64 `json:"incarnation,omitempty,string"`
	// Made says that the ps has reported its shards: if it has none, it has lost them.
	Made bool `json:"made,omitempty"`
}

// Checkpoints tells the ps with shards of a job which versions to write. A ps without a folder writes none.
type Checkpoints struct {
	Epoch uint64  `json:"epoch"`        // of this run among those of the job's name, from 1
	At    Version `json:"at,omitempty"` // the version to write next; 0: none
	// Since is the newest durable version of the run when At was requested: parts report how much was touched since
	// then. With Increment they contain only that.
	Since     Version `json:"since,omitempty"`
	Increment bool    `json:"increment,omitempty"`
	// Complete says that At is complete on all shards: each copies it at once, and does not wait for the next batch.
	Complete bool `json:"complete,omitempty"`
}

// Checkpoint asks the coordinator to make a version durable that is complete on all shards. The trainer repeats it, and
// begins no batch before the coordinator answers with the same message, or with Refused.
type Checkpoint struct {
	Version Version `json:"version"`
}

// CheckpointPart is the part of a version that a shard has written, or why it could not.
type CheckpointPart struct {
	Version  Version `json:"version"`
	Shard    int     `json:"shard" check:"shard"`
	Bytes    int64   `json:"bytes" check:"bytes"`
	Checksum uint32  `json:"crc32c"`                            // of the file
	Touched  int64   `json:"touched,omitempty" check:"bytes"`   // bytes of what was touched since Checkpoints.Since
	Failure  string  `json:"failure,omitempty" check:"failure"` // why there is no part; at most FailureBytesMax
}

// Report tells the coordinator each second the state of the shards of a ps.
type Report struct {
	Serial  int       `json:"serial" check:"serial"` // of the last Assign that was applied
	Ready   bool      `json:"ready"`                 // version 0 is drawn on all of them
	Waiting []Waiting `json:"waiting" check:"lanes"`
	// Parts lists the newest version that each shard here has completely written, without shards that have written
	// none, and then the versions that shards have failed to write since.
	Parts []CheckpointPart `json:"parts,omitempty" check:"parts"`
	// Writing says that a shard here copies or writes a version: it would miss another one.
	Writing bool `json:"writing,omitempty"`
	// Generation is the newest generation of Since that all shards here apply; 0: the first.
	Generation Generation `json:"generation,omitempty"`
	// Done is the number of batches that were complete on all shards here when they began to apply it.
	Done Version `json:"done,omitempty"`
}

// Waiting lists the members that the open rounds of a batch wait for on a shard. It lists a member only while another
// has contributed to a round that it has not, so an idle job lists none.
//
// First are the Members that the earliest of these rounds waits for. Rounds are sent in one order, so a trainer that
// misses a later one may itself have no room to send before the earliest has closed.
type Waiting struct {
	Batch   Batch    `json:"batch"`
	Bucket  Bucket   `json:"bucket"` // of the earliest round
	Chunk   Chunk    `json:"chunk"`
	Members []Member `json:"members" check:"lanes"` // in the order of their lanes
	First   []Member `json:"first" check:"lanes"`
}

// Follow asks a ps, some times a second, to have the sender keep replicas of its shards (Keep), and continue its jobs.
// It goes to the coordinator of TelemetryJob.
type Follow struct {
	URL string `json:"url" check:"url"` // where trainers find the sender
	// Incarnation was drawn when the sender started.
	Incarnation uint64 `json:"incarnation,string"`
	Host        string `json:"host"` // host name and process id, for messages to people
	// Over lists runs that the sender has continued, and which have therefore ended at the receiver.
	Over []OverRun `json:"over,omitempty" check:"jobs"`
	// Leaving announces the sender's end.
	Leaving bool `json:"leaving,omitempty"`
}

// FollowMax bounds the jobs and the runs in a Follow.
const FollowMax = 1024

// OverRun is a run of a job that has ended.
type OverRun struct {
	Job JobName `json:"job"`
	Run RunID   `json:"run_id,string"`
}

// Query asks about a run that was lost. A trainer asks the ps with the replica whether the ps that serves the run is
// lost: the answer is Ended if so, else Refused. A ps that registers the job again asks the other ps for their replicas
// (Kept).
type Query struct {
	Run RunID `json:"run_id,omitempty,string"` // 0: the latest of the job
	// Over says that the ps with the run has ended, which the operator that asks knows: the answering ps continues the job.
	Over bool `json:"over,omitempty"`
}

// Keep makes a ps keep, in memory, replicas of some shards of a job, its own or those of others, so that the job can
// continue there if one of its ps is lost. The coordinator sends it to the member p-{id}, and repeats it each second.
type Keep struct {
	Job    *Job   `json:"job,omitempty"`         // nil once the ps has answered in this series
	Serial int    `json:"serial" check:"serial"` // rises with every change; a ps ignores older ones
	Series uint32 `json:"series"`                // of the frames that tell what shards have, their generation: what is of another is of an earlier attempt
	Shards int    `json:"shards" check:"shards"` // of the job
	// From lists the ps whose shards it keeps, itself included if it has some of several; none: it only sends the state
	// of its own shards.
	From []DataServer `json:"from,omitempty" check:"shards"`
	// To lists the ps that keep its own shards.
	To []Member `json:"to,omitempty" check:"shards"`
	// At is the version to send next; 0: none yet. Since is the version after which changes are sent; 0: everything is.
	At    Version `json:"at,omitempty"`
	Since Version `json:"since,omitempty"`
	// Whole is the version that all replicas have; 0: none yet.
	Whole Version `json:"whole,omitempty"`
	// LR lists every decided change of the learning rates.
	LR []LRChange `json:"lr,omitempty" check:"changes"`
	// Runs lists earlier runs whose trainers may still rejoin.
	Runs []RunID `json:"runs,omitempty" check:"runs"`
	// Process identifies the coordinator's process, so that its end is noticed on the same machine, and Incarnation is
	// the number that it drew at its start.
	Process     string `json:"process,omitempty"`
	Incarnation uint64 `json:"incarnation,omitempty,string"`
	// Voters lists the trainers of the run. In a pair, more than half of them must join the next run unless the sender
	// is known to have ended.
	Voters []Voter `json:"voters,omitempty" check:"lanes"`
	// Last says that the sender ends, and that the job is to continue at once, from Whole.
	Last bool `json:"last,omitempty"`
}

// KeptRunsMax bounds the runs in Keep and Kept.
const KeptRunsMax = 16

// Kept answers Keep and Query, and reports later changes to the coordinator.
type Kept struct {
	Server      string `json:"server" check:"id"`
	Incarnation uint64 `json:"incarnation,string"` // drawn at its start
	Run         RunID  `json:"run_id,omitempty,string"`
	Series      uint32 `json:"series,omitempty"`                   // 0: it keeps nothing of the run
	Shards      int    `json:"shards,omitempty" check:"shards"`    // of the job
	Own         []int  `json:"own,omitempty" check:"shards,shard"` // shards that it keeps
	Ready       bool   `json:"ready,omitempty"`                    // it has room for them, and a connection to their ps
	Serial      int    `json:"serial,omitempty" check:"serial"`    // of the last Keep
	// Version is the current version of the replica; Next is a later one that is whole, and waits until others have it,
	// too. 0: none.
	Version Version `json:"version,omitempty"`
	Next    Version `json:"next,omitempty"`
	// Missed is a version that a shard here cannot send, because the batch that is computed on it had begun.
	Missed Version    `json:"missed,omitempty"`
	Begun  Batch      `json:"begun,omitempty"`              // of its own shards
	TookMS int64      `json:"took_ms,omitempty" check:"ms"` // to tell of the last version
	Bytes  uint64     `json:"bytes,omitempty"`              // that were told in this series
	LR     []LRChange `json:"lr,omitempty" check:"changes"`
	Runs   []RunID    `json:"runs,omitempty" check:"runs"` // as of Keep
	// Failure is why it keeps nothing, until everything is sent again; at most FailureBytesMax.
	Failure string `json:"failure,omitempty" check:"failure"`
}

// RefusedElsewhere is the reason of a Refused by the ps with the replica: the ps that has the job is running, at Have,
// as far as it knows.
const RefusedElsewhere = "elsewhere"

// Drain asks a ps to end as after an interrupt: its jobs are handed over, or their last versions made durable. It goes
// to the coordinator of job TelemetryJob, and is repeated.
type Drain struct {
	// Server is the id of the ps; empty: the one that embeds the control server.
	Server string `json:"server,omitempty" check:"id"`
	// Incarnation is the incarnation of the answers so far; 0: there was none. A ps that was restarted is not drained.
	Incarnation uint64 `json:"incarnation,omitempty,string"`
}

// Jobs answers Drain and Follow. After Drain a last one is sent without a request.
type Jobs struct {
	Server      string `json:"server" check:"id"`
	Incarnation uint64 `json:"incarnation,string"` // drawn when the ps started
	// Ended says that the ps has ended, or is about to.
	Ended bool `json:"ended,omitempty"`
	// Jobs lists the jobs that it coordinates, by name, and those whose trainers are awaited there; at most FollowMax.
	Jobs []JobProgress `json:"jobs,omitempty" check:"jobs"`
}

// JobProgress is the progress of a job at its ps.
type JobProgress struct {
	Job     JobName `json:"job"`
	Version Version `json:"version"`                  // batches that trainers have begun, as far as they have said
	Durable Version `json:"durable,omitempty"`        // the newest; 0: nothing is
	Kept    Version `json:"kept,omitempty"`           // of the replicas that several ps hold for each other; 0: there are none
	To      string  `json:"to,omitempty" check:"url"` // address of the ps that it is handed over to; empty: none
}
