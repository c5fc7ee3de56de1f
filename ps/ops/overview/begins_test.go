package overview_test

import (
	"testing"
	"time"

	"gradbus/ps/ops/overview/sample"
	"gradbus/schema"
)

// A round that is open while a ps speaks waits for somebody in every second of a job that is well; that is no wait which lasts.
func TestWaitThatBegins(t *testing.T) {
	c := sample.NewCluster(sample.Options{Trainers: 2})
	tracker := c.NewTracker()
	c.Play(tracker, 10)
	for _, waited := range []int64{3, 1500} {
		for _, h := range c.Second() {
			if h.Pulse.Server != nil {
				m := &h.Pulse.Server.Jobs[0].Members[1]
				m.Waited, m.First, m.WaitedMS = true, true, waited
			}
			tracker.Take(c.Now, h.Job, h.From, h.Pulse)
		}
		u := tracker.Tick(c.Now.Add(900 * time.Millisecond))
		want := waited
		if waited > 1000 {
			want += 900 // it goes on, for all that is known
		}
		if held := u.Status.Jobs[0].Trainers[1].HeldMS; held != want {
			t.Errorf("a wait of %d ms, told of 900 ms ago: %d ms, want %d", waited, held, want)
		}
	}
}

// A shard that waits at the moment of one pulse is at work; by two pulses about one batch it waits.
func TestShardWaitThatBegins(t *testing.T) {
	c := sample.NewCluster(sample.Options{Trainers: 2})
	tracker := c.NewTracker()
	c.Play(tracker, 10)
	for i, want := range []int64{0, 0, 1900} {
		for _, h := range c.Second() {
			if p := h.Pulse.Server; p != nil {
				p.Shards[0].Waiting = &schema.Wait{Batch: schema.Batch(1000 + min(i, 1)), Members: []schema.Member{"t1"}}
			}
			tracker.Take(c.Now, h.Job, h.From, h.Pulse)
		}
		shard := tracker.Tick(c.Now.Add(900 * time.Millisecond)).Status.Jobs[0].Shards[0]
		if shard.WaitsMS != want || (len(shard.WaitsFor) > 0) != (want > 0) {
			t.Errorf("pulse %d: the shard waits %d ms for %v, want %d", i, shard.WaitsMS, shard.WaitsFor, want)
		}
	}
}
