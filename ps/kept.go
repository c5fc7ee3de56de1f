package ps

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/checkpoint"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// A ps that registers a job anew, of which a run was lost, asks all ps what they keep of its shards. Where that is one
// version of all of them, the job begins with it, each shard where it is kept.

// askKeptWithin is how long a ps is waited for that does not say what it keeps: it may be the one that is lost.
const askKeptWithin = 300 * time.Millisecond

// spreadWithin is how long others are waited for where those who have answered keep all: the more, the fewer shards has
// each.
const spreadWithin = 20 * time.Millisecond

// keptQuestion is what was asked of a job, and who has answered.
type keptQuestion struct {
	acquire acquireRequest
	since   time.Time
	asked   []string // ids of those who are to answer
	answers map[string]schema.Kept
}

// keptVersion is a version that is kept of all shards of a run.
type keptVersion struct {
	run     schema.RunID
	runs    []schema.RunID // and earlier ones that trainers come back from
	version schema.Version
	lr      []schema.LRChange
	servers []keptServer // ascending by their ids
	there   []keptServer // all who have answered: others may be lost
}

// keptServer is a ps that has some of them.
type keptServer struct {
	id          string
	incarnation uint64
	shards      []int
}

// id stands for the id of a checkpoint where a job goes on with what ps keep of it.
func (v *keptVersion) id() string {
	return fmt.Sprintf("%s%x-%d", keptPrefix, uint64(v.run), v.version)
}

const keptPrefix = "kept-"

// parseKept reads what id gives; ok is false of any other.
func parseKept(id string) (run schema.RunID, v schema.Version, ok bool) {
	text, ok := strings.CutPrefix(id, keptPrefix)
	a, b, both := strings.Cut(text, "-")
	n, errRun := strconv.ParseUint(a, 16, 64)
	at, errVersion := strconv.ParseUint(b, 10, 64)
	return schema.RunID(n), schema.Version(at), ok && both && errRun == nil && errVersion == nil
}

// acquireJob has a job acquired. Where its trainers come back from a run that was lost, all ps are asked first what
// they keep of it.
func (l *controlLoop) acquireJob(j *job, q acquireRequest) {
	k, name := l.server.keeper, q.job.Name
	if l.server.config.Replicas == 0 || q.back == 0 || !q.resume {
		l.acquireNow(j, q)
		return
	}
	question := &keptQuestion{acquire: q, since: l.server.now(), answers: map[string]schema.Kept{}}
	j.question = question
	self := l.server.ID()
	question.answers[self] = k.kept(q.back)
	for _, id := range l.server.Announced() {
		if id == self {
			continue
		}
		question.asked = append(question.asked, id)
		l.send(name, 0, schema.ServerMember(id), schema.Control{AskKept: &schema.AskKept{Run: q.back}})
	}
	time.AfterFunc(spreadWithin, l.tellSoon)
	time.AfterFunc(askKeptWithin, l.tellSoon)
	l.settleKept(j)
}

func (l *controlLoop) acquireNow(j *job, q acquireRequest) {
	select {
	case l.server.registry.acquires <- q:
	default: // many others come first
		l.giveUp(j, nil)
	}
}

// settleKept has a job acquired once it is known what is kept of it.
func (l *controlLoop) settleKept(j *job) {
	q := j.question
	if q == nil {
		return
	}
	waits := func(id string) bool { _, ok := q.answers[id]; return !ok }
	kept, within := chooseKept(q.acquire.back, q.answers), askKeptWithin
	if kept != nil {
		within = spreadWithin
	}
	if slices.ContainsFunc(q.asked, waits) && l.server.now().Sub(q.since) < within {
		return
	}
	j.question = nil
	if q.acquire.kept = kept; kept != nil {
		for id, a := range q.answers {
			kept.there = append(kept.there, keptServer{id: id, incarnation: a.Incarnation})
		}
	}
	l.acquireNow(j, q.acquire)
}

