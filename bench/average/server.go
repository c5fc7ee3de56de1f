package average

import (
	"context"
	"sync"

	"gradbus/bench/crew"
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

// serverRole is a ps process that records its rounds.
func serverRole(ctx context.Context, m *crew.Member) (result any, err error) {
	var s serverSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	r := &rounds{jobs: s.Jobs, timeline: s.Timeline, found: serverResult{Rank: s.Rank, Metrics: Metrics{}}}
	server, end, err := crew.OpenServer(ctx, m, s.Server)
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
