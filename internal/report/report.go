// Package report is what a training command tells people and programs: progress while it runs and the result at the
// end.
//
// A trainer that another process started writes events instead, one JSON object a line, and its parent shows them and
// adds up the results. The package knows nothing of sessions and workloads: it is handed numbers.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Progress is one batch of a running job, as one of its trainers sees it.
type Progress struct {
	Batch            uint64  `json:"batch"`   // that was completed, from 0
	Batches          uint64  `json:"batches"` // of the whole run
	Loss             float64 `json:"loss"`    // mean over the samples of this trainer's lanes in this batch
	SamplesPerSecond float64 `json:"samples_per_second"`
}

// Result is a run's outcome. Its JSON names are part of the interface of `trainer --json`: fields may be added, none
// changes its meaning.
type Result struct {
	Workload         string  `json:"workload"`
	Job              string  `json:"job"`
	Input            string  `json:"input"`
	Synthetic        bool    `json:"synthetic"`      // the input was generated, its accuracy says nothing about real data
	Accuracy         float64 `json:"accuracy"`       // on the test set; 0 where RMSE says it
	RMSE             float64 `json:"rmse,omitempty"` // on the test set, of ratings
	AUC              float64 `json:"auc,omitempty"`  // likewise
	TestSamples      int     `json:"test_samples"`
	SamplesPerSecond float64 `json:"samples_per_second"` // of all trainers, first to last training batch
	Samples          uint64  `json:"samples"`            // trained on by all trainers in that time
	Seconds          float64 `json:"seconds"`            // first to last training batch
	Loss             float64 `json:"loss"`               // mean over LossSamples
	LossSamples      uint64  `json:"loss_samples"`       // of the last epoch, that this trainer or all of them computed
	Batches          uint64  `json:"batches"`
	LanesSkipped     uint64  `json:"lanes_skipped"` // whose gradient was not finite, of that trainer or of all
	Epochs           int     `json:"epochs"`
	Trainers         int     `json:"trainers"`
	Shards           int     `json:"shards"`
	Lanes            int     `json:"lanes"`
	Backend          string  `json:"backend"`
	BytesSent        uint64  `json:"bytes_sent"`     // by the trainer, or by all of them where they were started together
	BytesReceived    uint64  `json:"bytes_received"` // likewise
	MessagesSent     uint64  `json:"messages_sent"`  // likewise
	MessagesReceived uint64  `json:"messages_received"`
	WeightsSHA256    string  `json:"weights_sha256"`
	// the trainer at whose end accuracy, weights and saved file were taken, where others may have trained on (async)
	WeightsOf string `json:"weights_of,omitempty"`
	Time      Time   `json:"time"`
	Suspect   string `json:"suspect,omitempty"` // why the model may be wrong: memory of a GPU was, meanwhile
	Saved     string `json:"saved,omitempty"`   // the file the model was written to
}

// Time says where Seconds went, as the mean over the trainers. The parts do not overlap and leave out what is small.
type Time struct {
	Keys    float64 `json:"keys"`    // seconds finding the distinct keys of batches
	Rows    float64 `json:"rows"`    // seconds waiting for embedding rows
	Compute float64 `json:"compute"` // seconds in forward and backward passes and adding up lanes
	Send    float64 `json:"send"`    // seconds building and publishing gradient frames
	Results float64 `json:"results"` // seconds waiting for batches to complete
}

// Event is one line from a trainer to the process that started it. Exactly one field is set.
type Event struct {
	Waiting  *int      `json:"waiting,omitempty"` // trainers that have not joined yet
	Progress *Progress `json:"progress,omitempty"`
	Note     string    `json:"note,omitempty"` // a line for people
	// all batches are complete: what fails from now on ends this trainer alone
	Trained bool    `json:"trained,omitempty"`
	Result  *Result `json:"result,omitempty"`
}

// Write appends the event to w as one line.
func (e Event) Write(w io.Writer) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// ParseEvent reads a line that Write wrote.
func ParseEvent(line []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		return Event{}, fmt.Errorf("event %.100q: %w", line, err)
	}
	return e, nil
}

// Add makes one result of those of all trainers of a job: bytes and messages are added up, the rate is over the longest
// time, the loss is the mean over all samples, and times are means. Where batches are common, all of them say the
// samples of all and must have ended with the same weights; else each says its own, and the weights of the result are
// the first one's.
func Add(results []Result, common bool) (Result, error) {
	if len(results) == 0 {
		return Result{}, errors.New("no results")
	}
	sum := results[0]
	sum.BytesSent, sum.BytesReceived, sum.MessagesSent, sum.MessagesReceived = 0, 0, 0, 0
	sum.Loss, sum.LossSamples, sum.LanesSkipped, sum.Time = 0, 0, 0, Time{}
	for i, r := range results {
		if !common && i > 0 {
			sum.Samples += r.Samples
		}
		if common && r.WeightsSHA256 != sum.WeightsSHA256 {
			return Result{}, fmt.Errorf("trainers ended with different weights: %s and %s", sum.WeightsSHA256, r.WeightsSHA256)
		}
		sum.Seconds = max(sum.Seconds, r.Seconds)
		sum.LanesSkipped += r.LanesSkipped
		sum.BytesSent += r.BytesSent
		sum.BytesReceived += r.BytesReceived
		sum.MessagesSent += r.MessagesSent
		sum.MessagesReceived += r.MessagesReceived
		sum.Loss += r.Loss * float64(r.LossSamples)
		sum.LossSamples += r.LossSamples
		sum.Time = sum.Time.plus(r.Time, 1/float64(len(results)))
		if r.Suspect != "" {
			sum.Suspect = r.Suspect
		}
		if r.Saved != "" {
			sum.Saved = r.Saved
		}
	}
	if sum.LossSamples > 0 {
		sum.Loss /= float64(sum.LossSamples)
	}
	sum.SamplesPerSecond = 0
	if sum.Seconds > 0 {
		sum.SamplesPerSecond = float64(sum.Samples) / sum.Seconds
	}
	return sum, nil
}
