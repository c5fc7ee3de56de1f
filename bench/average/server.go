package average

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"gradbus/bench/crew"
	"gradbus/ps"
)

// serverSettings are those of one server.
type serverSettings struct {
	Server   crew.ServerSettings `json:"server"`
	Rank     int                 `json:"rank"`
	Jobs     []string            `json:"jobs"` // that are measured
	Timeline bool                `json:"timeline"`
}

// serverResult is what a server found in the jobs that are measured.
type serverResult struct {
	Rank    int     `json:"rank"`
	Metrics Metrics `json:"metrics"`
	Spans   []Span  `json:"spans"`
	Frames  uint64  `json:"frames"`
	Bytes   uint64  `json:"bytes"`
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
func serverRole(ctx context.Context, m *crew.Member) (result any, err error) {
	var s serverSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	r := &rounds{jobs: s.Jobs, timeline: s.Timeline, found: serverResult{Rank: s.Rank, Metrics: Metrics{}}}
	server, end, err := crew.OpenServer(ctx, m, s.Server, func(o *ps.Options) { o.Rounds = r.record })
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := end(); err == nil {
			err = e
		}
	}()
	if err := m.Tell(crew.KeyURL, server.URL()); err != nil {
		return nil, err
	}
	select {
	case <-m.Done():
	case <-server.Done():
		return nil, server.Err()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	stats := server.Stats()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found.Frames, r.found.Bytes = stats.Frames, stats.Bytes
	return &r.found, nil
}
