package status

import (
	"fmt"

	"gradbus/schema"
)

// outage is the sentence about several trainers of a job that are not heard of, in place of that about one of them;
// empty where it is only one.
func (j *ranking) outage(f *finding) (text, action string) {
	if f.Code != CodeSilent && f.Code != CodeTrainerGone {
		return "", ""
	}
	for i := range j.s.Jobs {
		if job := &j.s.Jobs[i]; job.Name == f.Job && job.Phase != schema.PhaseEnded {
			return j.severalSilent(job, j.jobs[job.Name+"."+job.RunID])
		}
	}
	return "", ""
}

func (j *ranking) severalSilent(job *Job, r *run) (text, action string) {
	var names []string
	var held, age, trainers, beside int64
	batch := schema.Batch(0)
	hosts := map[string]bool{}
	for i := range job.Trainers {
		out := &job.Trainers[i]
		if out.State != stateFree && out.State != stateLeft {
			trainers++
		}
		if out.State != stateSilent {
			continue
		}
		names, hosts[out.Host] = append(names, out.Member), true
		if age == 0 || out.AgeMS < age {
			age = out.AgeMS
		}
		if out.HeldMS > held {
			held, batch = out.HeldMS, r.member(i).WaitedBatch
		}
	}
	if len(names) < 2 {
		return "", ""
	}
	for i := range job.Trainers { // who is well on the same machines
		if out := &job.Trainers[i]; hosts[out.Host] && out.State != stateSilent && out.State != stateFree &&
			out.State != stateLeft {
			beside++
		}
	}
	who := fmt.Sprintf("%d of %d trainers (%s)", len(names), trainers, list(names))
	switch {
	case int64(len(names)) == trainers:
		who = all(len(names)) + " trainers"
		action = fmt.Sprintf("Look at the network between them and ps %s, and at the control server.", job.Coordinator)
	case len(hosts) == 1 && beside == 0:
		for host := range hosts {
			who = fmt.Sprintf("%s trainers on %s", all(len(names)), host)
			action = fmt.Sprintf("Look whether %s is up and reachable.", host)
		}
	}
	if held > 0 {
		return fmt.Sprintf("batch %d waits %s for %s, last seen %s ago", batch, ago(held), who, ago(age)), action
	}
	return fmt.Sprintf("%s of %s were last seen %s ago", who, job.Name, ago(age)), action
}

// all is the word for n of n: "both", "all 3".
func all(n int) string {
	if n == 2 {
		return "both"
	}
	return fmt.Sprintf("all %d", n)
}
