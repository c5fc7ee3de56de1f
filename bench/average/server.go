package average

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"gradbus/bench/harness"
	"gradbus/ps"
)

// serverSettings are those of one server.
type serverSettings struct {
	Server   harness.ServerSettings `json:"server"`
	Rank     int                    `json:"rank"`
	Jobs     []string               `json:"jobs"` // that are measured
	Timeline bool                   `json:"timeline"`
}

// serverResult is what a server found in the jobs that are measured.
type serverResult struct {
	Rank    int     `json:"rank"`
	Metrics metrics `json:"metrics"`
	Spans   []Span  `json:"spans"`
	// OnArrival is what adding up took before a bucket closed, in milliseconds. The original has no name for it, so it is
	// in no table.
	OnArrival []float64 `json:"on_arrival"`
}

// rounds records the rounds of a server.
type rounds struct {
	jobs     []string
	timeline bool

	mu    sync.Mutex // guards found: shards report from goroutines of their own
	found serverResult
}

func (r *rounds) record(t ps.RoundTimes) {
	if !slices.Contains(r.jobs, string(t.Job)) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.found.Metrics
	m.add(metricStraggler, t.Straggler())
	m.add(metricAnswered, t.Turnaround())
	m.add(metricAverage, t.Average)
	r.found.OnArrival = append(r.found.OnArrival, float64(t.OnArrival)/float64(time.Millisecond))
	if !r.timeline {
		return
	}
	track := fmt.Sprintf("bucket %d", t.Bucket)
	r.found.Spans = append(r.found.Spans,
		span(track, "param_index_batch", uint64(t.Batch), t.FirstGradient, t.Answered, 0),
		span(track, "param_index_straggler", uint64(t.Batch), t.FirstGradient, t.LastGradient, 0),
		span(track+" receiving", "receive", uint64(t.Batch), t.First, t.LastGradient, t.Bytes),
		span(track+" averaging", "average computation", uint64(t.Batch), t.Answered.Add(-t.Average), t.Answered, 0))
}

// serverRole is a ps process that records its rounds.
func serverRole(ctx context.Context, m *harness.Member) (any, error) {
	var s serverSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	r := &rounds{jobs: s.Jobs, timeline: s.Timeline, found: serverResult{Rank: s.Rank, Metrics: metrics{}}}
	if _, err := harness.Serve(ctx, m, s.Server, func(o *ps.Options) { o.Rounds = r.record }); err != nil {
		return nil, err
	}
	return &r.found, nil // the server is gone, and with it the recorder
}
