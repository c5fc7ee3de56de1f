package overview_test

import (
	"math"
	"testing"
	"time"

	"gradbus/ps/ops/overview"
	"gradbus/ps/ops/overview/sample"
	"gradbus/schema"
)

// A report that is repeated, with whatever serial and of whatever life, does not silence a trainer or a ps that goes on: neither where it is
// heard while that speaks, nor before it, nor while it is cut off for a while.
func TestReplaysHoldNobody(t *testing.T) {
	for name, forge := range map[string]func(*schema.Pulse, int){
		"the highest serial": func(p *schema.Pulse, _ int) { p.Serial = math.MaxUint64 },
		"a life since":       func(p *schema.Pulse, _ int) { p.StartedMS, p.PID, p.Serial = p.StartedMS+1, 1, math.MaxUint64 },
		"several lives": func(p *schema.Pulse, n int) {
			p.StartedMS, p.PID, p.Serial = p.StartedMS+1+int64(n%3), 1, math.MaxUint64
		},
		"seldom": func(p *schema.Pulse, _ int) { p.Serial, p.EveryMS = math.MaxUint64, schema.PulseEveryMax },
	} {
		for _, when := range []string{"before", "meanwhile", "cut off"} {
			t.Run(name+" "+when, func(t *testing.T) {
				c := sample.NewCluster(sample.Options{Trainers: 3, Servers: 2})
				tracker := c.NewTracker()
				first := c.Second()
				var forged []sample.Heard
				for n := range 3 {
					for _, h := range first {
						p := *h.Pulse
						if forge(&p, n); h.From == "t1" || h.From == "p-box-1-4222" {
							forged = append(forged, sample.Heard{Job: h.Job, From: h.From, Pulse: &p})
						}
					}
				}
				again := func() {
					for _, h := range forged {
						tracker.Take(c.Now.Add(500*time.Millisecond), h.Job, h.From, h.Pulse)
					}
				}
				if when == "before" {
					again()
				} else {
					c.Play(tracker, 20)
				}
				if when == "cut off" {
					c.Trainers[1].Away, c.Servers[1].Stopped = true, true
					c.Play(tracker, 8)
					again()
					c.Trainers[1].Away, c.Servers[1].Stopped = false, false
				}
				var u overview.Update
				for second := range 60 {
					again()
					u = c.Play(tracker, 1)
					if second < 30 { // a forged report that is new is believed for some seconds
						continue
					}
					tr, s := &u.Status.Jobs[0].Trainers[1], &u.Status.Servers[1]
					if tr.State != "running" || tr.PID == 1 || tr.AgeMS > 600 || s.PID == 1 || s.AgeMS > 600 {
						t.Fatalf("second %d: trainer %s, %d ms old, of pid %d; ps %d ms old, of pid %d", second, tr.State, tr.AgeMS, tr.PID, s.AgeMS, s.PID)
					}
				}
			})
		}
	}
}
