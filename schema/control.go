package schema

import (
	"fmt"
	"slices"

	"gradbus/lane"
)

// Control is the body of a control frame: exactly one field is set, but for Speaks. It travels as JSON; unknown fields
// are refused.
type Control struct {
	Speaks  *Speaks  `json:"speaks,omitempty"` // first; EncodeControl sets it where the message needs it
	Join    *Join    `json:"join,omitempty"`
	Joined  *Joined  `json:"joined,omitempty"`
	Refused *Refused `json:"refused,omitempty"`
	Start   *Start   `json:"start,omitempty"`
	Leave   *Leave   `json:"leave,omitempty"`
	Left    *Left    `json:"left,omitempty"`
	Leaving *Leaving `json:"leaving,omitempty"`
	Failed  *Failed  `json:"failed,omitempty"`
	Assign  *Assign  `json:"assign,omitempty"`
	Report  *Report  `json:"report,omitempty"`
	ScaleLR *ScaleLR `json:"scale_lr,omitempty"`
	LR      *LR      `json:"lr,omitempty"`
	LRTaken *LRTaken `json:"lr_taken,omitempty"`
	Group   *Group   `json:"group,omitempty"`
	// Stalled tells all trainers which one a batch waits for.
	Stalled *Stalled `json:"stalled,omitempty"`

	Follow  *Follow  `json:"follow,omitempty"`
	Heard   *Heard   `json:"heard,omitempty"`
	Standby *Standby `json:"standby,omitempty"`
	Lost    *Lost    `json:"lost,omitempty"`
	// Takeover is an operator's word that the ps of a job has ended, to the one that has its replica.
	Takeover *Takeover `json:"takeover,omitempty"`

	Keep  *Keep  `json:"keep,omitempty"`
	Kept  *Kept  `json:"kept,omitempty"`
	Query *Query `json:"query,omitempty"`

	Drain    *Drain    `json:"drain,omitempty"`
	Draining *Draining `json:"draining,omitempty"`
}

// Join asks the coordinator to admit a trainer. Wanted is a member id, or empty for the next free one.
type Join struct {
	Job    *Job   `json:"job"`
	Wanted Member `json:"wanted,omitempty"`
	Host   string `json:"host"`                      // host name and process id, for messages to people
	Data   string `json:"data,omitempty"`            // how it reaches shards: DataDirect (also "") or DataCluster
	URL    string `json:"url,omitempty" check:"url"` // of its own data server, where trainers reduce; else empty
	// Resume asks for the newest durable version of the job in place of version 0.
	Resume bool `json:"resume,omitempty"`
	// Run is the run of the job that the trainer was part of. It wants to be part of it again, or, with Resume, of
	// one that goes on from its newest durable version, which is 0 where there is none; 0: any.
	Run RunID `json:"run_id,omitempty,string"`
	// Was is the member that the trainer was in Run; empty where it does not say.
	Was Member `json:"was,omitempty"`
	// Key is the same each time that a trainer asks for the place it has not got yet, under whatever name; 0: it does not
	// say. Whoever has a place by an earlier name with this key has never heard that it has one.
	Key uint64 `json:"key,omitempty,string"`
	// Process is the process of the trainer, so that a ps on the same machine sees its end; empty: it does not.
	Process string `json:"process,omitempty"`
	// Number is the trainer's, drawn at its start: a trainer that was started again has another one.
	Number uint64 `json:"number,omitempty,string"`
	// Promised is the generation of the trainer's slot in Run when it promised another ps to follow it: Run takes it back
	// only after the slot has a later one. 0: it has promised nothing.
	Promised Generation `json:"promised,omitempty"`
}

// Voter is a trainer that decides with others which ps continues its run: the slot and the number of its Join.
type Voter struct {
	Member Member `json:"member"`
	Number uint64 `json:"number,string"`
}

// How a trainer reaches shards.
const (
	DataDirect  = "direct"  // it dials the data server of every ps
	DataCluster = "cluster" // by way of the NATS that carries control
)

// DataServer is where some shards of a job are reached.
type DataServer struct {
	ID     string `json:"id" check:"id"`   // of the ps
	URL    string `json:"url" check:"url"` // nats://host:port or tls://host:port; "": the server that carries control
	Shards []int  `json:"shards" check:"shards,shard"`
}

// Peer is another trainer's own data server.
type Peer struct {
	Member Member `json:"member"`
	URL    string `json:"url" check:"url"`
}