// chooseKept finds the newest version that is kept of all shards of a run, or of one that went on from it; nil: there
// is none. Others may have yet to hear that it is whole. Who has heard knows all learning rates up to it.
func chooseKept(run schema.RunID, answers map[string]schema.Kept) *keptVersion {
	var best *keptVersion
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		a := answers[id]
		newer := best == nil || best.run == run && a.Run != run ||
			a.Run == best.run && (a.Version > best.version || a.Version == best.version && len(a.LR) > len(best.lr))
		if a.Version == 0 || !newer {
			continue
		}
		if servers := holdersOf(a.Run, a.Version, a.Shards, answers); servers != nil {
			best = &keptVersion{run: a.Run, runs: a.Runs, version: a.Version, lr: a.LR, servers: servers}
		}
	}
	return best
}

// holdersOf says which shards of a run each ps is to have that keeps them at a version; nil: they do not keep all. One
// that two keep goes to the one that has fewer.
func holdersOf(run schema.RunID, v schema.Version, shards int, answers map[string]schema.Kept) []keptServer {
	var all []keptServer
	holders := make([][]int, shards) // by shard, of all
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		a := answers[id]
		if a.Run != run || a.Version != v && a.Next != v || a.Shards != shards {
			continue
		}
		for _, i := range a.Own {
			holders[i] = append(holders[i], len(all))
		}
		all = append(all, keptServer{id: id, incarnation: a.Incarnation})
	}
	order := make([]int, shards)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(holders[a]), len(holders[b])) })
	for _, i := range order {
		if len(holders[i]) == 0 {
			return nil
		}
		at := slices.MinFunc(holders[i], func(a, b int) int { return cmp.Compare(len(all[a].shards), len(all[b].shards)) })
		all[at].shards = append(all[at].shards, i)
	}
	for i := range all {
		slices.Sort(all[i].shards)
	}
	return slices.DeleteFunc(all, func(s keptServer) bool { return len(s.shards) == 0 })
}

// answered are those of servers that have said what they keep.
func (v *keptVersion) answered(servers []leaseRecord) []leaseRecord {
	return slices.DeleteFunc(slices.Clone(servers), func(a leaseRecord) bool {
		is := func(s keptServer) bool { return s.id == a.ID && s.incarnation == a.Incarnation }
		return !slices.ContainsFunc(v.there, is)
	})
}

// among gives those of servers that have the shards, each with so many; nil where one of them is there no more.
func (v *keptVersion) among(servers []leaseRecord) (all []leaseRecord, shards []schema.DataServer) {
	for _, s := range v.servers {
		i := slices.IndexFunc(servers, func(a leaseRecord) bool {
			return a.ID == s.id && a.Incarnation == s.incarnation && !a.Leaving
		})
		if i < 0 {
			return nil, nil
		}
		one := servers[i]
		one.Shards = len(s.shards)
		all = append(all, one)
		shards = append(shards, schema.DataServer{ID: one.ID, URL: one.URL, Shards: s.shards})
	}
	return all, shards
}

// lookForKept takes what is kept of a run for what a job begins with, unless a later version is durable: ok is false
// then. A folder that cannot be read may have one.
func (s *Server) lookForKept(c *acquisition) (found saved, ok bool, refused *schema.Refused) {
	runs := append([]schema.RunID{c.kept.run}, c.kept.runs...)
	found.kept, found.back = c.kept, runs
	if dir := s.config.Checkpoints.Dir; dir == "" {
		found.not = errNoFolder.Error()
	} else {
		lost, err := checkpoint.Running(dir, c.job.Name)
		if errors.Is(err, checkpoint.ErrDamaged) {
			err = nil
		}
		all, errList := checkpoint.List(dir, c.job.Name)
		if err = cmp.Or(err, errList); err != nil {
			return found, false, unreadable(err)
		}
		if slices.ContainsFunc(all, func(f checkpoint.Found) bool {
			return f.Err == nil && slices.Contains(runs, f.ID.Run) && f.ID.Version > c.kept.version
		}) {
			return saved{}, false, nil
		}
		if s.numberRun(c.job, &found); found.epoch > 0 && slices.Contains(lost.Runs, c.kept.run) {
			found.since = lost.Since
		}
	}
	s.log.Info("job goes on with what is kept of its shards", "job", c.job.Name, "version", uint64(c.kept.version))
	return found, true, nil
}

