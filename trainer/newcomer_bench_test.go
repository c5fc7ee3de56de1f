package trainer

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/ps"
	"gradbus/schema"
)

// BenchmarkNewcomer is for how long two trainers, which have all of a job, complete no batch while a third one comes.
// It gets a table of 64 MiB from them, with its momentum. All are in this process, and send over TCP.
//
//	go test -tags native ./trainer -run '^$' -bench Newcomer -benchtime 10x
func BenchmarkNewcomer(b *testing.B) {
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	server, err := ps.Start(b.Context(), ps.Config{}, ps.Options{Backend: backend})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	job := textJob(3, schema.ApplyMean)
	job.Parameters, job.Lanes, job.Reduce, job.Policy = nil, 3, schema.ReduceTrainers, schema.PolicyRecover
	job.Tables[0].Replicated = true
	g := &coming{config: Config{Server: server.URL(), Backend: backend, Log: slog.New(slog.DiscardHandler)},
		job: job.WithDefaults(), changed: make(chan int, 1024)}
	ctx, stop := context.WithCancel(b.Context())
	g.train(ctx)
	g.train(ctx)
	var sum time.Duration
	for range b.N + 1 {
		newcomer, leave := context.WithCancel(ctx)
		g.train(newcomer)
		g.await(3, 3)
		if at := g.pause(); g.began {
			sum += at // of the first all had to come
		}
		g.began = true
		leave()
		g.await(2, 2)
		g.pause()
	}
	stop()
	g.all.Wait()
	b.ReportMetric(float64(sum.Milliseconds())/float64(b.N), "ms-pause")
}

// coming is trainers that come and go.
type coming struct {
	config  Config
	job     *schema.Job
	all     sync.WaitGroup
	changed chan int // how many trainers there are, of who has completed the first batch of a run

	began bool // all have come once

	mu      sync.Mutex
	last    time.Time     // when a batch was completed
	longest time.Duration // between two
}

// train trains until ctx ends.
func (g *coming) train(ctx context.Context) {
	w := &draws{seed: 1, of: textRows, grads: make([]float32, drawn*textDim)}
	config := g.config
	g.all.Go(func() {
		s, err := Join(ctx, config, g.job)
		if err != nil {
			return
		}
		run := schema.RunID(0)
		err = s.Run(ctx, w, 1<<40, func(Progress) {
			if g.complete(); run != s.RunID() {
				g.changed <- s.job.Trainers
			}
			run = s.RunID()
		})
		_ = s.Abort(err)
	})
}

func (g *coming) complete() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if !g.last.IsZero() {
		g.longest = max(g.longest, now.Sub(g.last))
	}
	g.last = now
}

// await waits until so many have begun a run of so many.
func (g *coming) await(n, trainers int) {
	for n > 0 {
		if <-g.changed == trainers {
			n--
		}
	}
}

// pause is the longest since the last call.
func (g *coming) pause() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() { g.longest = 0 }()
	return g.longest
}