// Joined admits a trainer. Started is true once all trainers have joined. A trainer that was admitted receives it for the
// slot of a lost trainer, which it takes besides its own.
type Joined struct {
	Member     Member     `json:"member"`
	RunID      RunID      `json:"run_id,string"`
	Generation Generation `json:"generation"`
	FirstLane  lane.Lane  `json:"first_lane" check:"lane"`
	LaneCount  int        `json:"lane_count" check:"lanes"`
	Shards     int        `json:"shards" check:"shards"`
	Missing    int        `json:"missing" check:"lanes"` // trainers that have not joined yet
	Started    bool       `json:"started"`
	DeadlineMS int64      `json:"deadline_ms" check:"ms"` // after which a silent member counts as lost

	// first credit to each shard, and the most to have under way; 0: 4 MiB
	WindowBytes int64 `json:"window_bytes,omitempty" check:"bytes"`
	// ParkedBytes is what each shard keeps of lookups of one batch until their rows are there: frames, and 1 KiB for
	// each.
	ParkedBytes int64 `json:"parked_bytes,omitempty" check:"bytes"`
	// of this run, where all windows together have no room for the manifest's; 0: the manifest's
	ChunkBytes int `json:"chunk_bytes,omitempty" check:"bytes"`

	LR []LRChange `json:"lr,omitempty" check:"changes"` // changes that are decided
	// Version is the one that the trainer begins with: 0, that of the checkpoint, or, of a place in a job that runs,
	// the version that the batch under way is computed on.
	Version Version `json:"version,omitempty"`
	// Durable says that versions of the job are written down, so that it can be resumed when its servers are lost.
	Durable bool `json:"durable,omitempty"`
	// Trainers is how many there are in this run; 0: those of the manifest.
	Trainers int `json:"trainers,omitempty" check:"lanes"`
	// Resumed is the version that the job began with; 0: it was not resumed.
	Resumed Version `json:"resumed,omitempty"`

	// Standby is where the job goes on when its ps is lost; empty: nobody stands by.
	Standby string `json:"standby,omitempty" check:"url"`

	Servers []DataServer `json:"servers,omitempty" check:"shards"` // empty: all shards are on the server that answered
	Peers   []Peer       `json:"peers,omitempty" check:"lanes"`    // of all trainers, once started, where trainers reduce
}

// Refused turns a joining trainer away. Where the job differs, Field names the first differing field of the manifest,
// Have the registered value and Want the trainer's.
type Refused struct {
	// "job_differs", "member_taken", "job_full", "invalid_job", "server_full", or RefusedBusy
	Reason string `json:"reason"`
	Field  string `json:"field,omitempty"`
	Have   string `json:"have,omitempty"`
	Want   string `json:"want,omitempty"`
	Text   string `json:"text"`
}

// RefusedLR is the reason of a Refused that answers ScaleLR.
const RefusedLR = "lr"

// RefusedBusy is the reason of a Refused that is not final: Text says what is in the way, and whoever asks again
// may be admitted.
const RefusedBusy = "busy"

// FieldVoters is the Field of a busy Refused by a ps that counts the trainer's promise to follow it, and waits for others.
const FieldVoters = "voters"

// RefusedOver is the reason of a Refused that answers a join to a run which is no more, or has never been known there.
const RefusedOver = "job_over"

// RefusedReplaced is the reason of a Refused that tells a trainer that its place in the job is another's now.
const RefusedReplaced = "replaced"

// Start tells the trainers that all have joined.
type Start struct{}

// Leave ends a trainer's membership. A Reason that is not empty says that it could not finish, and fails the job
// unless the frame has FlagComplete: then what failed came after the training, and the others have theirs.
type Leave struct {
	Reason string `json:"reason,omitempty"`
	// HandOver says that another may compute its lanes from here on.
	HandOver bool `json:"hand_over,omitempty"`
	// End is EndStopped where the trainer was asked to end, and else empty.
	End End `json:"end,omitempty"`
}

// Left answers Leave, and tells a ps that a job of which it has shards or a replica is complete.
type Left struct{}

// Leaving says that a trainer of a job that goes back leaves as soon as the others need not go back for that: it trains
// on until the run ends, with a version that is durable. It repeats that. The coordinator answers with the same message
// if the trainer may leave at once.
type Leaving struct{}

// Stalled names a live trainer that keeps a batch waiting. The coordinator repeats it seldom while that lasts.
type Stalled struct {
	Member   Member `json:"member"`
	Host     string `json:"host"` // as of Join
	Batch    Batch  `json:"batch"`
	WaitedMS int64  `json:"waited_ms" check:"ms"`
	LimitMS  int64  `json:"limit_ms" check:"ms"` // after which the job gives the trainer up, or ends
}

