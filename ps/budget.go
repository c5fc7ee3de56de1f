package ps

import (
	"fmt"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
	"gradbus/shard/state"
)

// The fixed parts of a process's memory, besides what its jobs take. docs/memory.md says how they were measured.
const (
	// baseBytes is a server without jobs: 26 MiB resident, most of it the program's own pages, and as much again for
	// connections, stacks and what the runtime keeps of its own.
	baseBytes = 48 << 20
	// garbageBytes is what may lie about until the collector has been by.
	garbageBytes = 48 << 20
	// frameBytesOver bounds what a frame has besides its values, keys and sections.
	frameBytesOver = 1 << 10
	valueBytes     = 4
	keyBytes       = 8
	placeBytes     = 4
)

// Memory is what a job takes on one ps, in bytes, each part at its most. With T trainers, n nodes of the lane tree that
// they contribute all together, and S of the job's shards here:
//
//	Tables      rows*dim*4, what optimizers keep of them (state.SlotBytes), 4 a row for keys, 4 a row and shard for places
//	Parameters  ahead+2 versions of every value of 4 bytes, ahead being 0 but in bounded, and what optimizers keep of them in two
//	            versions. In grouped, of groups of N, T-N+3 versions in place of ahead+2, all on the ps with shard 0
//	Staged      contributions to open rounds: the budget of each shard, or n*(ahead+1) times all gradients where that is less
//	Scratch     of the sparse round of each shard: 2 times what it merges, and the new rows beside the old ones
//	UnderWay    2*T windows for each shard, 8 MiB at least: frames and their repetitions between socket and shard
//	FanOut      for each trainer that does not read: results of ahead+1 batches and its rows, at most pending_bytes_max
//	Connections what its trainers' connections to the NATS server may hold in unfinished messages and subscriptions
//	Modules     what hosted modules take, all of the job's: see moduleBytes
type Memory struct {
	Tables, Parameters, Staged, Scratch, UnderWay, FanOut, Connections, Modules int64

	outside int64 // of these, not on the Go heap
}

// Bytes is the sum of all parts.
func (m Memory) Bytes() int64 {
	return m.Tables + m.Parameters + m.Staged + m.Scratch + m.UnderWay + m.FanOut + m.Connections + m.Modules
}

// MemoryOf is what a job takes on a ps of this configuration that keeps own of its shards, which are spread evenly.
func MemoryOf(c Config, job *schema.Job, own, shards int) Memory {
	c = c.withDefaults()
	plan := job.Plan()
	batches := int64(plan.RoundsAhead()) + 1
	share := func(bytes int64) int64 { return bytes/int64(shards)*int64(own) + bytes%int64(shards) }
	versions := int64(job.Ahead) + 2
	if plan.Clock == schema.ClockGrouped { // all on one shard
		versions, share = int64(groupVersions(job)), func(bytes int64) int64 { return bytes }
	}
	var m Memory
	sparse, copies := int64(0), int64(1) // keys and rows of every row of every table; what a step makes of a row, in rows
	for i, t := range job.Tables {
		rows := int64(t.Rows) // Validate bounds rows*dim by 2^44
		values := rows * int64(t.Dim) * valueBytes
		in := int64(1) // shards that a row is in
		if plan.Tables[i].Cut == schema.CutColumns {
			in = int64(shards)
		}
		mine := share
		if plan.Tables[i].Cut == schema.CutNone { // all of it may be here
			mine = func(bytes int64) int64 { return bytes }
		}
		slots, marks := state.SlotBytes(job.OptimizerOf(schema.Table(i)), rows, int64(t.Dim))
		copies = max(copies, 1+(slots+values-1)/values)
		m.outside += mine(values + slots)
		m.Tables += mine(values + slots + rows*placeBytes*(int64(shards)+in) + marks*in)
		sparse += rows*int64(t.SumDim())*valueBytes + rows*keyBytes*in
	}
	dense, kept := int64(0), int64(0)
	for i, p := range job.Parameters {
		slots, _ := state.SlotBytes(job.OptimizerOfParameter(i), int64(p.Elements()), 1)
		dense, kept = dense+int64(p.Elements())*valueBytes, kept+2*slots
	}
	m.Parameters = share(dense*versions + kept)
	m.outside += share(kept)
	nodes := int64(0)
	for _, h := range round.HostsOf(job) {
		nodes += int64(len(lane.Nodes(h.First, h.Count, job.Lanes)))
	}
	budget := int64(own) * stagedBytes(job, c.StagedBytesMax)
	frames := (dense+sparse)/int64(job.ChunkBytes) + int64(len(job.Parameters)) + 2*int64(shards)
	all := dense + sparse + frames*frameBytesOver
	m.Staged = min(budget, share(nodes*batches*(all+all/16))) // a received frame lies in a buffer up to 1/16 larger
	if len(job.Tables) > 0 {
		m.Scratch = (2 + copies) * min(budget, share(nodes*(sparse+frames*frameBytesOver)))
	}
	m.UnderWay = int64(own) * queueBytes(job.Trainers, windowBytes(job, own, c.StagedBytesMax, c.PendingBytesMax/4, c.PendingBytesMax/2))
	m.Connections = int64(job.Trainers) * fabric.MemberBytes(c.messageBytes(job))
	m.Modules = moduleBytes(job)
	m.FanOut = int64(job.Trainers) * min(c.PendingBytesMax, share(batches*dense+sparse+frames*frameBytesOver))
	return m
}

