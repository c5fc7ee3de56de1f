package status

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"gradbus/schema"
)

// rank finds what is wrong in a view, and says it: problems, levels, sentences, events.
func (t *Tracker) rank(s *Status) {
	j := ranking{t: t, s: s, jobs: map[string]*run{}}
	for _, r := range t.runs {
		j.jobs[string(r.key.name)+"."+runID(r.key.id)] = r
	}
	j.bounds()
	j.servers()
	for i := range s.Jobs {
		job := &s.Jobs[i]
		j.job(job, j.jobs[job.Name+"."+job.RunID])
	}
	j.gpus()
	j.disks()
	j.bound()
	j.prefix()
	t.watchServers()
	t.watchRuns()
	t.watchGPUs(s)
	there, began, over := t.incidents.enter(t.now, j.found, func(job string) bool {
		r := t.latest(schema.JobName(job))
		return r == nil || r.over()
	})
	for i := range began {
		t.logProblem(&began[i].Problem, began[i].last, false)
	}
	for i := range over {
		if r := t.latest(schema.JobName(over[i].Job)); r == nil || !r.over() { // else it has ended with its job
			t.logProblem(&over[i].Problem, over[i].last, true)
		}
	}
	all := arrange(there)
	j.level(all)
	for i := range s.Jobs {
		s.Jobs[i].Why = j.whyJob(&s.Jobs[i], all)
	}
	s.Why = j.why(all)
	for i := range all[:min(len(all), ProblemsMax)] {
		s.Problems = append(s.Problems, all[i].Problem)
	}
	t.word(s)
}

// word has what a status says to people name commands as they run.
func (t *Tracker) word(s *Status) {
	if t.config.Words == nil {
		return
	}
	why := func(w *Why) { w.Text, w.Action = t.config.Words(w.Text), t.config.Words(w.Action) }
	why(&s.Why)
	for i := range s.Jobs {
		why(&s.Jobs[i].Why)
	}
	for i := range s.Problems {
		s.Problems[i].Action = t.config.Words(s.Problems[i].Action)
	}
}

// ranking is one look at everything.
type ranking struct {
	t     *Tracker
	s     *Status
	jobs  map[string]*run // by name and run id
	found []*finding
}

// speaking are the trainers of a run that are heard of, as they are shown and as they are known.
func (j *ranking) speaking(job *Job, r *run) iter.Seq2[*Trainer, *trainer] {
	return func(yield func(*Trainer, *trainer) bool) {
		for i := range job.Trainers {
			if tr := r.trainers[i]; tr != nil && tr.heard.fresh(j.s.NowMS) && !yield(&job.Trainers[i], tr) {
				return
			}
		}
	}
}

// findingsOfJob bounds what is told of one job, and of no job.
const findingsOfJob = 200

// bound drops what is beyond that, and beyond findingsMax.
func (j *ranking) bound() {
	of := map[string]int{}
	j.found = slices.DeleteFunc(j.found, func(f *finding) bool {
		of[f.Job]++
		return of[f.Job] > findingsOfJob
	})
	j.found = j.found[:min(len(j.found), findingsMax)]
}

// prefix says which job a sentence is about, where there are several and it does not.
func (j *ranking) prefix() {
	live := map[string]bool{}
	for i := range j.s.Jobs {
		if j.s.Jobs[i].Phase != schema.PhaseEnded {
			live[j.s.Jobs[i].Name] = true
		}
	}
	if len(live) < 2 {
		return
	}
	for _, f := range j.found {
		if f.Job != "" && !strings.Contains(f.Text, f.Job) {
			f.Text = f.Job + ": " + f.Text
		}
	}
}

// level gives members the level of the worst that is wrong with them.
func (j *ranking) level(all []finding) {
	for i := range all {
		f := &all[i]
		for k := range j.s.GPUs {
			if g := &j.s.GPUs[k]; f.GPU != "" && gpuName(g) == f.GPU {
				g.Level = worse(g.Level, f.Level)
			}
		}
		for k := range j.s.Servers {
			if v := &j.s.Servers[k]; f.Member == "p-"+v.ID {
				v.Level = worse(v.Level, f.Level)
			}
		}
		for k := range j.s.Jobs {
			if job := &j.s.Jobs[k]; job.Name == f.Job &&
				(job.Phase != schema.PhaseEnded || f.Code == CodeJobFailed && isFailure(job)) {
				levelMembers(job, f)
			}
		}
	}
}

func levelMembers(job *Job, f *finding) {
	for _, member := range append([]string{f.Member}, f.also...) {
		if i, ok := trainerIndex(schema.Member(member)); ok && i < len(job.Trainers) {
			job.Trainers[i].Level = worse(job.Trainers[i].Level, f.Level)
		}
	}
	for k := range job.Shards {
		if job.Shards[k].Member == f.Member {
			job.Shards[k].Level = worse(job.Shards[k].Level, f.Level)
		}
	}
}