// Failed ends the job for all of its trainers and for every ps that has shards or a replica of it. A ps that cannot
// continue sends it to the coordinator. Member caused it.
type Failed struct {
	Member Member `json:"member"`
	Text   string `json:"text"`
	// Back says that the job can be resumed: its trainers come back to do so, and replicas stay for a while. Of a ps it
	// says that this one was told to end, or could not read what the job begins with.
	Back bool `json:"back,omitempty"`
	// End is EndStopped where a trainer or a ps was asked to end; empty is EndFailed.
	End End `json:"end,omitempty"`
}

// End is how a run, or a trainer's part in one, came to its end.
type End string

// Ways in which a run ends.
const (
	EndCompleted End = "completed" // all of its trainers have left in peace
	EndStopped   End = "stopped"   // a trainer or a ps was asked to end, or the run had not begun
	EndFailed    End = "failed"
	EndContinued End = "continued" // another run has gone on from it
)

// Ends is every way in which a run ends.
func Ends() []End { return []End{EndCompleted, EndStopped, EndFailed, EndContinued} }

// check checks an end that may be left out.
func (e End) check() error {
	if e != "" && !slices.Contains(Ends(), e) {
		return fmt.Errorf("end %q: want one of %v", Clip(string(e)), Ends())
	}
	return nil
}

// Refusal is the body of a refusal frame; the frame's head repeats batch, bucket, chunk and node of what was refused.
type Refusal struct {
	Reason string `json:"reason"` // a Reason's name
	Text   string `json:"text"`
}

// Assign tells a ps to keep some shards of a job, from the coordinator to the member p-{id}. It is repeated until a
// Report repeats its serial.
type Assign struct {
	Job        *Job     `json:"job"`
	Serial     int      `json:"serial" check:"serial"`        // rises with every change; a ps ignores older ones
	Shards     int      `json:"shards" check:"shards"`        // of the job
	Own        []int    `json:"own" check:"shards,shard"`     // those that this ps keeps
	Cluster    []Member `json:"cluster" check:"lanes"`        // trainers that send and receive by way of the NATS that carries control
	DeadlineMS int64    `json:"deadline_ms" check:"ms"`       // after which a silent coordinator counts as lost
	Gone       []Member `json:"gone,omitempty" check:"lanes"` // trainers of a grouped job that will contribute no more
	// WindowBytes is what Joined tells trainers; 0: the ps goes by what it would tell them itself.
	WindowBytes int64 `json:"window_bytes,omitempty" check:"bytes"`
	// LR is every change of the learning rates, the proposed one last.
	LR []LRChange `json:"lr,omitempty" check:"changes"`
	// Resume is the checkpoint that the shards begin with, by its id; empty: they draw version 0.
	Resume string `json:"resume,omitempty" check:"resume"`
	// Checkpoints says which versions shards write down; nil: none.
	Checkpoints *Checkpoints `json:"checkpoints,omitempty"`
	// Since is of each trainer the generation in which its place was taken last; empty: the first, of all of them.
	// Shards take frames of that generation alone.
	Since []Generation `json:"since,omitempty" check:"lanes"`
	// Incarnation is what the ps had drawn at its start when the job was registered; 0: not known. One that was started
	// anew since then has lost its shards.
	Incarnation uint64 `json:"incarnation,omitempty,string"`
	// Made is that the ps has said that it has its shards: where it has none it has lost them.
	Made bool `json:"made,omitempty"`
}

// Checkpoints is which versions of a job the ps with its shards write down. A ps without a folder writes none.
type Checkpoints struct {
	Epoch uint64  `json:"epoch"`        // of this run among those of the job's name, from 1
	At    Version `json:"at,omitempty"` // the version to write next; 0: none
	// Since is the newest durable version of the run when At was asked for: parts say how much was touched since then.
	// With Increment they have that alone.
	Since     Version `json:"since,omitempty"`
	Increment bool    `json:"increment,omitempty"`
}

// CheckpointPart is what a shard has written of a version, or why it could not.
type CheckpointPart struct {
	Version  Version `json:"version"`
	Shard    int     `json:"shard" check:"shard"`
	Bytes    int64   `json:"bytes" check:"bytes"`
	Checksum uint32  `json:"crc32c"`                            // of the file
	Touched  int64   `json:"touched,omitempty" check:"bytes"`   // bytes of what was touched since Checkpoints.Since
	Failure  string  `json:"failure,omitempty" check:"failure"` // why there is none; at most FailureBytesMax
}