// JobBytes is what a job takes on a ps that keeps all of its shards: Memory.Bytes. Registration refuses a job whose part
// exceeds what is left of Config.MemoryBytesMax.
func JobBytes(c Config, job *schema.Job, shards int) int64 {
	return MemoryOf(c, job, shards, shards).Bytes()
}

// ProcessBytes bounds the resident memory of a ps process that keeps all shards of the jobs: what the jobs take, and a base
// for the program, buffers that wait to be used again, and garbage. It holds while the Go heap is limited to HeapBytes, as
// ./bin/ps does; see docs/memory.md.
func ProcessBytes(c Config, jobs ...*schema.Job) int64 {
	total := int64(baseBytes+garbageBytes+fabric.FreeBytesMaxDefault) + fabric.GuestBytes(fabric.ConnectionsMaxDefault)
	for _, job := range jobs {
		total += JobBytes(c, job, c.withDefaults().Shards)
	}
	return total
}

// heapStep is what limits of the heap differ by: setting one stops the process for a moment.
const heapStep = 8 << 20

// heapBytes is the part of a process's memory that is on the Go heap, with these jobs, and where guests can hold so much at the moment. What
// connections could hold, but do not, is left out: it would be given to garbage.
func heapBytes(jobs []Memory, guests int64) int64 {
	total := int64(baseBytes/2+garbageBytes+fabric.FreeBytesMaxDefault) + guests // the other half of the base is the program itself
	for _, m := range jobs {
		total += m.Bytes() - m.outside - m.Connections
	}
	return (total + heapStep - 1) / heapStep * heapStep
}

// stagedBytes is the budget for a job's open rounds on one shard: what the configuration says, but enough for the share
// of every trainer to hold two of the smallest windows, and one dense chunk of each of its nodes: they are sent one after
// the other and close together, so with less room they would wait for ever.
func stagedBytes(job *schema.Job, stagedBytesMax int64) int64 {
	share := 2 * windowBytesMin(job)
	if len(job.Parameters) > 0 {
		for _, h := range round.HostsOf(job) {
			nodes := len(lane.Nodes(h.First, h.Count, job.Lanes))
			share = max(share, int64(nodes)*int64(job.ChunkBytes+frameBytesOver))
		}
	}
	return max(stagedBytesMax, int64(job.Trainers)*share)
}

// windowBytesMin is the smallest window that moves a job well: two of its largest messages, so that one is on its way while
// another is worked.
func windowBytesMin(job *schema.Job) int64 { return 2 * int64(job.MessageBytesMax()) }

// windowBytes is what a trainer may have under way to one shard before it hears of more, which is its first credit: 4 MiB,
// or windowBytesMin where that is more, but for each no more than half of its share of the budget for open rounds, and for all trainers and
// shards here together no more than share: or than one message each takes, where that is more and not beyond most. The result may be too
// small for the job: see checkWindows.
func windowBytes(job *schema.Job, own int, stagedBytesMax, share, most int64) int64 {
	pairs := int64(job.Trainers * own)
	all := max(0, min(most, max(share, pairs*int64(job.MessageBytesMax()))))
	return min(max(fabric.WindowBytesDefault, windowBytesMin(job)), stagedBytes(job, stagedBytesMax)/int64(job.Trainers)/2, all/pairs)
}

// windowShare is what the windows of a new job take of half of pending_bytes_max, and what they may take at most, beside so many others of
// which these bytes are left. Half of all is shared evenly by as many jobs as there may be, and stays for those to come. The first job takes
// half of all, a further one half of what is left beyond that.
func windowShare(c *Config, others int, free int64) (share, most int64) {
	slot, later := c.PendingBytesMax/4/int64(c.JobsMax), max(0, c.JobsMax-others-1)
	most = free - int64(later)*slot
	if others == 0 {
		return min(free/2, most), most
	}
	return most / 2, most
}

// queueBytes bounds what waits for one shard: all windows twice, since frames may be repeated, and at least one message of
// any size.
func queueBytes(trainers int, window int64) int64 {
	return max(2*int64(trainers)*window, schema.FrameBytesMax)
}

// checkWindows refuses a job whose windows would fill more of the NATS server's queues than is left. A window of one message still moves
// a job, one at a time.
func checkWindows(job *schema.Job, own int, window int64) *schema.Refused {
	need := int64(job.MessageBytesMax())
	if window >= need {
		return nil
	}
	return &schema.Refused{Reason: "server_full", Field: "chunk_bytes", Text: fmt.Sprintf(
		"job %s: windows of %d trainers to %d shards have %d bytes each, and its messages need %d: raise the server's --pending-mib, or use smaller chunks",
		job.Name, job.Trainers, own, window, need)}
}
