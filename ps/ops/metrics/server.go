package metrics

import (
	"maps"
	"runtime"
	"slices"
	"time"

	"gradbus/schema"
)

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
		gauge("gradbus_ps_deadline_seconds", "Time that a trainer may be silent or keep others waiting.",
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
