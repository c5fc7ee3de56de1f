package ps

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"gradbus/schema"
)

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
