package simulate

import (
	"context"
	"fmt"
	"slices"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

// recoveryResult is the outcome of a row.
type recoveryResult struct {
	Outcome string
	Again   int    // batches of which some lane was computed again after it had been complete
	Digest  string // of the weights at the end; empty where runs of the job do not share it
	Twice   int    // lanes of batches that were applied more than once
	Missing int    // lanes of batches that were not applied
}

// begins notes that a trainer has joined a run, perhaps one that goes on from another.
func (r *recovery) begins(m *recoveringTrainer, run schema.RunID, goesOn bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteLocked("%s is in run %d", m.name, run)
	if !slices.Contains(r.runs, run) {
		r.runs = append(r.runs, run)
	}
	r.restarted = r.restarted || goesOn && run != r.runs[0]
}

// computes notes that a lane of a batch is computed.
func (r *recovery) computes(b schema.Batch, l lane.Lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.complete[l][b] {
		r.again[l][b] = true
	}
}

// completes notes that a trainer has completed a batch: all lanes of it where rounds are of all trainers.
func (r *recovery) completes(session *trainer.Session, b schema.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, lanes := session.Lanes()
	if r.job.Plan().Clock.Common() {
		first, lanes = 0, recoveryLanes
	}
	for l := first; l < first+lane.Lane(lanes); l++ {
		r.complete[l][b] = true
	}
}

// ends notes the state that a trainer has at the end of the job.
func (r *recovery) ends(ctx context.Context, session *trainer.Session) error {
	digest, err := session.Digest(ctx)
	if err != nil {
		return err
	}
	counts := slices.Clone(session.Param("counts"))
	var rows [][]float32
	if len(r.job.Tables) > 0 {
		keys := make([]uint64, recoveryCounts)
		for i := range keys {
			keys[i] = uint64(i)
		}
		if rows, err = session.Lookup(ctx, []trainer.Query{{Table: 1, Keys: keys}}); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended++
	r.over = true
	if text := fmt.Sprintf("%x", digest[:8]); r.sum == "" || r.sum == text {
		r.sum = text
	} else {
		r.sum = "differs between trainers"
	}
	for i, v := range counts {
		if len(rows) > 0 { // the larger count of both is the row's
			l := lane.Lane(i % recoveryLanes)
			if row := rows[0][4*i]; timesApplied(row, l) != timesApplied(v, l) {
				r.noteLocked("counts of batch %d lane %d: %v in the parameter, %v in the table", i/recoveryLanes, l, v, row)
			}
			v = min(v, rows[0][4*i])
		}
		r.counts[i] = min(r.counts[i], v)
	}
	return nil
}

// outcome says what a user sees.
func (r *recovery) outcome() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := ""
	switch {
	case r.ended == 0 && len(r.errors) == 0:
		return "nothing ends"
	case r.ended == 0:
		return "ends: " + r.errors[0]
	case r.row.who == whoNobody:
		text = "undisturbed"
	case !r.struck:
		text = "not struck"
	case len(r.runs) > 1 && r.restarted:
		text = "restart"
	case len(r.runs) > 1:
		text = "a new job"
	case !r.job.Plan().Clock.Common() && (r.row.who == whoTrainer || r.row.who == whoTrainers):
		text = "the others go on"
	default:
		text = "in place"
	}
	if len(r.errors) > 0 {
		text += ", one ends: " + r.errors[0]
	}
	return text
}

// result sums up the row.
func (r *recovery) result(outcome string) recoveryResult {
	result := recoveryResult{Outcome: outcome}
	if r.ended == 0 {
		return result
	}
	for _, again := range r.again {
		result.Again = max(result.Again, len(again))
	}
	for i, v := range r.counts {
		switch timesApplied(v, lane.Lane(i%recoveryLanes)) {
		case 0:
			result.Missing++
		case 2:
			result.Twice++
		}
	}
	if shares, _ := sharesDigest(r.job); shares {
		result.Digest = r.sum
	}
	return result
}
