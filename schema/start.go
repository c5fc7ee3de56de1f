package schema

// StartModel is a model whose values a job begins with, instead of those that Init draws. The first Batches batches
// assign: only lane 0 contributes, with weight 1, values instead of gradients, and every owner stores their sum divided
// by the weight. These batches are no steps: optimizer state stays as it was made, nothing is clipped, and schedules
// count from the batch after them. In grouped they are groups of all trainers.
type StartModel struct {
	Digest  string `json:"digest"`  // of the model's weights, 64 hexadecimal digits
	Batches int    `json:"batches"` // 1 to startBatchesMax

	Dense bool `json:"dense,omitempty"` // parameters only: tables are drawn by Init
}

// startBatchesMax bounds StartModel.Batches.
const startBatchesMax = 1 << 20

// startBytes is the size of the rows in an assigning batch of NewStart: less than the smallest budget of a server for
// gradients of open rounds, of which each trainer has its share.
const startBytes = 8 << 20

// NewStart returns the start of a job, complete except for Start, from the model with this digest.
func (j *Job) NewStart(digest string) *StartModel {
	bytes, each := int64(0), int64(max(1, startBytes/max(1, j.Trainers)))
	for i := range j.Tables {
		bytes += int64(min(j.Tables[i].Rows, tableRowsMax)) * int64(8+4*j.Tables[i].SumDim()) // with its key
	}
	return &StartModel{Digest: digest, Batches: int(max(1, (bytes+each-1)/each))}
}

// Counted returns a version or batch as programs and users count: from the first that steps apply to.
func (j *Job) Counted(v Version) Version { return v - min(v, j.StartVersion()) }

// StartVersion returns the first version that steps apply to: the number of batches that assign.
func (j *Job) StartVersion() Version {
	if j.Start == nil {
		return 0
	}
	return Version(j.Start.Batches)
}
