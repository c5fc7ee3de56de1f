package metrics

import (
	"maps"
	"runtime"
	"slices"
	"strconv"
	"time"

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
		gauge("gradbus_trainer_lost", "Whether the trainer was lost and the job continues without it.",
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

// trainer is one trainer of a job that this ps coordinates, by what it says of itself.
type trainer struct {
	*schema.Telemetry
	t   *schema.TrainerReport
	age time.Duration // of the report
}

func (t trainer) verification() *schema.VerifyReport { return &t.t.Verification }

// ifVerified is a value of what a member has computed again; nothing where it computes nothing again.
func ifVerified[T any](of func(T) *schema.VerifyReport, read func(*schema.VerifyReport) float64) func(T, *row) {
	return func(t T, r *row) {
		if v := of(t); v.OneIn > 0 {
			r.value(read(v))
		}
	}
}

// directions of traffic.
func eachDirection(r *row, sent, received uint64) {
	r.value(float64(sent), "sent")
	r.value(float64(received), "received")
}

// trainerTable tells of trainers: what lasts, which is true of the report heard last, however old, and to the end of
// the job.
func trainerTable() table[trainer] {
	return table[trainer]{[]string{"job_name", "member"}, []figure[trainer]{
		gauges("gradbus_trainer_info", "Who the trainer is; always 1.", []string{"host", "backend"},
			func(t trainer, r *row) { r.value(1, t.Host, t.t.Backend) }),
		gauge("gradbus_trainer_start_timestamp_seconds", "Start of the trainer, in seconds since 1970 by its clock.",
			func(t trainer) float64 { return float64(t.StartedMS) / 1000 }),
		gauge("gradbus_trainer_report_age_seconds", "Age of what the trainer last said of itself.",
			func(t trainer) float64 { return t.age.Seconds() }),
		counter("gradbus_trainer_batches_total", "Batches that the trainer has completed.",
			func(t trainer) float64 { return float64(t.t.Batches) }),
		counter("gradbus_trainer_samples_total", "Samples of the trainer's lanes in these batches.",
			func(t trainer) float64 { return float64(t.t.Samples) }),
		counter("gradbus_trainer_behind_versions_total", "Staleness: versions that batches were computed behind the "+
			"newest, in all.", func(t trainer) float64 { return float64(t.t.Behind) }),
		summary("gradbus_trainer_sample_loss",
			"Losses of samples that were finite: their number and their sum, whose quotient of increases is the mean loss.",
			func(t trainer) (uint64, float64) { return t.t.Loss.Samples, float64(t.t.Loss.Sum) }),
		counter("gradbus_trainer_bad_loss_batches_total", "Batches whose loss was NaN or infinite.",
			func(t trainer) float64 { return float64(t.t.Loss.Bad) }),
		counters("gradbus_trainer_phase_seconds_total", "Time spent in each phase of a batch: keys, lookup, compute, "+
			"send, result.", []string{"phase"}, func(t trainer, r *row) {
			r.value(float64(t.t.KeysSeconds), "keys")
			r.value(float64(t.t.LookupSeconds), "lookup")
			r.value(float64(t.t.ComputeSeconds), "compute")
			r.value(float64(t.t.SendSeconds), "send")
			r.value(float64(t.t.ResultSeconds), "result")
		}),
		counters("gradbus_trainer_network_bytes_total", "Payload over all connections.", direction(),
			func(t trainer, r *row) { eachDirection(r, t.t.Traffic.BytesSent, t.t.Traffic.BytesReceived) }),
		counters("gradbus_trainer_network_messages_total", "Messages over all connections.", direction(),
			func(t trainer, r *row) {
				eachDirection(r, t.t.Traffic.MessagesSent, t.t.Traffic.MessagesReceived)
			}),
		counter("gradbus_trainer_network_reconnects_total", "Connections that were made again.",
			func(t trainer) float64 { return float64(t.t.Traffic.Reconnects) }),
		counter("gradbus_trainer_network_dropped_messages_total",
			"Messages that were lost because the trainer read too slowly, or that were damaged.",
			func(t trainer) float64 { return float64(t.t.Traffic.Dropped) }),
		counter("gradbus_trainer_gradient_frames_total", "Frames of gradients that were sent, repeats not counted.",
			func(t trainer) float64 { return float64(t.t.GradientFrames) }),
		counter("gradbus_trainer_gradient_frames_resent_total", "Frames of gradients that were sent again, for want of an "+
			"acknowledgement.", func(t trainer) float64 { return float64(t.t.Resent) }),
		counter("gradbus_trainer_results_total", "Frames of results that were received.",
			func(t trainer) float64 { return float64(t.t.Results) }),
		counter("gradbus_trainer_results_repeated_total", "Frames of results that were there already.",
			func(t trainer) float64 { return float64(t.t.ResultsRepeated) }),
		counter("gradbus_trainer_lanes_skipped_total", "Lanes that were absent from a batch because their gradient was "+
			"not finite.", func(t trainer) float64 { return float64(t.t.LanesSkipped) }),
		counter("gradbus_trainer_lookups_repeated_total", "Lookups that were asked again.",
			func(t trainer) float64 { return float64(t.t.LookupsRepeated) }),
		counter("gradbus_trainer_pulls_total", "Results that did not come by themselves and were asked for.",
			func(t trainer) float64 { return float64(t.t.Pulls) }),
		counters("gradbus_trainer_verified_blocks_total",
			"Blocks of sums and optimizer steps that the trainer computed again by another backend and compared; absent "+
				"where none are.", nil,
			ifVerified(trainer.verification, func(v *schema.VerifyReport) float64 { return float64(v.Blocks) })),
		counters("gradbus_trainer_verify_mismatches_total",
			"Blocks of the trainer that differed when computed again; absent where none are.", nil,
			ifVerified(trainer.verification, func(v *schema.VerifyReport) float64 { return float64(v.Mismatches) })),
		gauges("gradbus_trainer_verify_interval_blocks",
			"One in so many blocks of the trainer is computed again; absent where none are.", nil,
			ifVerified(trainer.verification, func(v *schema.VerifyReport) float64 { return float64(v.OneIn) })),
		counter("gradbus_trainer_cpu_seconds_total", "Processor time of the trainer's process.",
			func(t trainer) float64 { return float64(t.t.Process.CPUSeconds) }),
	}}
}

func direction() []string { return []string{"direction"} }

// momentTable tells of trainers what is true of a moment only: of fresh reports in jobs that have not ended.
func momentTable() table[trainer] {
	return table[trainer]{[]string{"job_name", "member"}, []figure[trainer]{
		gauge("gradbus_trainer_batch", "Batch under way, or next.", func(t trainer) float64 { return float64(t.t.Batch) }),
		gauges("gradbus_trainer_end_batch", "Batch at which the run under way ends; absent between runs.", nil,
			func(t trainer, r *row) {
				if t.t.Planned > 0 {
					r.value(float64(t.t.Planned))
				}
			}),
		gauges("gradbus_trainer_loss", "Mean loss of the last completed batch; NaN and infinities as they are.", nil,
			func(t trainer, r *row) {
				if t.t.Batches > 0 {
					r.value(float64(t.t.Loss.Last))
				}
			}),
		gauges("gradbus_trainer_gradient_norm", "L2 norm of the mean gradient over the trainer's samples, of a batch about "+
			"once a second.", nil, func(t trainer, r *row) {
			if t.t.GradientNorm != nil {
				r.value(float64(*t.t.GradientNorm))
			}
		}),
		gauges("gradbus_trainer_doing_seconds", "For how long the trainer has done what it does; the label says what: "+
			"joining, keys, lookup, compute, send, result or other.",
			[]string{"doing"}, func(t trainer, r *row) {
				if t.t.Doing.Known() { // the label is bounded, whoever gave the report
					r.value(float64(t.t.DoingMS)/1000, string(t.t.Doing))
				}
			}),
		gauge("gradbus_trainer_connected", "Whether all of the trainer's connections stand.",
			func(t trainer) float64 { return truth(t.t.Traffic.Connected) }),
		gauge("gradbus_trainer_pending_bytes", "Bytes sent to shards and not acknowledged, of all windows.",
			func(t trainer) float64 {
				return t.links(func(l *schema.LinkReport) float64 { return float64(l.PendingBytes) })
			}),
		gauge("gradbus_trainer_window_bytes", "Bytes that may be under way to shards, of all windows.",
			func(t trainer) float64 {
				return t.links(func(l *schema.LinkReport) float64 { return float64(l.WindowBytes) })
			}),
		gauges("gradbus_trainer_round_trip_seconds", "Time from a frame until it is known to have come, by its "+
			"acknowledgement or by results, lately; the worst of all shards. Absent before the first.", nil, roundTrip),
		gauge("gradbus_trainer_resident_bytes", "Memory of the trainer's process.",
			func(t trainer) float64 { return float64(t.t.Process.ResidentBytes) }),
		gauge("gradbus_trainer_heap_bytes", "Live Go heap of the trainer's process.",
			func(t trainer) float64 { return float64(t.t.Process.HeapBytes) }),
		gauge("gradbus_trainer_goroutines", "Goroutines of the trainer's process.",
			func(t trainer) float64 { return float64(t.t.Process.Goroutines) }),
		gauge("gradbus_trainer_cpus", "Processors that the trainer may use.",
			func(t trainer) float64 { return float64(t.t.Process.CPUs) }),
	}}
}

// links adds up over the windows to all shards.
func (t trainer) links(of func(*schema.LinkReport) float64) (sum float64) {
	for i := range t.t.Links {
		sum += of(&t.t.Links[i])
	}
	return sum
}

func roundTrip(t trainer, r *row) {
	worst := 0.0
	for i := range t.t.Links {
		worst = max(worst, float64(t.t.Links[i].RoundTrip))
	}
	if worst > 0 {
		r.value(worst)
	}
}

// shard is a shard that this ps keeps.
type shard struct {
	*schema.ShardReport
	shown *status.Shard // nil until it is shown
}

// shardTable tells of shards.
func shardTable() table[shard] {
	return table[shard]{[]string{"job_name", "member"}, []figure[shard]{
		gauge("gradbus_shard_ready", "Whether the shard has all it needs to serve.",
			func(s shard) float64 { return truth(s.Ready) }),
		gauge("gradbus_shard_version", "Batches that the shard has applied.",
			func(s shard) float64 { return float64(s.Version) }),
		gauges("gradbus_shard_lag_versions", "Versions that the shard is behind the foremost one of its job.", nil,
			func(s shard, r *row) {
				if s.shown != nil {
					r.value(float64(s.shown.Lag))
				}
			}),
		counter("gradbus_shard_rounds_total", "Rounds that the shard has closed.",
			func(s shard) float64 { return float64(s.Rounds) }),
		counter("gradbus_shard_frames_total", "Contributions and requests that the shard took.",
			func(s shard) float64 { return float64(s.Frames) }),
		counter("gradbus_shard_frame_bytes_total", "Bytes of these.", func(s shard) float64 { return float64(s.Bytes) }),
		counter("gradbus_shard_acks_total", "Acknowledgements that the shard sent.",
			func(s shard) float64 { return float64(s.Acks) }),
		counter("gradbus_shard_lookups_total", "Lookups that the shard answered.",
			func(s shard) float64 { return float64(s.Lookups) }),
		counter("gradbus_shard_pulls_total", "Requests for results that did not come by themselves.",
			func(s shard) float64 { return float64(s.Pulls) }),
		counter("gradbus_shard_repeats_total", "Frames that the shard had taken before and answered again.",
			func(s shard) float64 { return float64(s.Repeats) }),
		gauge("gradbus_shard_staged_bytes", "Gradients of open rounds that wait for others.",
			func(s shard) float64 { return float64(s.StagedBytes) }),
		gauge("gradbus_shard_staged_limit_bytes", "Gradients that may so wait.",
			func(s shard) float64 { return float64(s.StagedBytesMax) }),
		gauge("gradbus_shard_queue_frames", "Frames that wait for the shard.",
			func(s shard) float64 { return float64(s.QueueFrames) }),
		gauge("gradbus_shard_queue_bytes", "Bytes of these.", func(s shard) float64 { return float64(s.QueueBytes) }),
		gauge("gradbus_shard_held_bytes", "Rows, parameters and gradients that the shard holds.",
			func(s shard) float64 { return float64(s.HeldBytes) }),
		gauge("gradbus_shard_memory_bytes", "Memory that was promised to the shard.",
			func(s shard) float64 { return float64(s.MemoryBytes) }),
		gauge("gradbus_shard_awaited_trainers", "Trainers that the shard's earliest open round waits for.",
			func(s shard) float64 {
				if s.Waiting == nil {
					return 0
				}
				return float64(len(s.Waiting.Members))
			}),
		counter("gradbus_shard_step_seconds_total", "Time in the shard's state machine: checking, adding, applying.",
			func(s shard) float64 { return float64(s.StepSeconds) }),
		counter("gradbus_shard_publish_seconds_total", "Time spent handing results to the network.",
			func(s shard) float64 { return float64(s.PublishSeconds) }),
		counter("gradbus_shard_kernel_seconds_total", "Time in kernels: sums and optimizer.",
			func(s shard) float64 { return float64(s.ApplySeconds) }),
		counter("gradbus_shard_kernel_bytes_total", "Bytes that these kernels read and wrote.",
			func(s shard) float64 { return float64(s.ApplyBytes) }),
	}}
}

// writeBuckets puts the buckets of a shard on a sheet.
func (t *tables) writeBuckets(s *sheet, job schema.JobName, member string, buckets []schema.BucketReport) {
	for i := range buckets {
		b := &buckets[i]
		kind := "dense"
		if b.Sparse {
			kind = "sparse"
		}
		t.bucket.write(s, b, string(job), member, strconv.FormatUint(uint64(b.Bucket), 10), kind)
	}
}

// bucketTable tells of the buckets of shards that this ps keeps.
func bucketTable() table[*schema.BucketReport] {
	each := func(name, help string, of func(*schema.BucketReport) schema.Real) figure[*schema.BucketReport] {
		return summary("gradbus_shard_bucket_"+name+"_seconds", help, func(b *schema.BucketReport) (uint64, float64) {
			return b.Rounds, float64(of(b))
		})
	}
	return table[*schema.BucketReport]{[]string{"job_name", "member", "bucket", "kind"}, []figure[*schema.BucketReport]{
		each("straggler", "Time from the first trainer's whole gradient of the bucket to the last one's, of its rounds.",
			func(b *schema.BucketReport) schema.Real { return b.StragglerSeconds }),
		gauge("gradbus_shard_bucket_straggler_max_seconds", "The longest time between these gradients.",
			func(b *schema.BucketReport) float64 { return float64(b.StragglerMaxSeconds) }),
		each("batch", "Time from the first whole gradient of the bucket until all trainers were answered.",
			func(b *schema.BucketReport) schema.Real { return b.BatchSeconds }),
		gauge("gradbus_shard_bucket_batch_max_seconds", "The longest time until all were answered.",
			func(b *schema.BucketReport) float64 { return float64(b.BatchMaxSeconds) }),
		each("arrival", "Time in adding gradients of the bucket up as they came.",
			func(b *schema.BucketReport) schema.Real { return b.ArrivalSeconds }),
		each("average", "Time in what was left of the sum, and in the division; with the optimizer where the shard has it.",
			func(b *schema.BucketReport) schema.Real { return b.AverageSeconds }),
	}}
}

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

// standbyFigures tell who would go on with a job. There are none where nobody has ever stood by.
func standbyFigures() []figure[job] {
	return []figure[job]{
		gauges("gradbus_job_standby_ready", "Whether the job would go on elsewhere, if its ps, or one of several, were lost "+
			"now; absent where none has stood by, or none can.", nil,
			able(func(b *status.Standby, r *row) { r.value(truth(b.Ready)) })),
		gauges("gradbus_job_standby_version", "The newest version that a ps that stands by has whole, or several together.",
			nil, whole(func(b *status.Standby, r *row) { r.value(float64(b.Version)) })),
		gauges("gradbus_job_standby_age_seconds", "Time since that became whole there: what the loss of a ps costs, "+
			"about.", nil, whole(func(b *status.Standby, r *row) { r.value(float64(b.AgeMS) / 1000) })),
		gauges("gradbus_job_standby_seconds", "Time that telling the last version took.", nil,
			whole(func(b *status.Standby, r *row) { r.value(float64(b.TookMS) / 1000) })),
		counters("gradbus_job_standby_bytes_total", "Bytes that were told to each ps that stands by.", nil,
			able(func(b *status.Standby, r *row) { r.value(float64(b.Bytes)) })),
		gauges("gradbus_job_standby_unready_seconds", "For how long the job would not have gone on elsewhere, though it was "+
			"to; 0 where it would.", nil,
			able(func(b *status.Standby, r *row) { r.value(float64(b.UnreadyMS) / 1000) })),
		gauges("gradbus_job_standby_late_seconds", "For how long trainers have been past that version; 0 where they are not.",
			nil, able(func(b *status.Standby, r *row) { r.value(float64(b.LateMS) / 1000) })),
	}
}

// able reads from a running job that somebody can stand by for, where somebody has; whole from one of which who stands
// by has a version.
func able(of func(*status.Standby, *row)) func(job, *row) {
	return func(j job, r *row) {
		if j.shown != nil && j.shown.Standby != nil && j.shown.Standby.Off == "" {
			of(j.shown.Standby, r)
		}
	}
}

func whole(of func(*status.Standby, *row)) func(job, *row) {
	return able(func(b *status.Standby, r *row) {
		if b.Version > 0 {
			of(b, r)
		}
	})
}

// standsByFigures tell of the ps that this one stands by for.
func standsByFigures() []figure[server] {
	return []figure[server]{
		gauges("gradbus_ps_standby_reached", "Whether the ps that this one stands by for answers; absent where it stands "+
			"by for none, or several do for each other.", nil, func(s server, r *row) {
			if b := s.s.StandsBy; b != nil && !b.Peers {
				r.value(truth(b.Reached))
			}
		}),
		gauges("gradbus_ps_standby_job_ready", "Whether what this ps is to have of a job of others is there, to go on with.",
			[]string{"job_name"}, held(func(h *schema.HeldReport) float64 { return truth(h.Version > 0) })),
		gauges("gradbus_ps_standby_job_version", "The version of that; 0 where none is there.",
			[]string{"job_name"}, held(func(h *schema.HeldReport) float64 { return float64(h.Version) })),
	}
}

func held(of func(*schema.HeldReport) float64) func(server, *row) {
	return func(s server, r *row) {
		if s.s.StandsBy == nil {
			return
		}
		for i := range s.s.StandsBy.Jobs {
			h := &s.s.StandsBy.Jobs[i]
			r.value(of(h), string(h.Job))
		}
	}
}

// server is this ps, by its own last report.
type server struct {
	*schema.Telemetry
	s   *schema.ServerReport
	age time.Duration
}

func (s server) verification() *schema.VerifyReport { return &s.s.Verification }

// buildTable tells what program this is.
func buildTable() table[string] {
	return table[string]{nil, []figure[string]{
		gauges("gradbus_build_info", "The program: its version and Go's; always 1.", []string{"version", "goversion"},
			func(version string, r *row) {
				r.value(1, version, runtime.Version())
			}),
	}}
}

// serverTable tells of this ps.
func serverTable() table[server] {
	return table[server]{nil, append(standsByFigures(), []figure[server]{
		gauges("gradbus_ps_info", "Who this ps is; always 1.", []string{"id", "host", "backend"},
			func(s server, r *row) { r.value(1, s.s.ID, s.Host, s.s.Backend) }),
		gauge("gradbus_ps_control_loop_age_seconds", "Time since the control loop of this ps last turned: above some "+
			"seconds it hangs.", func(s server) float64 { return s.age.Seconds() }),
		gauge("gradbus_ps_deadline_seconds", "Time that a trainer may be silent, or keep others waiting, before it counts as lost.",
			func(s server) float64 { return float64(s.s.Deadline) }),
		gauge("gradbus_ps_control_lost", "Whether the control server is out of reach.",
			func(s server) float64 { return truth(s.s.ControlLost) }),
		gauges("gradbus_ps_jobs", "Jobs that this ps coordinates, by phase.", []string{"phase"}, func(s server, r *row) {
			for _, phase := range phases() {
				n := 0
				for i := range s.s.Jobs {
					n += int(truth(s.s.Jobs[i].Phase == phase))
				}
				r.value(float64(n), phase)
			}
		}),
		counter("gradbus_ps_frames_total", "Frames that shards and coordinators received.",
			func(s server) float64 { return float64(s.s.Frames) }),
		counter("gradbus_ps_frame_bytes_total", "Bytes of these frames.",
			func(s server) float64 { return float64(s.s.Bytes) }),
		counters("gradbus_ps_frames_refused_total", "Frames that were refused, or, as duplicate, answered again, by reason.",
			[]string{"reason"}, refused),
		counters("gradbus_ps_calls_total", "Operations of the arithmetic of this ps, by the backend that did them: cuda is "+
			"the GPU.", []string{"backend"}, func(s server, r *row) {
			for _, backend := range slices.Sorted(maps.Keys(s.s.Calls)) {
				r.value(float64(s.s.Calls[backend]), backend)
			}
		}),
		counter("gradbus_ps_dropped_messages_total", "Messages that were lost because this ps read too slowly, or that "+
			"were damaged.", func(s server) float64 { return float64(s.s.Dropped) }),
		counter("gradbus_ps_slow_readers_total", "Connections that the data server cut because their reader was too slow.",
			func(s server) float64 { return float64(s.s.SlowReaders) }),
		counters("gradbus_ps_network_bytes_total", "Payload over all connections of this ps.", direction(),
			func(s server, r *row) { eachDirection(r, s.s.Traffic.BytesSent, s.s.Traffic.BytesReceived) }),
		counters("gradbus_ps_network_messages_total", "Messages over all connections of this ps.", direction(),
			func(s server, r *row) {
				eachDirection(r, s.s.Traffic.MessagesSent, s.s.Traffic.MessagesReceived)
			}),
		counter("gradbus_ps_network_reconnects_total", "Connections of this ps that were made again.",
			func(s server) float64 { return float64(s.s.Traffic.Reconnects) }),
		gauge("gradbus_ps_memory_promised_bytes", "Memory that was promised to jobs.",
			func(s server) float64 { return float64(s.s.Memory.PromisedBytes) }),
		gauge("gradbus_ps_memory_limit_bytes", "Memory that all jobs may hold.",
			func(s server) float64 { return float64(s.s.Memory.MaxBytes) }),
		gauge("gradbus_ps_cpus", "Processors that this ps may use.",
			func(s server) float64 { return float64(s.s.Process.CPUs) }),
		counters("gradbus_ps_verified_blocks_total",
			"Blocks of sums and optimizer steps that were computed again by another backend and compared; absent "+
				"where none are.", nil,
			ifVerified(server.verification, func(v *schema.VerifyReport) float64 { return float64(v.Blocks) })),
		counters("gradbus_ps_verify_mismatches_total", "Blocks that differed when computed again; absent where none are.",
			nil, ifVerified(server.verification, func(v *schema.VerifyReport) float64 { return float64(v.Mismatches) })),
		gauges("gradbus_ps_verify_interval_blocks", "One in so many blocks is computed again; absent where none are.", nil,
			ifVerified(server.verification, func(v *schema.VerifyReport) float64 { return float64(v.OneIn) })),
	}...)}
}

// refused has every reason there is, 0 or not: a series that begins with its first frame has no increase.
func refused(s server, r *row) {
	for reason := schema.ReasonOK + 1; int(reason) < schema.ReasonCount; reason++ {
		name := reason.String()
		r.value(float64(s.s.Reasons[name]), name)
	}
}

// disk is a file system at a moment.
type disk struct {
	*schema.DiskReport
	now time.Time
}

// diskTable tells of file systems that this ps and the trainers of its jobs write to.
func diskTable() table[disk] {
	return table[disk]{[]string{"host", "path"}, []figure[disk]{
		gauge("gradbus_disk_free_bytes",
			"Free space of the file system under a path that this ps, or a trainer of a job that it coordinates, writes to.",
			func(d disk) float64 { return float64(d.FreeBytes) }),
		gauge("gradbus_disk_size_bytes", "Size of that file system.", func(d disk) float64 { return float64(d.TotalBytes) }),
		gauge("gradbus_disk_needed_bytes", "What will be written there at once, such as a model; 0 where that is little.",
			func(d disk) float64 { return float64(d.NeedBytes) }),
		gauges("gradbus_disk_sample_age_seconds", "Time since the file system last answered.", nil, func(d disk, r *row) {
			if d.SampleMS > 0 {
				r.value(max(0, float64(d.now.UnixMilli()-d.SampleMS)/1000))
			}
		}),
	}}
}

// writeDisks puts file systems on a sheet, each path of a machine once.
func (e *Exporter) writeDisks(s *sheet, of *schema.Telemetry, disks []schema.DiskReport, now time.Time) {
	for i := range disks {
		e.tables.disk.write(s, disk{&disks[i], now}, of.Host, disks[i].Path)
	}
}

// Bounds of lists that a GPU's report carries, so that no driver and no trainer can make labels without end.
const (
	throttlesMax = 16
	xidsMax      = 64
	nameBytesMax = 40 // of a throttling reason, an XID's code
)

// gpu is a GPU at a moment.
type gpu struct {
	*schema.GPUReport
	now time.Time
}

// name of the GPU in labels: its UUID, or where the driver does not tell it, its index.
func (g gpu) name() string {
	if g.UUID == "" {
		return "index-" + strconv.Itoa(g.Index)
	}
	return g.UUID
}

func states() []schema.GPUState {
	return []schema.GPUState{schema.GPUAbsent, schema.GPUUnknown, schema.GPUHealthy, schema.GPUDegraded,
		schema.GPUUnhealthy}
}

// names are those of a list that are fit for labels: short, each once, in order, and not too many.
func names(of []string, most int) []string {
	of = slices.DeleteFunc(slices.Clone(of), func(name string) bool {
		return name == "" || len(name) > nameBytesMax ||
			label(name) != name
	})
	slices.Sort(of)
	of = slices.Compact(of)
	return of[:min(len(of), most)]
}

// told is a gauge of what the driver may not tell.
func told[N schema.Real | int64 | int](name, help string, of func(gpu) *N) figure[gpu] {
	return gauges(name, help, nil, func(g gpu, r *row) {
		if v := of(g); v != nil {
			r.value(float64(*v))
		}
	})
}

// toldCount is a counter of that kind.
func toldCount(name, help string, of func(gpu) *uint64) figure[gpu] {
	return counters(name, help, nil, func(g gpu, r *row) {
		if v := of(g); v != nil {
			r.value(float64(*v))
		}
	})
}

// gpuTable tells of GPUs.
func gpuTable() table[gpu] {
	return table[gpu]{[]string{"gpu", "host"}, append([]figure[gpu]{
		gauges("gradbus_gpu_info", "What the GPU is; always 1.", []string{"index", "name", "pci", "driver"},
			func(g gpu, r *row) {
				r.value(1, strconv.Itoa(g.Index), g.Name, g.PCI, g.Driver)
			}),
		gauges("gradbus_gpu_state", "1 for the state that the GPU is in: absent, unknown, healthy, degraded or unhealthy.",
			[]string{"state"}, func(g gpu, r *row) {
				for _, s := range states() {
					r.value(truth(g.State == s), string(s))
				}
			}),
		gauges("gradbus_gpu_problem", "1 for the code of what is wrong with the GPU; absent where nothing is.",
			[]string{"code"}, func(g gpu, r *row) {
				if g.Code != "" {
					r.value(1, g.Code)
				}
			}),
		gauges("gradbus_gpu_state_since_timestamp_seconds",
			"Since when the GPU has been in its state, in seconds since 1970.", nil, func(g gpu, r *row) {
				if g.SinceMS > 0 {
					r.value(float64(g.SinceMS) / 1000)
				}
			}),
		gauges("gradbus_gpu_sample_age_seconds", "Time since the driver last answered.", nil, func(g gpu, r *row) {
			if g.SampleMS > 0 {
				r.value(max(0, float64(g.now.UnixMilli()-g.SampleMS)/1000))
			}
		}),
		gauge("gradbus_gpu_used", "Whether the process that tells of the GPU computes on it.",
			func(g gpu) float64 { return truth(g.Used) }),
		gauge("gradbus_gpu_injected", "Whether a fault that is shown was injected for a test.",
			func(g gpu) float64 { return truth(g.Injected) }),
		gauges("gradbus_gpu_throttled", "1 for each reason why the clocks are lower than asked for; absent where "+
			"there is none.", []string{"reason"}, func(g gpu, r *row) {
			for _, reason := range names(g.Throttled, throttlesMax) {
				r.value(1, reason)
			}
		}),
		counters("gradbus_gpu_xid_events_total", "XID events of the driver by code, since the probe began.", []string{"xid"},
			func(g gpu, r *row) {
				for _, code := range names(slices.Collect(maps.Keys(g.XIDs)), xidsMax) {
					r.value(float64(g.XIDs[code]), code)
				}
			}),
		counters("gradbus_gpu_ecc_errors_total", "Memory errors since the driver was loaded, corrected and uncorrected.",
			[]string{"kind"}, func(g gpu, r *row) {
				if g.ECCCorrected != nil {
					r.value(float64(*g.ECCCorrected), "corrected")
				}
				if g.ECCUncorrected != nil {
					r.value(float64(*g.ECCUncorrected), "uncorrected")
				}
			}),
	}, sampled()...)}
}

// sampled is what the driver tells as one number.
func sampled() []figure[gpu] {
	return []figure[gpu]{
		told("gradbus_gpu_temperature_celsius", "Temperature.", func(g gpu) *schema.Real { return g.Temperature }),
		told("gradbus_gpu_thermal_margin_celsius", "Degrees below the temperature at which the GPU slows down.",
			func(g gpu) *schema.Real { return g.ThermalMargin }),
		told("gradbus_gpu_power_watts", "Power that the GPU takes.", func(g gpu) *schema.Real { return g.PowerWatts }),
		told("gradbus_gpu_power_limit_watts", "Power that it may take.",
			func(g gpu) *schema.Real { return g.PowerLimitWatts }),
		told("gradbus_gpu_utilisation_ratio", "Share of the last sampling period in which a kernel ran, 0 to 1.",
			func(g gpu) *schema.Real { return g.Utilisation }),
		told("gradbus_gpu_memory_used_bytes", "Memory in use.", func(g gpu) *int64 { return g.MemoryUsed }),
		told("gradbus_gpu_memory_size_bytes", "Memory there is.", func(g gpu) *int64 { return g.MemoryTotal }),
		told("gradbus_gpu_memory_others_bytes", "Memory used by processes that are not of gradbus.",
			func(g gpu) *int64 { return g.MemoryOthers }),
		told("gradbus_gpu_sm_clock_hertz", "Clock of the multiprocessors.", func(g gpu) *int64 { return g.SMClockHz }),
		told("gradbus_gpu_memory_clock_hertz", "Clock of the memory.", func(g gpu) *int64 { return g.MemoryClockHz }),
		toldCount("gradbus_gpu_remapped_rows_total", "Rows of memory that were replaced by spare ones.",
			func(g gpu) *uint64 { return g.RowsRemapped }),
		toldCount("gradbus_gpu_retired_pages_total", "Pages of memory that are used no more.",
			func(g gpu) *uint64 { return g.RetiredPages }),
		toldCount("gradbus_gpu_pcie_replays_total", "Transfers over PCIe that had to be repeated.",
			func(g gpu) *uint64 { return g.PCIeReplays }),
		told("gradbus_gpu_pcie_lanes", "Lanes of PCIe in use.", func(g gpu) *int { return g.PCIeWidth }),
		told("gradbus_gpu_pcie_lanes_max", "Lanes of PCIe that GPU and slot have.",
			func(g gpu) *int { return g.PCIeWidthMax }),
		toldCount("gradbus_gpu_nvlink_errors_total", "Errors on NVLink connections.",
			func(g gpu) *uint64 { return g.NVLinkErrors }),
	}
}