// Report tells the coordinator each second how the shards of a ps fare.
type Report struct {
	Serial  int       `json:"serial" check:"serial"` // of the last Assign that was carried out
	Ready   bool      `json:"ready"`                 // version 0 is in place on all of them
	Waiting []Waiting `json:"waiting" check:"lanes"`
	// Parts is the newest version that each shard here has written whole; shards that have written none are left out.
	// Those follow that a shard has failed to write since.
	Parts []CheckpointPart `json:"parts,omitempty" check:"parts"`
	// Writing says that a shard here copies or writes a version: it would miss another one.
	Writing bool `json:"writing,omitempty"`
	// Generation is the newest of Since that all shards here go by; 0: the first.
	Generation Generation `json:"generation,omitempty"`
	// Done is how many batches were complete on all shards here when they began to.
	Done Version `json:"done,omitempty"`
}

// Waiting is what the open rounds of a batch lack on a shard. It lists a member only while another has contributed to a
// round that it has not, so an idle job lists none.
//
// First are those of Members who lack the earliest of these rounds. Rounds are sent in one order, so a trainer that
// lacks a later one may itself have no room to send it before the earliest has closed.
type Waiting struct {
	Batch   Batch    `json:"batch"`
	Bucket  Bucket   `json:"bucket"` // of the earliest round
	Chunk   Chunk    `json:"chunk"`
	Members []Member `json:"members" check:"lanes"` // in the order of their lanes
	First   []Member `json:"first" check:"lanes"`
}

// Follow asks a ps, some times a second, to have the sender keep what its shards have (Keep), and go on with its jobs.
// It goes to the coordinator of TelemetryJob.
type Follow struct {
	URL string `json:"url" check:"url"` // where trainers find the sender
	// Incarnation was drawn when the sender was started.
	Incarnation uint64 `json:"incarnation,string"`
	Host        string `json:"host"` // host name and process id, for messages to people
	// Over are runs with which the sender has gone on, so that they are over where it found them.
	Over []OverRun `json:"over,omitempty" check:"jobs"`
	// Leaving is the sender's last word.
	Leaving bool `json:"leaving,omitempty"`
}

// FollowMax bounds the jobs and the runs in a Follow.
const FollowMax = 1024

// Heard answers Follow.
type Heard struct {
	// Incarnation was drawn when the ps that answers was started.
	Incarnation uint64 `json:"incarnation,string"`
	// Jobs are those that are there, or whose trainers are awaited there.
	Jobs []JobName `json:"jobs" check:"jobs"`
}

// OverRun is a run of a job that is over.
type OverRun struct {
	Job JobName `json:"job"`
	Run RunID   `json:"run_id,string"`
}

// Standby tells trainers, each second, where the job goes on when its ps is lost.
type Standby struct {
	URL string `json:"url" check:"url"`
}

// Query asks about a run that was lost. A trainer asks the coordinator of a ps that stands by whether the ps that serves
// the run is lost (Lost). A ps that registers the job again asks the other ps for their replicas (Kept).
type Query struct {
	Run RunID `json:"run_id,string"`
}

// Takeover has a ps continue a job of which it has a replica. The operator who sends it knows that the ps that had the
// job has ended.
type Takeover struct{}

// Lost answers Query and Takeover.
type Lost struct {
	Run  RunID  `json:"run_id,omitempty,string"` // as of Query
	Lost bool   `json:"lost"`                    // the run is over there, and continues here
	Text string `json:"text,omitempty"`
}

