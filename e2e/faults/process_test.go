package faults

import (
	"syscall"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/ps"
)

// A trainer's process is stopped for 5 s in mid-job: the others wait, the job goes on, and nothing is lost.
func TestTrainerPaused(t *testing.T) {
	t.Parallel()
	p := small("paused")
	r := &rig{t: t, plan: p, job: p.job()}
	r.serve()
	batches := volume(60, 300)
	other := send(t, errand{Job: r.job, URL: r.proxy.URL(), Member: "t1", Batches: batches})
	r.plan.trainers = 1 // in this process
	r.join(openBackend(t))
	r.proxy.SetRules(everyFault(0.01)...)
	paused := make(chan time.Duration, 1)
	r.train(batches, func(done uint64) {
		if done != batches/3 {
			return
		}
		other.signal(syscall.SIGSTOP)
		began := time.Now()
		go func() {
			time.Sleep(5 * time.Second)
			other.signal(syscall.SIGCONT)
			paused <- time.Since(began)
		}()
	})
	r.proxy.SetRules()
	stats := other.tale().Stats
	t.Logf("paused for %v; it sent %d frames, %d of them again, and asked %d times for results", <-paused,
		stats.GradientFrames, stats.Resent, stats.Pulls)
	rounds, _ := r.rounds()
	if stats.Results != rounds*batches || stats.Batches != batches {
		t.Errorf("the paused trainer took %d results of %d batches", stats.Results, stats.Batches)
	}
	r.notLost()
	if err := other.end(); err != nil {
		t.Errorf("the paused trainer: %v", err)
	}
}

// The memory of a server process stays within the formula, with dense rounds of 38 MB, and with sparse ones under
// faults.
func TestServerStaysWithinItsFormula(t *testing.T) {
	if raced {
		t.Skip("the race detector takes memory of its own; make test-all runs this without it")
	}
	dense := plan{name: "dense", trainers: 2, chunk: largeChunk, elements: []int{9_445_376}}
	for _, c := range []struct {
		plan    plan
		most    int64 // bytes at the peak, and by the formula but for what strangers may hold; 0 is any
		batches uint64
	}{
		{dense.with(mean), 400e6, volume(4, 40)},
		{small("mixed"), 0, volume(40, 400)},
	} {
		t.Run(c.plan.name, func(t *testing.T) {
			server := send(t, errand{Shards: 1})
			r := &rig{t: t, plan: c.plan, job: c.plan.job()}
			r.proxied(server.tale().URL)
			r.join(openBackend(t))
			r.proxy.SetRules(everyFault(0.01)...)
			r.train(c.batches, nil)
			r.proxy.SetRules()
			r.notLost()
			bound, peak := ps.ProcessBytes(serverConfig(1), r.job), server.peakBytes()
			t.Logf("peak %d MB, by the formula %d MB", peak/1e6, bound/1e6)
			if peak > bound {
				t.Errorf("peak of %d bytes, and the formula says %d", peak, bound)
			}
			if least := bound - fabric.AnonymousBytes(fabric.ConnectionsMaxDefault); c.most > 0 && max(peak, least) > c.most {
				t.Errorf("peak of %d bytes, and without strangers the formula says %d: want at most %d", peak, least, c.most)
			}
			for i, s := range r.sessions {
				if err := s.Close(); err != nil {
					t.Errorf("trainer %d: %v", i, err)
				}
			}
		})
	}
}
