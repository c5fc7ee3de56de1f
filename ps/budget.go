package ps

import (
	"fmt"
	"strconv"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// The fixed parts of a process's memory, besides what its jobs take. docs/memory.md says how they were measured.
const (
	// baseBytes is a server without jobs: 26 MiB resident, most of it the program's own pages, and as much again for
	// connections, stacks and what the runtime keeps of its own.
	baseBytes = 48 << 20
	// garbageBytes bounds the garbage between two collections.
	garbageBytes = 48 << 20
	// linkBytes bounds a link. One that does nothing takes 375 KiB: 276 KiB are buffers of its data lines, 56 KiB those of
	// nats.go, the rest is stacks. With traffic the server's buffers grow to 64 KiB for each of its three connections.
	linkBytes  = 1 << 20
	valueBytes = 4
	keyBytes   = 8
	// partitionBytes is the memory of a shard for a partition of any table: the place of its first row, and its owner.
	partitionBytes = 16
)

// Memory is the memory of a job on one ps, in bytes, each part at its maximum. With T trainers, n nodes of the lane tree
// that they contribute all together, and S of the job's shards here:
//
//	Tables      rows*dim*4, the optimizers' state (state.SlotBytes), 16 for each partition and shard
//	Parameters  2*ahead+2 versions of every value of 4 bytes in its frame, ahead being 0 except in bounded, and the
//	            optimizers' state in two versions. In grouped, with groups of N, T-N+4 versions, all on the ps with
//	            shard 0
//	Staged      contributions to open rounds: the budget of each shard, or n*(ahead+1) times all gradients if that is
//	            less
//	Scratch     for the sparse round of each shard: 2 times what it merges, and the new rows beside the old ones
//	Parked      lookups that wait for their rows: parkedBytes for each trainer and shard
//	UnderWay    2*T windows for each shard, at least 8 MiB: frames and their repetitions between socket and shard
//	FanOut      for each trainer that does not read: results of ahead+1 batches and its rows, at most pending_bytes_max
//	Connections unfinished messages and subscriptions of its trainers' connections to the NATS server
//	Links       1 MiB for each shard here of a job that also has shards on other ps: no other job uses their numbers
//	Modules     hosted modules, all of the job's: see module.Sizes.Bytes
//	Copies      with checkpoints: old rows that each shard keeps while a version is copied, 64 MiB, and 1 MiB being
//	            written. If trainers own parameters, also the version that the job was resumed with, and 16 MiB of
//	            each shard's chunks
type Memory struct {
	Tables, Parameters, Staged, Scratch, Parked, UnderWay, FanOut, Connections, Links, Modules, Copies int64

	outside int64 // of these, not on the Go heap
}

// Bytes is the sum of all parts.
func (m Memory) Bytes() int64 {
	return m.Tables + m.Parameters + m.Staged + m.Scratch + m.Parked +
		m.UnderWay + m.FanOut + m.Connections + m.Links + m.Modules + m.Copies
}

// MemoryOf returns the memory of a job on a ps of this configuration that has own of its shards: each has at most its
// share of the rows, and its share of dense values and one chunk.
func MemoryOf(c Config, job *schema.Job, own, shards int) Memory {
	c = c.withDefaults()
	plan, busy := job.Plan(), min(own, count(job.BusyShards(shards))) // others take no gradients, lookups and copies
	batches := int64(round.BatchesOpen(job))
	share := func(bytes int64) int64 { return bytes/int64(shards)*int64(own) + bytes%int64(shards) }
	if plan.DenseShards(shards) == 1 {
		share = func(bytes int64) int64 { return bytes }
	}
	var m Memory
	sparse, copies := int64(0), int64(1) // keys and rows of every row of every table; what a round keeps of a row, in rows
	for i, t := range job.Tables {
		rows := int64(t.Rows) // Validate bounds rows*dim by 2^44
		values := rows * int64(t.Dim) * valueBytes
		in := int64(1) // shards that a row is in
		if plan.Tables[i].Cut == schema.CutColumns {
			in = int64(shards)
		}
		mine := share // of columns
		switch plan.Tables[i].Cut {
		case schema.CutNone: // all of it may be here
			mine = func(bytes int64) int64 { return bytes }
		case schema.CutRows:
			here := rowsHere(&t, own, shards)
			mine = func(bytes int64) int64 { return bytes/rows*here + bytes%rows }
		}
		slots, marks := slotBytes(&c, job, schema.Table(i))
		if c.recordsUndo(job) { // of the open round with slots, and of the one before
			copies = max(copies, 2+(slots+values-1)/values)
		}
		m.outside += mine(values + slots + marks*in)
		m.Tables += mine(values+slots+marks*in) + int64(own*t.Partitions)*partitionBytes
		sparse += rows*int64(t.SumDim())*valueBytes + rows*keyBytes*in
	}
	dense, kept, ofEach := int64(0), int64(0), int64(0)
	for i, p := range job.Parameters {
		values := int64(p.Elements()) * valueBytes
		slots, _ := state.SlotBytes(job.OptimizerOfParameter(i), int64(p.Elements()), 1)
		dense, kept, ofEach = dense+values, kept+2*slots, max(ofEach, (2*slots+values-1)/values)
	}
	results := dense/int64(job.ChunkBytes) + int64(len(job.Parameters)) // frames that values lie in, with their room
	here := min(dense, share(dense)+int64(own)*int64(job.ChunkBytes))   // no shard has more than its share and one chunk
	kept = min(kept, ofEach*here)
	m.Parameters = (here+results*shard.FrameBytesOver)*int64(round.Versions(job)) + kept
	m.outside += kept
	nodes := int64(0)
	for _, h := range round.ContributorsOf(job) {
		nodes += int64(len(lane.Nodes(h.First, h.Count, job.Lanes)))
	}
	budget := int64(busy) * stagedBytes(job, c.StagedBytesMax)
	frames := (dense+sparse)/int64(job.ChunkBytes) + int64(len(job.Parameters)) + 2*int64(shards)
	all := here + share(sparse) + frames*shard.FrameBytesOver
	m.Staged = min(budget, nodes*batches*(all+all/16)) // a received frame lies in a buffer up to 1/16 larger
	if len(job.Tables) > 0 {
		m.Scratch = (2 + copies) * min(budget, share(nodes*(sparse+frames*shard.FrameBytesOver)))
	}
	m.Parked = int64(busy*job.Trainers) * parkedBytes(job) * 17 / 16
	m.UnderWay = int64(own) * queueBytes(job.Trainers,
		windowBytes(job, own, c.StagedBytesMax, c.PendingBytesMax/4, c.PendingBytesMax/2))
	m.Connections = int64(job.Trainers) * fabric.MemberBytes(c.messageBytes(job))
	if shards > own {
		m.Links = int64(own) * linkBytes
	}
	m.Modules = c.modules.Bytes(job)
	m.Copies = copiesBytes(&c, job, busy, here)
	m.FanOut = int64(job.Trainers) * min(c.PendingBytesMax, batches*here+share(sparse)+frames*shard.FrameBytesOver)
	return m
}

// count returns how many are true.
func count(all []bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

// copiesBytes returns the memory of copies of versions, for shards with a number of bytes of dense values. If trainers
// own these, the values that trainers receive on a resume and send for a version are added.
func copiesBytes(c *Config, job *schema.Job, own int, here int64) int64 {
	switch {
	case !isCopied(c, job):
		return 0
	case job.Plan().Owner == schema.ByShards:
		return int64(own) * (state.CopyBytesMax + 1<<20)
	}
	return int64(own)*(state.CopyBytesMax+1<<20+gatheredBytesMax) + here
}

// recordsUndo reports whether shards record what rows were before the last batch: for trainers that take over a slot,
// and for a job that stays readable, where one shard may have closed a round that another has not.
func (c *Config) recordsUndo(job *schema.Job) bool {
	return c.local != nil && job.StaysReadable() || job.Policy != schema.PolicyFail && job.TakesOver()
}

// isCopied says whether versions of a job are copied: for files, or for a ps with replicas, now or later.
func isCopied(c *Config, job *schema.Job) bool {
	return (c.Checkpoints.Dir != "" || job.Policy != schema.PolicyFail && job.TakesOver()) && job.CheckVersions() == nil
}

// slotBytes is state.SlotBytes of a table, with what tells when rows have changed where versions are copied.
func slotBytes(c *Config, job *schema.Job, table schema.Table) (slots, marks int64) {
	t := &job.Tables[table]
	slots, marks = state.SlotBytes(job.OptimizerOf(table), int64(t.Rows), int64(t.Dim))
	if isCopied(c, job) {
		marks += int64(t.Rows) * state.TouchedBytes
	}
	return slots, marks
}

// rowsHere returns the largest number of rows that own shards have of a table that is cut by rows: partitions go to the
// shards in turn, and each has as many rows as the others, or one more.
func rowsHere(t *schema.TableSpec, own, shards int) int64 {
	ceil := func(a, b int64) int64 { return (a + b - 1) / b }
	rows, partitions := int64(t.Rows), int64(t.Partitions)
	return min(rows, int64(own)*ceil(partitions, int64(shards))*ceil(rows, partitions))
}

// memoryTold is MemoryOf where trainers were told a window, perhaps by a coordinator of another configuration.
func memoryTold(c Config, job *schema.Job, own, shards int, window int64) Memory {
	c = c.withDefaults()
	c.StagedBytesMax = stagedFor(job, c.StagedBytesMax, window)
	m := MemoryOf(c, job, own, shards)
	m.UnderWay = max(m.UnderWay, int64(own)*queueBytes(job.Trainers, window))
	return m
}

// JobBytes returns the memory of a job on a ps that has all of its shards: Memory.Bytes. Registration refuses a job
// whose part exceeds what is left of Config.MemoryBytesMax.
func JobBytes(c Config, job *schema.Job, shards int) int64 {
	return MemoryOf(c, job, shards, shards).Bytes()
}

// ProcessBytes bounds the resident memory of a ps process that has all shards of the jobs: what the jobs take, and a
// base for the program, buffers that wait to be used again, and garbage. It holds while the Go heap is limited to
// HeapBytes, as ./bin/ps does; see docs/memory.md.
func ProcessBytes(c Config, jobs ...*schema.Job) int64 {
	shards := c.withDefaults().Shards
	total := baseBytes + garbageBytes + fabric.FreeBytesMaxDefault + int64(shards)*linkBytes
	total += fabric.AnonymousBytes(fabric.ConnectionsMaxDefault)
	for _, job := range jobs {
		total += JobBytes(c, job, shards)
	}
	return total
}

// heapStep is the least difference between limits of the heap: setting one stops the process for a moment.
const heapStep = 8 << 20

// heapBytes is the part of a process's memory that is on the Go heap, with so many shards of its own, these jobs, and
// guests that can hold so much now. What connections could hold, but do not, is left out: it would be given to garbage.
func heapBytes(shards int, jobs []Memory, guests int64) int64 {
	total := int64(baseBytes/2 + garbageBytes + fabric.FreeBytesMaxDefault) // the other half of the base is the program
	total += int64(shards)*linkBytes + guests
	for _, m := range jobs {
		total += m.Bytes() - m.outside - m.Connections
	}
	return (total + heapStep - 1) / heapStep * heapStep
}

// stagedBytes is the budget for a job's open rounds on one shard: what the configuration says, but enough for the share
// of every trainer to hold two of the smallest windows, and one dense chunk of each of its nodes: they are sent one
// after the other and close together, so with less room they would wait for ever.
func stagedBytes(job *schema.Job, stagedBytesMax int64) int64 {
	share := 2 * windowBytesMin(job)
	if len(job.Parameters) > 0 {
		for _, h := range round.ContributorsOf(job) {
			nodes := len(lane.Nodes(h.First, h.Count, job.Lanes))
			share = max(share, int64(nodes)*int64(job.ChunkBytes+shard.FrameBytesOver))
		}
	}
	return max(stagedBytesMax, int64(job.Trainers)*share)
}

// stagedFor is stagedBytes, but enough for the share of every trainer to hold its window twice: where the coordinator's
// configuration has more room than ours, its trainers would send what finds none here.
func stagedFor(job *schema.Job, stagedBytesMax, window int64) int64 {
	return max(stagedBytes(job, stagedBytesMax), 2*int64(job.Trainers)*window)
}

// What each shard keeps at most of lookups that come before their rows: of one trainer, and of all.
const (
	parkedBytesMax = 4 << 20
	parkedAllMax   = 32 << 20
)

// parkedBytes returns the bound of each shard's parked lookups of a trainer (shard.Config.ParkedBytesMax). For tables
// whose shards answer with rows, a lookup has at most all keys, and its frames at most as many keys as rows fit a
// chunk. All ps of a job compute the same value.
func parkedBytes(job *schema.Job) int64 {
	need := int64(0)
	for i, t := range job.Plan().Tables {
		spec := &job.Tables[i]
		switch {
		case t.Owner == schema.ByTrainers:
		case t.Cut.PooledByShards():
			need = parkedBytesMax
		default:
			keys := int64(min(spec.Rows, parkedBytesMax)) // so that need stays small
			need += keys*keyBytes + (keys*int64(spec.Dim)*valueBytes/int64(job.ChunkBytes)+2)*2*shard.FrameBytesOver
		}
	}
	return min(need, parkedBytesMax, int64(parkedAllMax/job.Trainers))
}

// windowBytesMin is the smallest window that moves a job well: two of its largest messages, so that one is on its way
// while another is worked.
func windowBytesMin(job *schema.Job) int64 { return 2 * int64(job.MessageBytesMax()) }

// windowBytes returns the bytes that a trainer may have in flight to one shard, which are its first credit: 4 MiB, or
// windowBytesMin if that is more; but for each no more than half of its share of the budget for open rounds, and for
// all trainers and shards here together no more than share, or than one message each if that is more and not above
// most. The result may be too small for the job: see checkWindows.
func windowBytes(job *schema.Job, own int, stagedBytesMax, share, most int64) int64 {
	pairs := int64(job.Trainers * own)
	all := max(0, min(most, max(share, pairs*int64(job.MessageBytesMax()))))
	return min(max(fabric.WindowBytesDefault, windowBytesMin(job)), stagedBytes(job, stagedBytesMax)/int64(job.Trainers)/2,
		all/pairs)
}

// windowShare returns the part of half of pending_bytes_max that the windows of a new job use, and may use at most,
// beside a number of other jobs, if free bytes are left. Half of all is shared evenly by the largest number of jobs,
// and reserved for later ones. The first job gets half of all, a further one half of what is left beyond that.
func windowShare(c *Config, others int, free int64) (share, most int64) {
	slot, later := c.PendingBytesMax/4/int64(c.JobsMax), max(0, c.JobsMax-others-1)
	most = free - int64(later)*slot
	if others == 0 {
		return min(free/2, most), most
	}
	return most / 2, most
}

// queueBytes bounds what waits for one shard: all windows twice, since frames may be repeated, and at least one message
// of any size.
func queueBytes(trainers int, window int64) int64 {
	return max(2*int64(trainers)*window, schema.FrameBytesMax)
}

// checkWindows refuses a job whose windows would fill more of the NATS server's queues than is left. A window of one
// message still moves a job, one at a time.
func (c *Config) checkWindows(job *schema.Job, own int, window int64) *schema.Refused {
	need := int64(job.MessageBytesMax())
	if window >= need {
		return nil
	}
	return &schema.Refused{Reason: "server_full", Field: "chunk_bytes", Text: fmt.Sprintf(
		"job %s: windows of %d trainers to %d shards have %d bytes each, and its messages need %d: %s",
		job.Name, job.Trainers, own, window, need, c.orRaise("use smaller chunks", "pending-mib", ""))}
}

// checkMessages refuses a job whose frames would not fit a message of the server that at names: see
// Job.MessageBytesMax.
func checkMessages(job *schema.Job, at string, payloadBytesMax int) *schema.Refused {
	need := job.MessageBytesMax()
	if need <= payloadBytesMax {
		return nil
	}
	return &schema.Refused{Reason: "invalid_job", Field: "chunk_bytes", Want: strconv.Itoa(job.ChunkBytes),
		Text: fmt.Sprintf("chunk_bytes %d: messages of job %s would take %d bytes, with the keys of rows of few values, and "+
			"%s takes %d: use smaller chunks, or set max_payload there",
			job.ChunkBytes, job.Name, need, at, payloadBytesMax)}
}
