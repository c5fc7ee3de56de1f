package ps

import (
	"fmt"
	"strconv"

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
