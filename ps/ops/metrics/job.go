package metrics

import (
	"slices"
	"strconv"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// phases of a job.
func phases() []string {
	return []string{schema.PhaseGathering, schema.PhaseRunning, schema.PhaseEnded}
}

// job is a job that this ps coordinates: as its coordinator sees it, and as it is shown.
type job struct {
	*schema.JobReport
	shown *status.Job // nil until it is shown
}

// end is how the job has ended, also where another ps has gone on with it; empty while it has not.
func (j job) end() schema.End {
	if j.shown != nil && j.shown.End != "" {
		return j.shown.End
	}
	return j.End
}

// jobTable tells of jobs.
func jobTable() table[job] {
	return table[job]{[]string{"job_name"}, append(slices.Concat(checkpointFigures(), standbyFigures()), []figure[job]{
		gauges("gradbus_job_info", "What the job is; always 1.",
			[]string{"run_id", "workload", "consistency", "apply", "reduce"}, func(j job, r *row) {
				r.value(1, strconv.FormatUint(uint64(j.RunID), 10), j.Workload, j.Consistency, j.Apply, j.Reduce)
			}),
		gauges("gradbus_job_phase", "1 for the phase that the job is in: gathering its trainers, running, or ended within "+
			"the last minutes.", []string{"phase"}, func(j job, r *row) {
			for _, phase := range phases() {
				r.value(truth(j.Phase == phase), phase)
			}
		}),
		gauges("gradbus_job_end", "1 for how the job has ended: completed, stopped by request, failed, or continued in "+
			"another run; nothing while it has not.", []string{"end"}, func(j job, r *row) {
			for _, end := range schema.Ends() {
				if j.end() != "" {
					r.value(truth(j.end() == end), string(end))
				}
			}
		}),
		gauge("gradbus_job_trainers", "Trainers that the job is made for.",
			func(j job) float64 { return float64(j.Trainers) }),
		gauge("gradbus_job_trainers_missing", "Places of trainers that are free, left or lost.",
			func(j job) float64 { return float64(missing(j.JobReport)) }),
		gauge("gradbus_job_shards", "Shards that the job is cut into.", func(j job) float64 { return float64(j.Shards) }),
		gauge("gradbus_job_lanes", "Lanes that each batch is cut into.", func(j job) float64 { return float64(j.Lanes) }),
		gauge("gradbus_job_parameters", "Values of dense parameters and tables.",
			func(j job) float64 { return float64(j.Parameters) }),
		gauge("gradbus_job_batch", "Batch under way: the foremost that the coordinator knows of.",
			func(j job) float64 { return float64(j.Batch) }),
		gauges("gradbus_job_start_timestamp_seconds", "Start of the job, in seconds since 1970.", nil, func(j job, r *row) {
			if j.StartedMS > 0 {
				r.value(float64(j.StartedMS) / 1000)
			}
		}),
		gauges("gradbus_job_end_timestamp_seconds", "End of the job, in seconds since 1970.", nil, func(j job, r *row) {
			if j.EndedMS > 0 {
				r.value(float64(j.EndedMS) / 1000)
			}
		}),
		gauges("gradbus_job_loss", "Mean loss over all trainers' samples of the last second that had any; NaN and "+
			"infinities as they are.", nil, func(j job, r *row) {
			if j.shown != nil && j.shown.Loss != nil && j.Phase == schema.PhaseRunning {
				r.value(float64(*j.shown.Loss))
			}
		}),
		gauges("gradbus_job_replicas_equal", "Whether the trainers' replicas of the dense parameters are equal at the "+
			"newest version that two have told of.", nil, func(j job, r *row) {
			if j.shown != nil && j.shown.Replicas != nil && len(j.shown.Replicas.Digests) > 1 {
				r.value(truth(j.shown.Replicas.Equal))
			}
		}),
	}...)}
}

// missing counts the places that nobody works at. An ended job lacks nobody.
func missing(j *schema.JobReport) (n int) {
	if j.Phase == schema.PhaseEnded {
		return 0
	}
	for i := range j.Members {
		if m := &j.Members[i]; m.Host == "" || m.Left || m.Lost {
			n++
		}
	}
	return n
}

// place is one trainer as its coordinator sees it.
type place struct {
	*schema.MemberReport
	shown *status.Trainer // nil until it is shown
}

// placeTable tells of trainers of jobs that have not ended, by what their coordinator says.
func placeTable() table[place] {
	return table[place]{[]string{"job_name", "member"}, []figure[place]{
		there("gradbus_trainer_silent_seconds", "Time since the coordinator last heard the trainer.",
			func(p place) float64 { return float64(p.SilentMS) / 1000 }),
		// Members speak at different moments; the status makes allowance for that.
		gauges("gradbus_trainer_lag_batches", "Batches that the trainer is behind the foremost one.", nil,
			func(p place, r *row) {
				if !p.Lost && p.shown != nil {
					r.value(float64(p.shown.Lag))
				}
			}),
		there("gradbus_trainer_awaited_seconds", "For how long open rounds have waited for the trainer; 0 where none does.",
			func(p place) float64 {
				if !p.Waited {
					return 0
				}
				return float64(p.WaitedMS) / 1000
			}),
		there("gradbus_trainer_awaited_first", "Whether the earliest open round waits for the trainer.",
			func(p place) float64 { return truth(p.Waited && p.First) }),
		there("gradbus_trainer_disconnected", "Whether the trainer's connection was there and is not any more.",
			func(p place) float64 { return truth(p.Gone) }),
		gauge("gradbus_trainer_lost", "Whether the job goes on without the trainer, which was lost.",
			func(p place) float64 { return truth(p.Lost) }),
	}}
}

// there is a gauge of trainers that the job counts on: one that it has given up is silent for ever, and nobody waits.
func there(name, help string, of func(place) float64) figure[place] {
	return gauges(name, help, nil, func(p place, r *row) {
		if !p.Lost {
			r.value(of(p))
		}
	})
}