// why is the sentence of everything.
func (j *ranking) why(all []finding) Why {
	if len(all) > 0 && weight(all[0].heavy) >= weight(Warning) {
		return j.because(all, 0)
	}
	live := j.s.Jobs[:0:0]
	for _, job := range j.s.Jobs {
		if job.Phase != schema.PhaseEnded {
			live = append(live, job)
		}
	}
	switch {
	case len(live) == 0 && len(all) > 0:
		return j.because(all, 0)
	case len(live) == 0:
		return j.noJob()
	case len(live) == 1:
		return live[0].Why
	}
	at := slices.IndexFunc(live, func(job Job) bool { return job.Phase == schema.PhaseGathering })
	if at >= 0 {
		return live[at].Why
	}
	names := make([]string, len(live))
	for i := range live {
		names[i] = live[i].Name
	}
	return Why{Level: OK, Text: fmt.Sprintf("%d jobs run: %s; nobody waits.", len(live), list(names))}
}

// because is the sentence of a finding, with what follows from it.
func (j *ranking) because(all []finding, i int) Why {
	f := &all[i]
	text, action := j.outage(f)
	if text == "" {
		text = f.Text
	}
	if action == "" {
		action = f.Action
	}
	for k := i + 1; k < len(all) && all[k].Symptom; k++ {
		if all[k].brief != "" && !alike(all[k].Code) && !strings.Contains(text, all[k].brief) {
			text += "; " + all[k].brief
			break
		}
	}
	return Why{Level: f.heavy, Text: sentence(text), Action: action, Code: f.Code, Job: f.Job}
}

// whyJob is the sentence of one job.
func (j *ranking) whyJob(job *Job, all []finding) Why {
	for i := range all {
		if f := &all[i]; !f.Symptom && weight(f.heavy) >= weight(Warning) && j.concerns(all, i, job) {
			return j.because(all, i)
		}
	}
	switch job.Phase {
	case schema.PhaseGathering:
		return j.gatheringWhy(job)
	case schema.PhaseEnded:
		return Why{Level: Info, Job: job.Name, Text: j.endedText(job)}
	}
	if r := j.jobs[job.Name+"."+job.RunID]; len(r.trainers) > 0 && !r.inRun(j.s.NowMS) {
		return Why{Level: OK, Job: job.Name,
			Text: fmt.Sprintf("%s has done %d batches; its trainers are outside of training at the moment.",
				job.Name, job.Batch)}
	}
	text := fmt.Sprintf("%s runs: batch %d", job.Name, job.Batch)
	if job.SamplesPerSecond > 0 {
		text += fmt.Sprintf(", %s samples/s", count(float64(job.SamplesPerSecond)))
	}
	if job.Loss != nil {
		text += ", loss " + figure(float64(*job.Loss))
	}
	return Why{Level: OK, Job: job.Name, Text: text + "; nobody waits."}
}

// concerns reports whether a problem, or what follows from it, is about a job.
func (j *ranking) concerns(all []finding, i int, job *Job) bool {
	if all[i].Job == job.Name {
		return job.Phase != schema.PhaseEnded || all[i].Code == CodeJobFailed && isFailure(job)
	}
	for k := i + 1; k < len(all) && all[k].Symptom; k++ {
		if all[k].Job == job.Name && job.Phase != schema.PhaseEnded {
			return true
		}
	}
	return job.Phase != schema.PhaseEnded && slices.Contains(all[i].causes, byJob+job.Name)
}

// endedText says when and how a run has ended, and why.
func (j *ranking) endedText(job *Job) string {
	age := ago(j.s.NowMS - job.EndedMS)
	switch {
	case job.End == schema.EndFailed:
		return sentence(failedText(job, j.s.NowMS))
	case job.End == schema.EndStopped && job.EndReason != "":
		return sentence(fmt.Sprintf("%s was stopped by request %s ago at batch %d: %s", job.Name, age, job.Batch,
			schema.Clip(job.EndReason)))
	case job.End == schema.EndContinued:
		return fmt.Sprintf("%s was handed over to another run %s ago at batch %d.", job.Name, age, job.Batch)
	}
	return fmt.Sprintf("%s ended %s ago after batch %d.", job.Name, age, job.Batch)
}

// failedText says when a run has failed, and why.
func failedText(job *Job, now int64) string {
	return fmt.Sprintf("%s failed %s ago at batch %d: %s", job.Name, ago(now-job.EndedMS), job.Batch,
		schema.Clip(job.EndReason))
}

// isFailure reports that a run that is over is the one of which a problem says that the job failed: the latest of its
// name.
func isFailure(job *Job) bool { return job.End == schema.EndFailed && job.Series == job.Name }

// sentence ends a text with a full stop.
func sentence(text string) string {
	if strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}
