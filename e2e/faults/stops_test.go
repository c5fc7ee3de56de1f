package faults

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/fabric/chaos"
	"gradbus/ps"
	"gradbus/trainer"
)

// runBeside runs do beside the test, and returns a function that waits for its end.
func (r *rig) runBeside(do func()) (wait func()) {
	var running sync.WaitGroup
	running.Go(do)
	r.t.Cleanup(running.Wait)
	return running.Wait
}

// gradients is how many gradient frames have come as far as the proxy.
func (r *rig) gradients() uint64 {
	return r.proxy.Counts(chaos.ToServer, "dense").Messages + r.proxy.Counts(chaos.ToServer, "sparse").Messages
}

// until waits until n more gradient frames have come by, or the job is through.
func (r *rig) until(n uint64, through *bool, mu *sync.Mutex) {
	for from := r.gradients(); r.gradients() < from+n; time.Sleep(200 * time.Microsecond) { // the pause between two looks
		mu.Lock()
		ended := *through
		mu.Unlock()
		if ended {
			return
		}
	}
}

// The way to the server is cut in mid-round, with all that is on it, and stays closed for a while; five times and more.
func TestWayCutInMidRound(t *testing.T) {
	for _, p := range []plan{small("cut-small"), large("cut-large").with(mean)} {
		t.Run(p.name, func(t *testing.T) {
			r := newRig(t, p)
			r.proxy.SetRules(everyFault(0.01)...)
			const cuts = 5
			during(t, r, cuts, volume(12, 60), func() {
				r.proxy.Refuse(true)
				r.proxy.Cut()
				time.Sleep(100 * time.Millisecond) // how long the server is away
				r.proxy.Refuse(false)
			})
			reconnects := uint64(0)
			for _, s := range r.sessions {
				reconnects += s.Stats().Traffic.Reconnects
			}
			if totals := r.proxy.Totals(); totals.Cut < cuts || reconnects == 0 {
				t.Errorf("%d cuts, %d connections cut, %d reconnects", cuts, totals.Cut, reconnects)
			}
		})
	}
}

// notLost checks what holds also where connections were cut, so that what was lost with them is not known: every round
// of every trainer was taken, none twice, and nothing was damaged unnoticed.
func (r *rig) notLost() {
	r.t.Helper()
	rounds, frames := r.rounds()
	for i, s := range r.sessions {
		st := s.Stats()
		r.t.Logf("trainer %d: %d frames, %d sent again, %d results, %d once more, %d pulls, %d reconnects, %d dropped", i,
			st.GradientFrames,
			st.Resent, st.Results, st.ResultsRepeated, st.Pulls, st.Traffic.Reconnects, st.Traffic.Dropped)
		if st.Results != rounds*st.Batches || st.GradientFrames < frames*st.Batches {
			r.t.Errorf("trainer %d: %d results and %d frames of %d batches", i, st.Results, st.GradientFrames, st.Batches)
		}
	}
}

// A trainer that reads too slowly is cut off by the server, which says so and counts it; the trainer comes back, asks
// for what it missed, and every sum is exact. The other trainer and the server hold no more than the limit.
func TestReaderTooSlow(t *testing.T) {
	p := large("slow-reader")
	p.elements = []int{160 * largeChunk / 4} // 40 MiB, more than sockets and the limit hold
	p.server.PayloadBytesMax, p.server.PendingBytesMax = 1<<20, 16<<20
	r := newRig(t, p)
	batches := volume(3, 8)
	wait := r.runBeside(func() {
		name := fmt.Sprintf("%s/t1", r.job.Name)
		r.proxy.Stall(chaos.FromServer, name, "mean")
		defer r.proxy.Resume()
		for end := time.Now().Add(guard); r.server.Stats().SlowReaders == 0 &&
			time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
	})
	r.train(batches, nil)
	wait()
	r.notLost()
	stats := r.server.Stats()
	t.Logf("readers cut off: %d; frames that found no room: %d", stats.SlowReaders, stats.Dropped)
	if stats.SlowReaders == 0 || r.sessions[1].Stats().Traffic.Reconnects == 0 {
		t.Error("the slow reader was not cut off")
	}
	if n := r.sessions[0].Stats().Traffic.Reconnects; n != 0 {
		t.Errorf("the other trainer was cut off too: %d reconnects", n)
	}
}

// A chunk that no message can hold is refused when the job is registered, with what to set.
func TestMaxPayloadBelowAChunk(t *testing.T) {
	p := large("payload")
	p.chunk, p.server.PayloadBytesMax = 2<<20, 1<<20
	backend := openBackend(t)
	server, err := ps.Start(guarded(t), p.server, ps.Options{Backend: backend, Log: warnings(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	began := time.Now()
	_, err = trainer.Join(guarded(t), trainer.Config{Server: server.URL(), Backend: backend}, p.job())
	for _, word := range []string{"chunk_bytes 2097152", "1048576", "smaller chunks"} {
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v: want one line with %q", err, word)
		}
	}
	t.Logf("after %v: %v", time.Since(began).Round(time.Millisecond), err)
}

// The coordinator's words and the trainers' signs of life are lost for 10 s while data flows: nothing stops.
func TestControlLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, small("control"))
	silence := 3 * time.Second
	if *fullFlag {
		silence = 10 * time.Second
	}
	rules := oneFault(func(rule *chaos.Rule) { rule.Kinds, rule.Drop = []string{"ctl", "beat"}, 1 })
	r.proxy.SetRules(rules...)
	lost := func() uint64 {
		return r.proxy.Counts(chaos.ToServer, "beat").Dropped + r.proxy.Counts(chaos.FromServer, "beat").Dropped
	}
	began := time.Now()
	for time.Since(began) < silence || lost() < 4 && time.Since(began) < guard/2 {
		r.train(10, func(uint64) { time.Sleep(10 * time.Millisecond) }) // an unhurried job
	}
	r.proxy.SetRules()
	seen := time.Now()
	eventually(t, "the server sees signs of life again", func() bool {
		for _, job := range r.server.Stats().Jobs {
			for _, m := range job.Members {
				if m.Seen.Before(seen) {
					return false
				}
			}
		}
		return true
	})
	r.train(5, nil)
	r.balance()
	t.Logf("%d heartbeats lost in %v", lost(), time.Since(began))
	if lost() < 4 {
		t.Errorf("only %d heartbeats were lost", lost())
	}
}
