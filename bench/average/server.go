package average

import (
	"context"
	"fmt"
	"slices"
	"sync"

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
	Metrics Metrics `json:"metrics"`
	Spans   []Span  `json:"spans"`
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
	m.add(metricStraggler, t.Last.Sub(t.First))
	m.add(metricAnswered, t.Answered.Sub(t.First))
	m.add(metricAverage, t.Average)
	if !r.timeline {
		return
	}
	track := fmt.Sprintf("bucket %d", t.Bucket)
	r.found.Spans = append(r.found.Spans, span(track, "param_index_batch", uint64(t.Batch), t.First, t.Answered, t.Bytes),
		span(track, "param_index_straggler", uint64(t.Batch), t.First, t.Last, 0),
		span(track+" averaging", "average computation", uint64(t.Batch), t.Answered.Add(-t.Average), t.Answered, 0))
}

// serverRole is a ps process that records its rounds.
func serverRole(ctx context.Context, m *harness.Member) (any, error) {
	var s serverSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	r := &rounds{jobs: s.Jobs, timeline: s.Timeline, found: serverResult{Rank: s.Rank, Metrics: Metrics{}}}
	if _, err := harness.Serve(ctx, m, s.Server, func(o *ps.Options) { o.Rounds = r.record }); err != nil {
		return nil, err
	}
	return &r.found, nil // the server is gone: nobody records any more
}