// readKeep takes the word of a coordinator that shards are to be kept.
func (l *controlLoop) readKeep(name schema.JobName, run schema.RunID, keep *schema.Keep) {
	a := l.assignments[name]
	if a != nil && a.run != run {
		a = nil
	}
	l.server.keeper.keep(name, run, keep, a)
	l.server.freeBytes.Store(l.freeBytes(l.held()))
	l.tellKept()
}

// tellKept tells coordinators what has changed of what is kept here.
func (l *controlLoop) tellKept() {
	for _, said := range l.server.keeper.changes() {
		name, run := l.server.keeper.jobOf(said.Run), said.Run
		if a := l.assignments[name]; a != nil && a.run == run && a.mirroring != nil {
			said.Missed, said.Begun = schema.Version(a.mirroring.missed.Load()), a.mirroring.begun()
			said.TookMS = time.Duration(a.mirroring.took.Load()).Milliseconds()
			said.Bytes = a.mirroring.bytes.Load()
		}
		if j := l.job(name); j != nil && j.run == run {
			l.local = append(l.local, localMessage{name, run, l.server.member, schema.Control{Kept: &said}})
			continue
		}
		if !l.server.standby.sayKept(name, &said) {
			l.sendAs(l.server.member, name, run, schema.Coordinator, schema.Control{Kept: &said})
		}
	}
}

// heardKept takes what another ps keeps.
func (l *controlLoop) heardKept(m *message, said *schema.Kept) {
	if schema.ServerMember(said.Server) != m.from {
		l.forged(m)
		return
	}
	if j := l.jobs[m.job]; j != nil && j.question != nil {
		q := j.question
		if slices.Contains(q.asked, said.Server) && slices.Contains(append(said.Runs, said.Run), q.acquire.back) {
			q.answers[said.Server] = *said
			l.settleKept(j)
		}
	}
	if j := l.job(m.job); j != nil && j.run == said.Run {
		if a := l.shardsOf(j); a != nil && a.mirroring != nil { // they have gone on since this ps has said so itself
			said.Begun = max(said.Begun, a.mirroring.begun())
		}
		decisions := j.coordinator.Kept(l.server.now(), m.from, said)
		l.tellStandby(l.server.now(), false) // trainers, before others hear that they could go on with the job
		l.carryOut(j, decisions)
	}
}

// coordinatorEnded takes it that the process of a run's coordinator has ended. Nobody else can tell its trainers that
// they are to come back.
func (l *controlLoop) coordinatorEnded(run schema.RunID) {
	if l.server.standby.processEnded(run) {
		return
	}
	name, incarnation := l.server.keeper.lost(run)
	if name == "" {
		return
	}
	l.server.registry.gone(incarnation)
	if a := l.assignments[name]; a != nil && a.run == run {
		l.release(a)
	}
	if j := l.jobs[name]; j != nil && j.state == coordinator.Ended {
		delete(l.jobs, name)
	}
	const why = "the ps that coordinates the job has ended"
	l.server.log.Warn(why, "job", name)
	failed := &schema.Failed{Member: schema.Coordinator, Text: why, Back: true}
	l.send(name, run, schema.All, schema.Control{Failed: failed})
}

// answerKept says what this ps keeps of a run.
func (l *controlLoop) answerKept(m *message, ask *schema.AskKept) {
	said := l.server.keeper.kept(ask.Run)
	l.sendAs(l.server.member, m.job, said.Run, schema.Coordinator, schema.Control{Kept: &said})
}

// releaseServers takes it that a run of a job that this ps coordinates is over, for all who have its shards, or keep
// them.
func (l *controlLoop) releaseServers(j *job) {
	var all []schema.Member
	for i := range j.servers {
		all = append(all, schema.ServerMember(j.servers[i].ID))
	}
	all = append(all, j.coordinator.Keepers()...)
	slices.Sort(all)
	release := releaseOf(j.coordinator.Failed())
	for _, member := range slices.Compact(all) {
		switch {
		case member != l.server.member:
			l.send(j.manifest.Name, j.run, member, schema.Control{Release: release})
		default:
			l.server.keeper.ended(j.run, release.Back)
		}
	}
}

// releaseOf is what is told of a run that has ended so.
func releaseOf(failed *schema.Failed) *schema.Release {
	return &schema.Release{Back: failed != nil && failed.Back}
}
