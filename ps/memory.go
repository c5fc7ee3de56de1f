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

// JobBytes is the memory that a job takes on a server with the given number of shards and budget for open rounds:
//
//	tables      rows*dim*4 (twice with momentum), rows*4 for keys, rows*4 on each shard for slots, rows with momentum
//	parameters  two versions of every value: 8 bytes each (16 with momentum)
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
		total += int64(p.Elements()) * valueBytes * 2 * copies
	}
	return total
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

// checkMessages refuses a job whose frames would not fit a message: a chunk's values, or one row that is larger, and the
// keys of as many rows as that holds, of every table one section.
func checkMessages(job *schema.Job, payloadBytesMax int) *schema.Refused {
	need := job.ChunkBytes
	for _, t := range job.Tables {
		values := max(job.ChunkBytes/4, t.Dim)
		need = max(need, 4*values+8*(values/t.Dim))
	}
	need += 16*len(job.Tables) + frameBytesOver
	if need <= payloadBytesMax {
		return nil
	}
	return &schema.Refused{Reason: "invalid_job", Field: "chunk_bytes", Want: strconv.Itoa(job.ChunkBytes),
		Text: fmt.Sprintf("chunk_bytes %d: messages of job %s would take %d bytes, with the keys of rows of few values, and this server takes %d: use smaller chunks",
			job.ChunkBytes, job.Name, need, payloadBytesMax)}
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
