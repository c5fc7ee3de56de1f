package status

import (
	"cmp"
	"fmt"
	"slices"
)

// finding is something that is wrong at one moment, before it is decided whether it is told of.
type finding struct {
	Problem
	rank int
	code Code

	also    []string // trainers that it names besides Member: their rows have its level
	brief   string   // the same in a clause, for the sentence of what it follows from
	causes  []string // what else it would explain: tokens, see byControl
	follows []string // what would explain it
	of      int      // index of the cause among the findings; -1 where it is none's consequence
	heavy   Level    // the worst level of it and of what follows from it
}

// find adds a finding, with the level and action of its code; what follows says more of it.
func (j *ranking) find(code, format string, args ...any) *finding {
	i, c := rank(code)
	f := &finding{rank: i, code: c, of: -1,
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

// after says what would explain it, and before what it would explain.
func (f *finding) after(tokens ...string) *finding {
	f.follows = append(f.follows, tokens...)
	return f
}

func (f *finding) before(tokens ...string) *finding {
	f.causes = append(f.causes, tokens...)
	return f
}

// do is what to do, where more is known of the case than of the code; empty says nothing.
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

// enter takes what was found now, and returns the problems there are: those that have lasted, and those that were over
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
			e.Job != "" && e.Code != CodeJobFailed && ended(e.Job)) {
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

// arrange puts problems in the order in which they are to be looked at: worst first, each cause before what follows
// from it.
func arrange(all []finding) []finding {
	slices.SortFunc(all, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(weight(b.Level), weight(a.Level)),
			cmp.Compare(a.SinceMS, b.SinceMS),
			cmp.Compare(a.Job, b.Job), compareMembers(a.Member, b.Member), cmp.Compare(a.GPU, b.GPU))
	})
	for i := range all {
		all[i].heavy = all[i].Level
		all[i].of = causeOf(all, i)
	}
	for i := range all {
		if c := all[i].of; c >= 0 {
			all[c].heavy = worse(all[c].heavy, all[i].Level)
		}
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	root := func(i int) int {
		if c := all[i].of; c >= 0 {
			return c
		}
		return i
	}
	slices.SortStableFunc(order, func(x, y int) int {
		a, b := root(x), root(y)
		return cmp.Or(cmp.Compare(weight(all[b].heavy), weight(all[a].heavy)), cmp.Compare(a, b), cmp.Compare(x, y))
	})
	out := make([]finding, 0, len(all))
	for _, i := range order {
		f := all[i]
		f.Symptom = f.of >= 0
		out = append(out, f)
	}
	return out
}

// causeOf is the first finding before the i-th that explains it, or what explains that; -1 where there is none.
func causeOf(all []finding, i int) int {
	for c := range i {
		if alike(all[c].Code) && alike(all[i].Code) ||
			!slices.ContainsFunc(all[i].follows, func(token string) bool { return slices.Contains(all[c].causes, token) }) {
			continue
		}
		if all[c].of >= 0 {
			return all[c].of
		}
		return c
	}
	return -1
}

// alike are the codes of trainers that are not heard of: one is never the cause of another.
func alike(code string) bool { return code == CodeSilent || code == CodeTrainerGone }

// compareMembers orders t2 before t10.
func compareMembers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// Tokens say what depends on what: a finding that causes a token explains those that follow from it. They are made only
// where something is wrong.
//
//	control              the way to the control server, of the ps that answers
//	host:NAME            a machine
//	server:ID            a ps
//	job:NAME             a job's rounds, for which all its trainers wait
//	member:JOB/t3        a trainer or a shard of a job
//	gpu:NAME             a GPU
//	disk:ID              the disk of the checkpoints that a ps writes
//	standby:ID           that nobody stands by for a ps
const (
	byControl = "control"
	byHost    = "host:"
	byServer  = "server:"
	byJob     = "job:"
	byMember  = "member:"
	byGPU     = "gpu:"
	byDisk    = "disk:"
	byStandby = "standby:"
)

func memberToken(job, member string) string { return byMember + job + "/" + member }
