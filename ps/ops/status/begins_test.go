package status_test

import (
	"testing"
	"time"

	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

// A round that is open while a ps speaks waits for somebody in every second of a job that is well; that is no wait
// which lasts.
func TestWaitThatBegins(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 2})
	tracker := c.NewTracker()
	c.Play(tracker, 10)
	for _, waited := range []int64{3, 1500} {
		for _, h := range c.Second() {
			if h.Telemetry.Server != nil {
				m := &h.Telemetry.Server.Jobs[0].Members[1]
				m.Waited, m.First, m.WaitedMS = true, true, waited
			}
			tracker.Take(c.Now, h.Job, h.From, h.Telemetry)
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

// A shard that waits at the moment of one report is at work; by two reports about one batch it waits.
func TestShardWaitThatBegins(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 2})
	tracker := c.NewTracker()
	c.Play(tracker, 10)
	for i, want := range []int64{0, 0, 1900} {
		for _, h := range c.Second() {
			if p := h.Telemetry.Server; p != nil {
				p.Shards[0].Waiting = &schema.Waiting{Batch: schema.Batch(1000 + min(i, 1)), Members: []schema.Member{"t1"}}
			}
			tracker.Take(c.Now, h.Job, h.From, h.Telemetry)
		}
		shard := tracker.Tick(c.Now.Add(900 * time.Millisecond)).Status.Jobs[0].Shards[0]
		if shard.WaitsMS != want || (len(shard.WaitsFor) > 0) != (want > 0) {
			t.Errorf("report %d: the shard waits %d ms for %v, want %d", i, shard.WaitsMS, shard.WaitsFor, want)
		}
	}
}

// Curves have points of what happened: who completes no batch has no new loss and no new gradient norm, though it
// repeats the last of each.
func TestStallHasNoPoints(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 2})
	tracker := c.NewTracker()
	u := c.Play(tracker, 30)
	if p := u.Points["packages"]; p.Loss == nil || p.Norm == nil {
		t.Fatalf("a job that runs: loss %v, gradient norm %v", p.Loss, p.Norm)
	}
	c.Trainers[1].Stopped = true
	u = c.Play(tracker, 10)
	if p := u.Points["packages"]; p.Loss != nil || p.Norm != nil || p.Samples == nil {
		t.Errorf("a job that waits: loss %v, gradient norm %v, samples/s %v", p.Loss, p.Norm, p.Samples)
	}
	c.Trainers[1].Stopped = false
	u = c.Play(tracker, 5)
	if p := u.Points["packages"]; p.Loss == nil || p.Norm == nil {
		t.Errorf("a job that runs again: loss %v, gradient norm %v", p.Loss, p.Norm)
	}
}

// The time left goes by the rate of the last seconds: it is not known while a job stands still.
func TestTimeLeft(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 2})
	tracker := c.NewTracker()
	j := c.Play(tracker, 120).Status.Jobs[0]
	want := float64(j.Planned-j.Batch) / 8 * 1000 // the sample does 8 batches a second
	if got := float64(j.LeftMS); got < want*0.9 || got > want*1.15 {
		t.Errorf("%.0f s left, want about %.0f", got/1000, want/1000)
	}
	c.Trainers[1].Stopped = true
	if u := c.Play(tracker, 15); u.Status.Jobs[0].LeftMS != 0 {
		t.Errorf("it waits: %d ms left, want 0, which is not known", u.Status.Jobs[0].LeftMS)
	}
	c.Trainers[1].Stopped = false
	c.Play(tracker, 5)
	c.End(nil)
	if u := c.Play(tracker, 3); u.Status.Jobs[0].LeftMS != 0 {
		t.Errorf("it has ended: %d ms left", u.Status.Jobs[0].LeftMS)
	}
}

// A status has the reports that it is made of, for metrics: of the ps that answers, and of each trainer, with when it
// came.
func TestStatusHasReports(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Servers: 2})
	s := c.Play(c.NewTrackerOf(1), 3).Status
	if s.Own == nil || s.Own.Server == nil || s.Own.Server.ID != s.Server || s.Own.NowMS != s.NowMS {
		t.Errorf("the report of %s is %+v", s.Server, s.Own)
	}
	for _, tr := range s.Jobs[0].Trainers {
		if tr.Report == nil || tr.Report.Trainer == nil || tr.Report.NowMS != s.NowMS || tr.HeardMS != s.NowMS {
			t.Errorf("%s has the report %+v, heard at %d of %d", tr.Member, tr.Report, tr.HeardMS, s.NowMS)
		}
	}
}

// Of a run that no ps has told of nothing is shown.
func TestTrainersAlone(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 2})
	tracker := c.NewTracker()
	for range 10 {
		for _, h := range c.Second() {
			if h.Telemetry.Trainer != nil {
				tracker.Take(c.Now, h.Job, h.From, h.Telemetry)
			}
		}
		if s := tracker.Tick(c.Now).Status; len(s.Jobs)+len(s.Problems) > 0 {
			t.Fatalf("%d jobs, problems %+v", len(s.Jobs), s.Problems)
		}
	}
}
