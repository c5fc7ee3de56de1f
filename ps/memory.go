package ps

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
)

// JobBytes is the memory that a job takes on a server that keeps all of its shards, with a budget for open rounds on each:
//
//	tables      rows*dim*4 (twice with momentum), rows*4 for keys, rows*4 on each shard for slots, rows with momentum
//	parameters  ahead+2 versions of every value of 4 bytes, ahead being 0 but in bounded; two more with momentum
//	rounds      stagedBytes, on each shard
//
// Staged rows and scratch, which a batch's distinct keys determine, come on top; they are about three times what the
// batch's lookups transfer.
func JobBytes(job *schema.Job, shards int, stagedBytesMax int64) int64 {
	const valueBytes, slotBytes = 4, 4
	copies := int64(1)
	if job.Optimizer.Momentum != 0 {
		copies = 2
	}
	total := int64(shards) * stagedBytes(job, stagedBytesMax)
	for _, t := range job.Tables {
		rows := int64(t.Rows) // Validate bounds rows*dim by 2^44
		total += rows*int64(t.Dim)*valueBytes*copies + rows*slotBytes*int64(shards+1) + rows*(copies-1)
	}
	for _, p := range job.Parameters {
		total += int64(p.Elements()) * valueBytes * (int64(job.Ahead) + 2*copies)
	}
	return total
}

// shareBytes is the part of JobBytes of a server that keeps some of a job's shards: tables and parameters are spread
// evenly, but for one bucket and one partition, which their sizes bound; the part is rounded up.
func shareBytes(job *schema.Job, own, shards int, stagedBytesMax int64) int64 {
	all := JobBytes(job, shards, stagedBytesMax)
	return all/int64(shards)*int64(own) + all%int64(shards)
}

// frameBytesOver bounds what a frame has besides its values, keys and sections.
const frameBytesOver = 1 << 10

// stagedBytes is the budget for a job's open rounds on one shard: what the configuration says, but enough for the share
// of every trainer to hold what it may send before it hears of its window, and one dense chunk of each of its nodes: they
// are sent one after the other and close together, so with less room they would wait for ever.
func stagedBytes(job *schema.Job, stagedBytesMax int64) int64 {
	share := int64(2 * fabric.WindowBytesDefault)
	if len(job.Parameters) > 0 {
		for _, h := range hostsOf(job) {
			nodes := len(lane.Nodes(h.First, h.Count, job.Lanes))
			share = max(share, int64(nodes)*int64(job.ChunkBytes+frameBytesOver))
		}
	}
	return max(stagedBytesMax, int64(job.Trainers)*share)
}

// checkMessages refuses a job whose frames would not fit a message of the server that at names: see Job.MessageBytesMax.
func checkMessages(job *schema.Job, at string, payloadBytesMax int) *schema.Refused {
	need := job.MessageBytesMax()
	if need <= payloadBytesMax {
		return nil
	}
	return &schema.Refused{Reason: "invalid_job", Field: "chunk_bytes", Want: strconv.Itoa(job.ChunkBytes),
		Text: fmt.Sprintf("chunk_bytes %d: messages of job %s would take %d bytes, with the keys of rows of few values, and %s takes %d: use smaller chunks, or set max_payload there",
			job.ChunkBytes, job.Name, need, at, payloadBytesMax)}
}

// checkTables refuses what a table's 32-bit slots cannot name.
func checkTables(job *schema.Job) *schema.Refused {
	for i, t := range job.Tables {
		if t.Rows > tableRowsMax {
			return &schema.Refused{Reason: "invalid_job", Field: fmt.Sprintf("tables[%d].rows", i), Want: strconv.FormatUint(t.Rows, 10),
				Text: fmt.Sprintf("table %q: %d rows: this server holds tables of at most %d", t.Name, t.Rows, uint64(tableRowsMax))}
		}
	}
	return nil
}

// machineBytes is the memory of this machine, or of the control group the process runs in where that is less; 0 where
// neither says.
func machineBytes() int64 {
	var least int64
	note := func(n int64) {
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		note(memTotal(string(b)))
	}
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if b, err := os.ReadFile(path); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				note(n)
			}
		}
	}
	return least
}

// memTotal reads the line "MemTotal: 16384 kB" of /proc/meminfo.
func memTotal(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemTotal:" {
			if kb, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return kb << 10
			}
		}
	}
	return 0
}
