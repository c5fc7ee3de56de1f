package metrics

import "gradbus/ps/ops/status"

// checkpointFigures tell how durable a job is.
func checkpointFigures() []figure[job] {
	return []figure[job]{
		gauges("gradbus_job_checkpoints_enabled", "Whether versions of the job are written; nothing of it is durable else.",
			nil, said(func(d *status.Durability, r *row) { r.value(truth(d.Off == "")) })),
		gauges("gradbus_job_durable_version", "The newest durable version; absent before the first.", nil,
			newest(func(d *status.Durability, r *row) { r.value(float64(d.Version)) })),
		gauges("gradbus_job_durable_age_seconds", "Time since the newest durable version became that: what a crash "+
			"costs, about.", nil, newest(func(d *status.Durability, r *row) { r.value(float64(d.AgeMS) / 1000) })),
		gauges("gradbus_job_checkpoint_bytes", "Size of the newest durable version, of all shards together.", nil,
			newest(func(d *status.Durability, r *row) { r.value(float64(d.Bytes)) })),
		gauges("gradbus_job_checkpoint_seconds", "Time from asking for the newest durable version until it was that; absent "+
			"where the job was resumed from it.", nil, newest(func(d *status.Durability, r *row) {
			if d.TookMS > 0 {
				r.value(float64(d.TookMS) / 1000)
			}
		})),
		gauges("gradbus_job_checkpoint_late_seconds", "For how long a version has been due and is not durable; 0 where "+
			"none is.", nil, written(func(d *status.Durability, r *row) { r.value(float64(d.LateMS) / 1000) })),
		gauges("gradbus_job_checkpoint_failing", "Whether a version has failed and none has become durable since.", nil,
			written(func(d *status.Durability, r *row) { r.value(truth(d.Failure != "")) })),
		counters("gradbus_job_checkpoint_failures_total", "Versions that were asked for and did not become durable.", nil,
			written(func(d *status.Durability, r *row) { r.value(float64(d.Failures)) })),
	}
}

// said reads from a job of which it is known whether versions are written.
func said(of func(*status.Durability, *row)) func(job, *row) {
	return func(j job, r *row) {
		if j.shown != nil && j.shown.Durability != nil {
			of(j.shown.Durability, r)
		}
	}
}

// written reads from a job whose versions are written, and newest from one of which a version is durable.
func written(of func(*status.Durability, *row)) func(job, *row) {
	return said(func(d *status.Durability, r *row) {
		if d.Off == "" {
			of(d, r)
		}
	})
}

func newest(of func(*status.Durability, *row)) func(job, *row) {
	return written(func(d *status.Durability, r *row) {
		if d.Version > 0 {
			of(d, r)
		}
	})
}
