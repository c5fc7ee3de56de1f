package ps

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"gradbus/fabric"
	"gradbus/schema"
)

// endedRun is a run of a job that is over, and the names under which its trainers joined. Each of them has drawn its
// name for that run alone, so a join that comes again, to a ps that was slow, is meant for no other.
type endedRun struct {
	RunID   schema.RunID    `json:"run_id,string"`
	Joiners []schema.Member `json:"joiners"`
}

const (
	// endedRunsMax and endedJoinersMax bound what is remembered of the earlier runs of a name.
	endedRunsMax    = 8
	endedJoinersMax = 4096
	// recordBytesMost is how large a job's record may be that also tells of earlier runs: others' servers take messages of
	// 1 MiB.
	recordBytesMost = 768 << 10
	// leftMax and leftBytesMax bound what one ps leaves of jobs that have ended, until it is swept: however many begin and
	// end, they take an eighth of the bucket, and a sweep reads them all.
	leftMax      = 512
	leftBytesMax = jobsBytesMax / 8
)

// leftEnded is a key that says who took part in a job.
type leftEnded struct {
	name     string
	revision uint64
	bytes    int
}

// withEnded puts a run before earlier ones, of which the oldest are forgotten. One that nobody has taken part in is
// none.
func withEnded(run endedRun, earlier []endedRun) []endedRun {
	all := slices.Clone(earlier)
	if len(run.Joiners) > 0 {
		all = slices.Insert(all, 0, run)
	}
	joiners := 0
	for i := range all {
		if joiners += len(all[i].Joiners); i == endedRunsMax || joiners > endedJoinersMax && i > 0 {
			return all[:i]
		}
	}
	return all
}

// tookPart reports whether a trainer joined one of the runs.
func tookPart(runs []endedRun, joiner schema.Member) bool {
	return slices.ContainsFunc(runs, func(r endedRun) bool { return slices.Contains(r.Joiners, joiner) })
}

// endedOf reads what a key says of earlier runs, where it says that nobody coordinates the job any more; else nothing.
func endedOf(e fabric.Entry) []endedRun {
	var record jobRecord
	if json.Unmarshal(e.Value, &record) != nil || record.Coordinator != "" {
		return nil
	}
	return record.Ended
}

func hasEnded(e fabric.Entry) bool { return len(endedOf(e)) > 0 }

// leaveEnded writes earlier runs in place of a job that has ended, or deletes its key where there are none.
func (r *registry) leaveEnded(ctx context.Context, name string, revision uint64, runs []endedRun) error {
	if len(runs) == 0 {
		return r.jobs.Delete(ctx, name, revision)
	}
	value, err := json.Marshal(jobRecord{Ended: runs})
	if err != nil {
		return err
	}
	if revision, err = r.jobs.Update(ctx, name, value, revision); err != nil {
		return err
	}
	r.left = append(r.left, leftEnded{name, revision, len(value)})
	r.leftBytes += len(value)
	for len(r.left) > leftMax || r.leftBytes > leftBytesMax {
		oldest := r.left[0]
		r.left, r.leftBytes = r.left[1:], r.leftBytes-oldest.bytes
		// swept, or written since
		if err := r.jobs.Delete(ctx, oldest.name, oldest.revision); err != nil && !errors.Is(err, fabric.ErrKeyExists) {
			return err
		}
	}
	return nil
}

// encode writes a record, without the earlier runs where it would be too large.
func (j *jobRecord) encode() ([]byte, error) {
	value, err := json.Marshal(j)
	if err == nil && len(value) > recordBytesMost && len(j.Ended) > 0 {
		j.Ended = nil
		value, err = json.Marshal(j)
	}
	return value, err
}
