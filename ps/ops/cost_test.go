package ops

import (
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"gradbus/ps/ops/metrics"
	"gradbus/ps/ops/status/statustest"
)

// BenchmarkSecond is what one second of a job with 64 trainers, four ps and their GPUs costs the ps that shows it, once
// reports are decoded: with nobody who looks, and with two pages open and a scrape. The clients' reading is part of it.
// One per cent of a processor is 10 ms.
func BenchmarkSecond(b *testing.B) {
	for _, c := range []struct {
		name             string
		streams, scrapes int
	}{{"nobody", 0, 0}, {"pages=2", 2, 0}, {"pages=2,scrapes=1", 2, 1}} {
		b.Run(c.name, func(b *testing.B) { second(b, c.streams, c.scrapes) })
	}
}

func second(b *testing.B, streams, scrapes int) {
	cluster := statustest.NewCluster(statustest.Options{Trainers: 64, Servers: 4, Shards: 8, GPUs: true, Hosts: 8})
	tracker := cluster.NewTracker()
	cluster.Play(tracker, 700) // curves of more than the finest grain
	hub := NewHub(nil)
	exporter := metrics.New(metrics.Config{Status: hub.Status})
	s, err := Start(b.Context(),
		Config{Listen: "127.0.0.1:0", Hub: hub, Metrics: exporter, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	hub.now, hub.tracker = func() time.Time { return cluster.Now }, tracker // without the goroutine
	all := cluster.Second()
	hub.self = all[0].From
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	get := func(path string, accept string) io.ReadCloser {
		r, err := http.NewRequestWithContext(b.Context(), "GET", s.URL()+path, nil)
		if err != nil {
			b.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", accept)
		answer, err := client.Do(r)
		if err != nil || answer.StatusCode != http.StatusOK {
			b.Fatal(err, answer)
		}
		return answer.Body
	}
	tick := func() *view {
		for _, h := range all {
			hub.Take(h.Job, h.From, h.Telemetry)
		}
		hub.tick(cluster.Now)
		return hub.latest.Load()
	}
	var pages []io.ReadCloser
	for range streams {
		page := get("api/v1/stream", "identity")
		defer page.Close()
		read(b, page, len(hello))
		pages = append(pages, page)
	}
	updates, bytes := 0, 0
	for b.Loop() {
		b.StopTimer() // the trainers' side
		all = cluster.Second()
		b.StartTimer()
		v := tick()
		for _, page := range pages {
			event, err := v.event()
			if err != nil {
				b.Fatal(err)
			}
			read(b, page, len(event))
			updates, bytes = updates+1, bytes+len(event)
		}
		for range scrapes {
			body := get("metrics", "gzip")
			if _, err := io.Copy(io.Discard, body); err != nil {
				b.Fatal(err)
			}
			body.Close()
		}
	}
	if updates > 0 {
		b.ReportMetric(float64(bytes)/float64(updates), "bytes/update")
	}
}

func read(b *testing.B, from io.Reader, n int) {
	if _, err := io.CopyN(io.Discard, from, int64(n)); err != nil {
		b.Fatal(err)
	}
}