// Keep has a ps keep in memory what some shards of a job have, its own or those of others, so that the job can go on
// there when one of its ps is lost. It goes from the coordinator to the member p-{id}, and is repeated each second.
type Keep struct {
	Job    *Job   `json:"job,omitempty"`         // nil where the ps has answered of this series
	Serial int    `json:"serial" check:"serial"` // rises with every change; a ps ignores older ones
	Series uint32 `json:"series"`                // of the frames that tell what shards have, their generation: what is of another is of an earlier attempt
	Shards int    `json:"shards" check:"shards"` // of the job
	// From are the ps whose shards it keeps, itself among them where it has some of several; none: it only tells what
	// its own have.
	From []DataServer `json:"from,omitempty" check:"shards"`
	// To are the ps that keep its own shards.
	To []Member `json:"to,omitempty" check:"shards"`
	// At is the version to tell next; 0: none yet. Since is the one after which changes are told; 0: all is.
	At    Version `json:"at,omitempty"`
	Since Version `json:"since,omitempty"`
	// Whole is the version that all have which keep shards; 0: none yet.
	Whole Version `json:"whole,omitempty"`
	// LR is every change of the learning rates that is decided.
	LR []LRChange `json:"lr,omitempty" check:"changes"`
	// Runs are earlier runs that trainers may still come back from.
	Runs []RunID `json:"runs,omitempty" check:"runs"`
	// Process is the process of the coordinator, so that its end is seen on the same machine, and Incarnation what that
	// drew at its start.
	Process     string `json:"process,omitempty"`
	Incarnation uint64 `json:"incarnation,omitempty,string"`
	// Voters are the trainers of the run. In a pair, more than half of them must join the next run unless the sender is
	// known to have ended.
	Voters []Voter `json:"voters,omitempty" check:"lanes"`
	// Last says that the sender ends, and that the job is to go on at once, from Whole.
	Last bool `json:"last,omitempty"`
}

// KeptRunsMax bounds the runs in Keep and Kept.
const KeptRunsMax = 16

// Kept answers Keep and Query, and tells the coordinator what has changed since.
type Kept struct {
	Server      string `json:"server" check:"id"`
	Incarnation uint64 `json:"incarnation,string"` // that it drew at its start
	Run         RunID  `json:"run_id,omitempty,string"`
	Series      uint32 `json:"series,omitempty"`                   // 0: it keeps nothing of the run
	Shards      int    `json:"shards,omitempty" check:"shards"`    // of the job
	Own         []int  `json:"own,omitempty" check:"shards,shard"` // those that it keeps
	Ready       bool   `json:"ready,omitempty"`                    // there is room for them, and a way to those who tell
	Serial      int    `json:"serial,omitempty" check:"serial"`    // of the last Keep
	// Version is the one that is there; Next is a later one that is whole, and waits until others have it, too. 0: none.
	Version Version `json:"version,omitempty"`
	Next    Version `json:"next,omitempty"`
	// Missed is a version that a shard here cannot tell: the batch that is computed on it had begun.
	Missed Version    `json:"missed,omitempty"`
	Begun  Batch      `json:"begun,omitempty"`              // of its own shards
	TookMS int64      `json:"took_ms,omitempty" check:"ms"` // to tell of the last version
	Bytes  uint64     `json:"bytes,omitempty"`              // that were told in this series
	LR     []LRChange `json:"lr,omitempty" check:"changes"`
	Runs   []RunID    `json:"runs,omitempty" check:"runs"` // as of Keep
	// Failure is why it keeps nothing, until all is told anew; at most FailureBytesMax.
	Failure string `json:"failure,omitempty" check:"failure"`
}

// RefusedElsewhere is the reason of a Refused by a ps that stands by: the ps that has the job is there, at Have, as far
// as it sees.
const RefusedElsewhere = "elsewhere"

// Drain asks a ps to end as it does when it is interrupted: its jobs are handed over, or have a last version made
// durable. It goes to the coordinator of job TelemetryJob, and is repeated.
type Drain struct {
	// Server is the id of the ps; empty: the one that the control server is part of.
	Server string `json:"server,omitempty" check:"id"`
	// Incarnation is that of the answers so far; 0: there was none. A ps that was started anew is left alone.
	Incarnation uint64 `json:"incarnation,omitempty,string"`
}

// Draining answers Drain. Its last is sent without a question.
type Draining struct {
	Server      string `json:"server" check:"id"`
	Incarnation uint64 `json:"incarnation,string"`
	// Ended says that it is over: the ps takes leave of everybody, or is there no more.
	Ended bool `json:"ended,omitempty"`
	// Jobs are those that it coordinates, by name; at most FollowMax.
	Jobs []DrainedJob `json:"jobs,omitempty" check:"jobs"`
}

// DrainedJob is how far a job is whose ps is to end.
type DrainedJob struct {
	Job     JobName `json:"job"`
	Version Version `json:"version"`                  // batches that trainers have begun, as far as they have said
	Durable Version `json:"durable,omitempty"`        // the newest; 0: nothing is
	Kept    Version `json:"kept,omitempty"`           // that several ps keep which stand by for each other; 0: they do not
	To      string  `json:"to,omitempty" check:"url"` // the ps that it is handed over to, an address; empty: to none
}
