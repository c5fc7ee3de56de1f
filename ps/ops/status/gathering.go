package status

import (
	"fmt"
	"strings"

	"gradbus/schema"
)

// localServer is where a trainer looks for a ps when it is not told.
const localServer = "nats://127.0.0.1:4222"

// command is what starts a trainer.
func (j *ranking) command(workload string, flags ...string) string {
	if workload == "" {
		workload = "packages"
	}
	parts := append([]string{"./bin/trainer", workload}, flags...)
	if url := j.t.config.URL; url != "" && url != localServer {
		parts = append(parts, "--server", url)
	}
	return strings.Join(parts, " ")
}

// noJob is the sentence where there is nothing to show.
func (j *ranking) noJob() Why {
	start := j.command("")
	for i := range j.s.Jobs {
		if job := &j.s.Jobs[i]; job.Phase == schema.PhaseEnded {
			if job.End == schema.EndContinued {
				return Why{Level: Info, Job: job.Name, Text: j.endedText(job)}
			}
			return Why{Level: Info, Job: job.Name, Action: start,
				Text: "No job runs; " + j.endedText(job)}
		}
	}
	return Why{Level: Info, Text: "No job. Start one: " + start, Action: start}
}

// missing names the places of a job that are free, by its coordinator.
func missing(job *Job, r *run) []string {
	var names []string
	for i := range job.Trainers {
		if m := r.member(i); m != nil && m.Host == "" && !m.Left || m == nil && job.Trainers[i].State == stateFree {
			names = append(names, job.Trainers[i].Member)
		}
	}
	return names
}

func (j *ranking) missingText(job *Job) string {
	n, r := len(job.Trainers), j.jobs[job.Name+"."+job.RunID]
	if r.said != nil {
		n = max(n, min(r.said.Trainers, TrainersMax))
	}
	return fmt.Sprintf("%s waits %s for %d of %s to join: %s", job.Name, ago(j.s.NowMS-r.since), job.Missing,
		plural(n, "trainer"), list(missing(job, r)))
}

func (j *ranking) missingAction(job *Job) string {
	flags := []string{"--trainers", fmt.Sprint(len(job.Trainers)), "--lanes", fmt.Sprint(job.Lanes)}
	if job.Workload != "" && job.Name != job.Workload {
		flags = append([]string{"--job", job.Name}, flags...)
	}
	how := "Start it"
	if job.Missing > 1 {
		how = fmt.Sprintf("Start %d times", job.Missing)
	}
	return how + ", with the settings of the others: " + j.command(job.Workload, flags...)
}

// gatheringWhy is the sentence of a job that has not begun.
func (j *ranking) gatheringWhy(job *Job) Why {
	if job.Missing == 0 {
		return Why{Level: Info, Job: job.Name,
			Text: fmt.Sprintf("%s begins: all trainers have joined, shards get ready.", job.Name)}
	}
	return Why{Level: Info, Job: job.Name, Text: j.missingText(job) + ".", Action: j.missingAction(job)}
}
