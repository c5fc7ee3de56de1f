package schema

// StartModel is the model whose values a job begins with, in place of those that Init draws. Its first Batches batches
// assign: lane 0 alone contributes, with weight 1, values in place of gradients, and every owner stores their sum by
// the weight. They are no steps: what an optimizer keeps stays as it was made, nothing is clipped, and schedules count
// from the batch behind them. In grouped these are groups of all trainers.
type StartModel struct {
	Digest  string `json:"digest"`  // of the model's weights, 64 hexadecimal digits
	Batches int    `json:"batches"` // 1 to startBatchesMax

	Dense bool `json:"dense,omitempty"` // parameters alone: tables are drawn, as Init says
}

// startBatchesMax bounds StartModel.Batches.
const startBatchesMax = 1 << 20

// startBytes is how many bytes of rows an assigning batch of NewStart has: less than the smallest budget of a server
// for gradients of open rounds, of which each trainer has its share.
const startBytes = 8 << 20

// NewStart is the start from a model with this digest of a job that is otherwise whole.
func (j *Job) NewStart(digest string) *StartModel {
	bytes, each := int64(0), int64(max(1, startBytes/max(1, j.Trainers)))
	for i := range j.Tables {
		bytes += int64(min(j.Tables[i].Rows, tableRowsMax)) * int64(8+4*j.Tables[i].SumDim()) // with its key
	}
	return &StartModel{Digest: digest, Batches: int(max(1, (bytes+each-1)/each))}
}

// Counted is a version, or a batch, as the job's program and its users count: from the first that steps move.
func (j *Job) Counted(v Version) Version { return v - min(v, j.StartVersion()) }

// StartVersion is the first version that steps move: the number of batches that assign.
func (j *Job) StartVersion() Version {
	if j.Start == nil {
		return 0
	}
	return Version(j.Start.Batches)
}
