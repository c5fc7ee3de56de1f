package ps

import (
	"sync/atomic"

	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// Stats is the work of a server since it started, and its current state.
type Stats struct {
	Frames  uint64 // received, by shards and coordinator
	Bytes   uint64 // received
	Dropped uint64 // frames that found their shard's queue or window full; they are sent again
	// SlowReaders counts the connections that the NATS server cut off because they did not read in time. What they missed
	// is asked for again.
	SlowReaders uint64
	Reasons     [schema.ReasonCount]uint64 // frames by what became of them; index schema.ReasonOK counts those taken
	Memory      int64                      // bytes promised to jobs
	Jobs        []JobStatus                // by name
}

// JobStatus is one job.
type JobStatus struct {
	coordinator.Status
	Bytes int64 // of memory promised to it
}

// counters are written by every goroutine of the server.
type counters struct {
	frames, bytes, dropped atomic.Uint64
	reportsDropped         atomic.Uint64
	reasons                [schema.ReasonCount]atomic.Uint64
}

func (c *counters) received(bytes int) {
	c.frames.Add(1)
	c.bytes.Add(uint64(bytes))
}

func (c *counters) count(r schema.Reason) { c.reasons[r].Add(1) }

func (c *counters) read(s *Stats) {
	s.Frames, s.Bytes, s.Dropped = c.frames.Load(), c.bytes.Load(), c.dropped.Load()
	for r := range s.Reasons {
		s.Reasons[r] = c.reasons[r].Load()
	}
}

// statsOf returns what jobs and shards here are.
func statsOf(jobs jobTable, shards *shardHost) *Stats {
	stats := &Stats{}
	for name, j := range jobs.coordinated() {
		status := JobStatus{Status: j.coordinator.Status()}
		if a := shards.jobs[name]; a != nil {
			status.Bytes = a.memory.Bytes()
		}
		stats.Jobs = append(stats.Jobs, status)
	}
	for _, a := range shards.held() {
		stats.Memory += a.memory.Bytes()
	}
	return stats
}
