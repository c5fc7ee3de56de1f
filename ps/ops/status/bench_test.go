package status_test

import (
	"testing"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/ps/ops/status/statustest"
)

func large(b *testing.B) (*statustest.Cluster, *status.Tracker) {
	b.Helper()
	c := statustest.NewCluster(statustest.Options{Trainers: 64, Hosts: 16, Shards: 16, Servers: 4, GPUs: true, Apply: "mean"})
	t := c.NewTracker()
	c.Play(t, 900)
	return c, t
}

// BenchmarkTake is for one report of 64 trainers and 4 ps with 16 shards; the time to make the reports is in it, and
// small.
func BenchmarkTake(b *testing.B) {
	c, t := large(b)
	reports := make([][]statustest.Heard, 64)
	for i := range reports {
		reports[i] = c.Second()
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		second := reports[n/len(reports[0])%len(reports)]
		h := second[n%len(second)]
		again := *h.Telemetry // a life of its own, so that it is not taken for a repetition
		again.Serial += uint64(n) * 1000
		t.Take(c.Now.Add(time.Duration(n)*time.Millisecond), h.Job, h.From, &again)
		n++
	}
}

// BenchmarkTick is a look at 64 trainers on 16 machines with a GPU each, 4 ps and 16 shards, all well.
func BenchmarkTick(b *testing.B) {
	c, t := large(b)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for _, h := range c.Second() {
			t.Take(c.Now, h.Job, h.From, h.Telemetry)
		}
		b.StartTimer()
		t.Tick(c.Now)
	}
}

// BenchmarkTickWrong is the same with half of the trainers gone, and the others waiting.
func BenchmarkTickWrong(b *testing.B) {
	c, t := large(b)
	for _, tr := range c.Trainers[32:] {
		tr.Stopped = true
	}
	c.Play(t, 10)
	b.ReportAllocs()
	for b.Loop() {
		t.Tick(c.Now)
	}
}

// BenchmarkSeries is the whole series of a run of 15 minutes.
func BenchmarkSeries(b *testing.B) {
	_, t := large(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := t.Series("", 0); !ok {
			b.Fatal("no series")
		}
	}
}
