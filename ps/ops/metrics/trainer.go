package metrics

import (
	"time"

	"gradbus/schema"
)

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
