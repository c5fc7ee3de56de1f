package trainer

import (
	"time"

	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// Stats counts what a session has done since Join, and where its time went. Times are wall time of the goroutine that
// calls Run; they add up to the time between the first batch and the last but for report.
type Stats struct {
	Batches      uint64
	Samples      uint64 // of this trainer's lanes
	LanesSkipped uint64 // of this trainer, absent from a batch because their gradient was not finite
	Behind       uint64 // versions that batches were computed behind, in all: 0 in sync

	KeysTime    time.Duration // asking the workload for keys, finding the distinct ones, building lookups
	LookupTime  time.Duration // waiting for rows
	ComputeTime time.Duration // in the workload, and adding up lanes
	SendTime    time.Duration // building gradient frames, and publishing those that the windows have room for
	ResultTime  time.Duration // waiting for results after everything was sent

	BytesSent, BytesReceived       uint64 // payload, over all connections of the session
	MessagesSent, MessagesReceived uint64
	Reconnects                     uint64
	LookupsRepeated                uint64 // times that rows were late and asked for again
	Pulls                          uint64 // times that results were late and asked for again
	GradientFrames                 uint64 // that were sent, each counted once
	Resent                         uint64 // gradient frames that were sent again
	Results                        uint64 // rounds whose outcome was taken
	ResultsByRows                  uint64 // of these, rounds that rows said to be over in place of a result
	ResultsRepeated                uint64 // outcomes that came once more, or after their batch
	Dropped                        uint64 // messages lost to a slow reader, or damaged
}

func (t *Stats) add(samples int, times *batchTimes) {
	t.Batches++
	t.Samples += uint64(samples)
	t.KeysTime += times.keys
	t.LookupTime += times.lookup
	t.ComputeTime += times.compute
	t.SendTime += times.send
	t.ResultTime += times.result
}

// Stats is what was counted so far. It may be called at any time, from any goroutine.
func (s *membership) Stats() Stats {
	s.statsMu.Lock()
	t := s.stats
	s.statsMu.Unlock()
	t.Dropped = s.faults.Load()
	for _, conn := range s.conns() {
		c := conn.Stats()
		t.BytesSent, t.BytesReceived = t.BytesSent+c.BytesSent, t.BytesReceived+c.BytesReceived
		t.MessagesSent, t.MessagesReceived = t.MessagesSent+c.MessagesSent, t.MessagesReceived+c.MessagesReceived
		t.Reconnects, t.Dropped = t.Reconnects+c.Reconnects, t.Dropped+c.Dropped
	}
	for _, l := range s.links {
		if l.outbox == nil {
			continue
		}
		o := l.outbox.Stats()
		t.GradientFrames += o.Frames
		t.Resent += resent(o)
	}
	c := get(s.exchange, (*exchange.Exchange).Counts)
	t.Results, t.ResultsRepeated, t.ResultsByRows = c.Taken, c.Repeated, c.ByRows
	return t
}

// GradientNorm is Session.GradientNorm in this run.
func (s *membership) GradientNorm() (norm float64, of schema.Batch, known bool) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	if s.norm.value == nil {
		return 0, 0, false
	}
	return float64(*s.norm.value), s.norm.batch, true
}

func (s *membership) count(add func(*Stats)) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	add(&s.stats)
}

// batchTimes is where the time of one batch went.
type batchTimes struct {
	begin, last                         time.Time
	keys, lookup, compute, send, result time.Duration
}

func startTimes() *batchTimes {
	now := time.Now()
	return &batchTimes{begin: now, last: now}
}

// restart begins the batch anew, after what was waited for meanwhile.
func (t *batchTimes) restart() { t.lap(); t.begin = t.last }

// lap is the time since the lap before.
func (t *batchTimes) lap() time.Duration {
	now := time.Now()
	lap := now.Sub(t.last)
	t.last = now
	return lap
}
