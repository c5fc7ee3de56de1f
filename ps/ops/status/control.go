package status

import (
	"fmt"
	"strings"

	"gradbus/schema"
)

// deafAfter is for how long nobody else may be heard before that is told, in milliseconds: others speak once a second
// each, at moments of their own.
const deafAfter = 1_900

// control says that a ps cannot reach the control server, or, of the one that answers, that nobody is heard by way of
// it: then nothing is known of others, and that they are silent says nothing of them.
func (j *ranking) control(v *Server, s *server) {
	self := v.ID == j.t.config.Server
	since, deaf := int64(0), false
	if self && s.said().Control != "" {
		since, deaf = j.deaf(s)
	}
	c := j.controller(s)
	if !v.ControlLost && !deaf || c != nil && !c.heard.fresh(j.s.NowMS) { // its silence says it
		return
	}
	where := "the control server"
	if at := s.said().Control; at != "" {
		where += " at " + schema.Clip(at)
	}
	if c != nil {
		where += fmt.Sprintf(", which is ps %s on %s (pid %d)", c.id, c.report.Host, c.report.PID)
	}
	text := fmt.Sprintf("ps %s on %s cannot reach %s", v.ID, v.Host, where)
	if !v.ControlLost {
		text = fmt.Sprintf("ps %s on %s has heard nobody for %s by way of %s", v.ID, v.Host, ago(j.s.NowMS-since), where)
	}
	if j.ifJobs(Critical) == Critical {
		text += fmt.Sprintf("; nobody can join, and jobs that run go on for %s at most",
			ago(int64(finite(s.said().Deadline)*1000)))
	}
	f := j.find(CodeControlLost, "%s", text).about("", "p-"+v.ID).at(j.ifJobs(Critical)).from(since).
		after(byServer + v.ID).
		do("Look at the control server and the network to it.")
	if self {
		f.before(byControl)
	} else {
		f.after(byControl)
	}
}

// deaf reports since when nobody but the ps that answers has been heard, where two or more could be: one alone is
// silent itself. Where there is training, gradients that still come show that the others are alive; without them the
// trainers themselves are missed.
func (j *ranking) deaf(self *server) (since int64, deaf bool) {
	n, training := 0, false
	hear := func(h *heard) {
		if j.s.NowMS-h.at() < goneKept/2 { // who has been silent for long does not count
			n, since = n+1, max(since, h.at()+h.every-1_000)
		}
	}
	for id, s := range j.t.servers {
		if id != j.t.config.Server {
			hear(&s.heard)
		}
	}
	for i := range j.s.Jobs {
		job := &j.s.Jobs[i]
		r := j.jobs[job.Name+"."+job.RunID]
		if r.over() {
			continue
		}
		training = training || job.Phase == schema.PhaseRunning && r.inRun(j.s.NowMS)
		for k := range job.Trainers {
			if tr := r.trainers[k]; tr != nil && job.Trainers[k].State != stateLeft && job.Trainers[k].State != stateFree {
				hear(&tr.heard)
			}
		}
	}
	return since, n >= 2 && j.s.NowMS-since >= deafAfter && (!training || self.hasGot(since))
}

// hasGot reports that a ps has got frames since a time.
func (s *server) hasGot(since int64) bool {
	last := s.ring.last()
	for k := 1; last != nil; k++ {
		from := s.ring.back(k)
		if from == nil || from.at < since {
			return false
		}
		if last.totals[sFrames] > from.totals[sFrames] {
			return true
		}
	}
	return false
}

// isControl reports that a ps is the control server of the one that answers.
func (j *ranking) isControl(s *server) bool {
	self := j.t.servers[j.t.config.Server]
	return self != nil && s != self && j.controller(self) == s
}

// controller is the ps that a ps has as its control server; nil where it has another one.
func (j *ranking) controller(of *server) *server {
	at := of.said().Control
	if at == "" {
		return nil
	}
	for _, s := range j.t.servers {
		if s != of && s.said().Control == "" && strings.TrimPrefix(s.said().URL, "nats://") == at {
			return s
		}
	}
	return nil
}
