package metrics

import (
	"gradbus/ps/ops/status"
	"gradbus/schema"
)

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
