package status

import (
	"cmp"
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
	all := there
	slices.SortFunc(all, compareFindings)
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

// findingsOfJob bounds the findings of one job, and those of no job.
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
				(job.Phase != schema.PhaseEnded || f.Code == codeJobFailed && isFailure(job)) {
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
	if len(all) > 0 && weight(all[0].Level) >= weight(Warning) {
		return j.because(&all[0])
	}
	live := j.s.Jobs[:0:0]
	for _, job := range j.s.Jobs {
		if job.Phase != schema.PhaseEnded {
			live = append(live, job)
		}
	}
	switch {
	case len(live) == 0 && len(all) > 0:
		return j.because(&all[0])
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
	return Why{Level: OK, Text: fmt.Sprintf("%d jobs run: %s.", len(live), list(names))}
}

// because makes the sentence of a finding.
func (j *ranking) because(f *finding) Why {
	return Why{Level: f.Level, Text: sentence(f.Text), Action: f.Action, Code: f.Code, Job: f.Job}
}

// whyJob is the sentence of one job.
func (j *ranking) whyJob(job *Job, all []finding) Why {
	for i := range all {
		if f := &all[i]; weight(f.Level) >= weight(Warning) && f.concerns(job) {
			return j.because(f)
		}
	}
	switch job.Phase {
	case schema.PhaseGathering:
		return j.gatheringWhy(job)
	case schema.PhaseEnded:
		return Why{Level: Info, Job: job.Name, Text: j.endedText(job)}
	}
	text := fmt.Sprintf("%s runs: batch %d", job.Name, job.Batch)
	if job.SamplesPerSecond > 0 {
		text += fmt.Sprintf(", %s samples/s", Count(float64(job.SamplesPerSecond)))
	}
	if job.Loss != nil {
		text += ", loss " + Figure(float64(*job.Loss))
	}
	return Why{Level: OK, Job: job.Name, Text: text + "."}
}

// concerns reports whether a problem is about a job.
func (f *finding) concerns(job *Job) bool {
	if job.Phase == schema.PhaseEnded {
		return f.Job == job.Name && f.Code == codeJobFailed && isFailure(job)
	}
	return f.Job == job.Name || slices.Contains(f.jobs, job.Name)
}

// endedText says when and how a run has ended, and why.
func (j *ranking) endedText(job *Job) string {
	age := Ago(j.s.NowMS - job.EndedMS)
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
	return fmt.Sprintf("%s failed %s ago at batch %d: %s", job.Name, Ago(now-job.EndedMS), job.Batch,
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

// finding is something that is wrong at one moment. It becomes a problem if it lasts.
type finding struct {
	Problem
	rank int
	code Code

	also []string // trainers that it names besides Member: their rows have its level
	jobs []string // jobs that cannot go on because of it, besides Job
}

// find adds a finding, with the level and action of its code.
func (j *ranking) find(code, format string, args ...any) *finding {
	i, c := rank(code)
	f := &finding{rank: i, code: c,
		Problem: Problem{Code: code, Level: c.Level, Text: fmt.Sprintf(format, args...), Action: c.Action,
			Runbook: c.Runbook}}
	j.found = append(j.found, f)
	return f
}

// about says of whom it is.
func (f *finding) about(job, member string) *finding {
	f.Job, f.Member = job, member
	return f
}

// do sets the action, if more is known of the case than of its code; empty changes nothing.
func (f *finding) do(action string) *finding {
	f.Action = cmp.Or(action, f.Action)
	return f
}

// at is its level, and from when it began.
func (f *finding) at(level Level) *finding {
	f.Level = cmp.Or(level, f.Level)
	return f
}

func (f *finding) from(ms int64) *finding {
	f.SinceMS = ms
	return f
}

// problemKey says when two findings are the same problem.
type problemKey struct{ code, job, member, gpu string }

func (f *finding) key() problemKey { return problemKey{f.Code, f.Job, f.Member, f.GPU} }

// incident is a problem that there is, is about to be, or was only just now.
type incident struct {
	finding
	since int64
	last  int64 // when it was found last
	shown bool
	told  bool // an event has said that it began, and none that it is over
}

// incidents remembers problems, so that they have a beginning and an end, and what comes and goes does not fill the
// events: an end is written only when it has lasted. At most findingsMax.
type incidents struct{ entries map[problemKey]*incident }

const (
	findingsMax = 8192
	settleAfter = 10_000 // what begins again within that time was not over
)

func newIncidents() incidents { return incidents{map[problemKey]*incident{}} }

// enter takes the findings of this moment, and returns the problems: those that have lasted, and those that were over
// only just now. began and over are for the events; ended says that a job is over, and what was wrong with it with it.
func (b *incidents) enter(now int64, found []*finding, ended func(job string) bool) (there []finding,
	began, over []incident) {
	for i := range found {
		b.note(now, found[i])
	}
	worst := worstOf(found)
	for key, e := range b.entries {
		// A problem that is over may have become another of the same trainer or shard, or have ended with its job.
		if e.last != now && e.shown && (e.Member != "" && worst[memberOf{e.Job, e.Member}] >= weight(e.Level) ||
			e.Job != "" && e.Code != codeJobFailed && ended(e.Job)) {
			e.shown = false
		}
		switch {
		case e.last == now && !e.shown && now-e.since >= e.code.hold:
			e.shown = true
			if !e.told {
				e.told, e.SinceMS = true, e.since
				began = append(began, *e)
			}
		case e.last != now && now-e.last >= e.code.linger:
			e.shown = false
			switch {
			case e.told && now-e.last >= settleAfter:
				over = append(over, *e)
				delete(b.entries, key)
			case !e.told:
				delete(b.entries, key)
			}
		}
		if e.shown {
			e.SinceMS = e.since
			there = append(there, e.finding)
		}
	}
	slices.SortFunc(began, compareIncidents)
	slices.SortFunc(over, compareIncidents)
	return there, began, over
}

type memberOf struct{ job, member string }

// worstOf is the weight of the worst that was found of each trainer and shard: looked for once, as an outage of all
// jobs ends and finds thousands of problems at one moment. It is 0, less than any problem weighs, of members of whom
// nothing was found.
func worstOf(found []*finding) map[memberOf]int {
	worst := map[memberOf]int{}
	for _, f := range found {
		if f.Member != "" {
			of := memberOf{f.Job, f.Member}
			worst[of] = max(worst[of], weight(f.Level))
		}
	}
	return worst
}

// note enters one finding.
func (b *incidents) note(now int64, f *finding) {
	e := b.entries[f.key()]
	if e == nil {
		if len(b.entries) >= findingsMax {
			return
		}
		e = &incident{since: now}
		b.entries[f.key()] = e
	} else if !e.shown && e.last != now && now-e.last > lookEvery {
		e.since = now // it was over
	}
	if f.SinceMS > 0 && (!e.shown || f.SinceMS < e.since) {
		e.since = min(f.SinceMS, now)
	}
	e.finding, e.last = *f, now
}

// lookEvery is the longest time between two looks, nearly.
const lookEvery = 2_500

func compareIncidents(a, b incident) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Job, b.Job), compareMembers(a.Member, b.Member),
		cmp.Compare(a.GPU, b.GPU))
}

// compareFindings puts the worst first, and of one level what stands first in the table of codes.
func compareFindings(a, b finding) int {
	return cmp.Or(cmp.Compare(weight(b.Level), weight(a.Level)), cmp.Compare(a.rank, b.rank),
		cmp.Compare(a.SinceMS, b.SinceMS),
		cmp.Compare(a.Job, b.Job), compareMembers(a.Member, b.Member), cmp.Compare(a.GPU, b.GPU))
}

// compareMembers orders t2 before t10.
func compareMembers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
