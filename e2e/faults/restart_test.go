package faults

import (
	"sync"
	"testing"
	"time"
)

// during runs fault n times in mid-round while a job trains, and checks that nothing was lost or counted twice.
func during(t *testing.T, r *rig, n int, batches uint64, fault func()) {
	_, frames := r.rounds()
	each := frames*batches*uint64(r.plan.trainers)/uint64(n+1) - 7 // not a whole number of rounds
	var mu sync.Mutex
	through, done := false, 0
	wait := r.runBeside(func() {
		for range n {
			r.until(each, &through, &mu)
			fault()
			done++
		}
	})
	r.train(batches, nil)
	mu.Lock()
	through = true
	mu.Unlock()
	wait()
	r.report()
	r.notLost()
	if done != n {
		t.Errorf("%d faults of %d", done, n)
	}
}

// The embedded server, which carries data and control and keeps the registry in memory, is stopped and started in
// mid-round, five times: jobs go on, and every sum is exact.
func TestDataServerRestarts(t *testing.T) {
	for _, p := range []plan{small("restart-small"), large("restart-large").with(mean)} {
		t.Run(p.name, func(t *testing.T) {
			r := newRig(t, p)
			r.proxy.SetRules(everyFault(0.01)...)
			during(t, r, 5, volume(12, 60), func() {
				if err := r.server.RestartNATS(func() { time.Sleep(50 * time.Millisecond) }); err != nil { // how long it is away
					t.Error(err)
				}
			})
			for i, s := range r.sessions {
				if s.Stats().Traffic.Reconnects == 0 {
					t.Errorf("trainer %d has not noticed", i)
				}
			}
		})
	}
}
