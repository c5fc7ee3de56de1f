package ps

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/fabric"
	"gradbus/internal/planted"
	"gradbus/internal/process"
	"gradbus/schema"
	"gradbus/shard"
)

// standing is a job that is stood by for. mu of the standby guards it.
type standing struct {
	job      *schema.Job
	run      schema.RunID
	series   uint32
	from     schema.Member // the ps that has it
	other    uint64        // what that drew at its start
	unwatch  func()        // nil where it is not watched
	memory   Memory
	trainers int // that train there
	lr       []schema.LRChange
	state    *shard.Standby // nil while it is made
	intake   intake
	failure  string
	gone     string    // why the ps that has it is lost; empty: it is not
	since    time.Time // then
	ended    bool      // it is no more, and not only out of reach
	came     map[schema.Member]time.Time
	told     bool // trainers know that the job goes on here
}

// mirror takes it that the other ps has a job.
func (b *standby) mirror(name schema.JobName, run schema.RunID, told *schema.Mirror) {
	b.server.checkManifest(told.Job) // before the lock, for which the control loop waits; what it finds is remembered
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[name]
	if b.isOver(name, run) {
		return
	}
	if j.goesOn(b.server.now()) && j.run != run {
		return // whose trainers are on their way
	}
	if j == nil || j.run != run || told.Series > j.series || told.Incarnation != j.other {
		b.drop(name)
		j = b.begin(name, run, told)
	}
	if told.Series < j.series {
		return
	}
	j.lr, j.trainers = told.LR, told.Trainers
	if j.gone != "" && !told.Last {
		b.server.log.Info("ps is back", "job", name)
		j.gone, j.ended = "", false
		clear(j.came)
	}
	if told.Last {
		b.lose(name, j, "its ps ends, and has handed it over", true)
	}
}

// isOver reports whether this ps has gone on with a run. mu is held.
func (b *standby) isOver(name schema.JobName, run schema.RunID) bool {
	return slices.Contains(b.over, schema.OverRun{Job: name, Run: run})
}

// begin makes room for what a job's shards have, where there is any.
func (b *standby) begin(name schema.JobName, run schema.RunID, told *schema.Mirror) *standing {
	s := b.server
	j := &standing{job: told.Job, run: run, series: told.Series, other: told.Incarnation,
		came: map[schema.Member]time.Time{}, intake: newIntake()}
	b.jobs[name] = j
	fail := func(err error) *standing {
		j.failure = schema.ClipFailure(err.Error())
		s.log.Error("nobody stands by for the job", "job", name, "err", err)
		return j
	}
	if told.Job.Name != name {
		return fail(fmt.Errorf("manifest of job %s told as job %s", told.Job.Name, name))
	}
	if refused := s.checkManifest(told.Job); refused != nil {
		return fail(errors.New(refused.Text))
	}
	if err := checkMirror(told.Job); err != nil {
		return fail(err)
	}
	need := MemoryOf(s.config, told.Job, s.config.Shards, s.config.Shards)
	if err := s.fits(name, need, b.promised()); err != nil {
		return fail(err)
	}
	j.memory = need
	if told.Process != "" && told.Process != s.process {
		stop, err := process.Watch(told.Process, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.jobs[name] == j {
				b.lose(name, j, "its ps has ended", true)
			}
		})
		if err == nil {
			j.unwatch = stop
		}
	}
	s.log.Info("standing by for a job", "job", name, "bytes", need.Bytes())
	b.runLocked(func() { b.build(name, j, told.Shards) })
	return j
}

// build makes the tables that are filled then.
func (b *standby) build(name schema.JobName, j *standing, told int) {
	s := b.server
	var configs []shard.Config
	place := schema.NewPlacement(j.job, s.config.Shards)
	for i := range s.config.Shards {
		configs = append(configs, s.shardConfig(j.job, place, i))
	}
	state, err := shard.NewStandby(s.running, told, configs, j.memory.Bytes()-j.memory.Tables)
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.tellSoon()
	switch {
	case err != nil:
		j.failure = schema.ClipFailure(err.Error())
	case b.jobs[name] != j:
		state.Close()
	default:
		j.state = state
	}
}

// take takes a frame of what a job's shards have.
func (b *standby) take(m fabric.Message) {
	m.Keep()
	if !b.taken(&m) {
		m.Release()
	}
}

// taken reports whether the message is released by somebody else.
func (b *standby) taken(m *fabric.Message) bool {
	subject, view, ok := b.server.readState(m)
	if !ok {
		return false
	}
	h := view.Head()
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[schema.JobName(subject.Job)]
	if j == nil || j.state == nil || j.failure != "" || j.gone != "" || h.Job != j.run ||
		h.Generation != schema.Generation(j.series) {
		return false // said again until there is room, or for nobody
	}
	j.from = schema.Member(subject.From)
	defer b.acknowledge(schema.JobName(subject.Job), j, (*fabric.Receipt).Due)
	if !j.intake.accept(&h, len(m.Data)) {
		return false
	}
	whole, err := j.state.Take(int(subject.Bucket), &view, m.Lease())
	if whole {
		err = j.state.Commit()
	}
	if err != nil {
		j.failure = schema.ClipFailure(err.Error())
		return true
	}
	if whole {
		b.tellSoon()
	}
	return true
}

// acknowledge tells the other ps what has come, where that is due.
func (b *standby) acknowledge(name schema.JobName, j *standing, due func(*fabric.Receipt) bool) {
	of := schema.Head{Job: j.run, Generation: schema.Generation(j.series)}
	j.intake.acknowledge(b.server, b.conn, name, of, j.from, due)
}

// acknowledgeLate tells what has waited for long enough.
func (b *standby) acknowledgeLate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, j := range b.jobs {
		if j.state != nil && j.gone == "" {
			b.acknowledge(name, j, (*fabric.Receipt).Tick)
		}
	}
}

// lose takes it that the ps is lost that has a job; ended says that it is no more. mu is held.
func (b *standby) lose(name schema.JobName, j *standing, why string, ended bool) {
	j.ended = j.ended || ended
	if j.gone != "" {
		return
	}
	j.gone, j.since = why, b.server.now()
	b.server.log.Warn("the ps of a job is lost, its trainers are awaited here", "job", name, "why", why, "version",
		uint64(j.version()))
}

// drop forgets a job. mu is held.
func (b *standby) drop(name schema.JobName) {
	if j := b.release(name); j != nil && j.state != nil {
		j.state.Close()
	}
}

// release gives a job away; nil where there is none. mu is held.
func (b *standby) release(name schema.JobName) *standing {
	j := b.jobs[name]
	delete(b.jobs, name)
	if j != nil && j.unwatch != nil {
		j.unwatch()
		j.unwatch = nil
	}
	return j
}

// memories are what jobs that are stood by for are promised.
func (b *standby) memories() (all []Memory) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.jobs {
		all = append(all, j.memory)
	}
	return all
}

// promised is what jobs that are stood by for are promised. mu is held.
func (b *standby) promised() (n int64) {
	for _, j := range b.jobs {
		n += j.memory.Bytes()
	}
	return n
}

// lost answers whether a run is over where it was, and goes on here.
func (b *standby) lost(name schema.JobName, run schema.RunID) (answer schema.Lost) {
	b.mu.Lock()
	defer b.mu.Unlock()
	answer.Run = run
	switch j := b.jobs[name]; {
	case b.isOver(name, run):
		answer.Lost, answer.Text = true, "it goes on here"
	case j == nil || j.run != run:
		answer.Text = "the run is not known here"
	case j.gone != "" && j.version() > 0:
		answer.Lost, answer.Text = true, j.gone
	case j.gone != "":
		answer.Text = j.gone + ", and not all of it had been told here"
	}
	return answer
}

// version is the one that is whole here; 0: none is.
func (j *standing) version() schema.Version {
	if j.state == nil || j.failure != "" {
		return 0
	}
	return j.state.Version()
}

// goesOn reports whether the job is to go on here: its ps is lost, and all of it is here. Its trainers are awaited for
// resumeWindow.
func (j *standing) goesOn(now time.Time) bool {
	return j != nil && j.gone != "" && j.version() > 0 && now.Sub(j.since) < resumeWindow
}

// awaited are the jobs that are to go on here.
func (b *standby) awaited() (all []schema.JobName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, j := range b.jobs {
		if j.goesOn(b.server.now()) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// comes is told that a trainer wants to join a job that is stood by for. mine says that this is for the standby to
// answer, and refused how; where it is nil the job is to go on here.
func (b *standby) comes(name schema.JobName, from schema.Member, run schema.RunID) (mine bool,
	refused *schema.Refused) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j, now := b.jobs[name], b.server.now()
	goesOn := j.goesOn(now)
	switch {
	case j == nil && b.there == nil:
		return true, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
			"this ps stands by for the one at %s, and has to hear first which jobs are there", fabric.WithoutUser(b.url)))}
	case !goesOn && b.there[name] && b.silent.For(now) < cutMax, j != nil && j.gone == "":
		there := fabric.WithoutUser(b.url)
		return true, &schema.Refused{Reason: schema.RefusedElsewhere, Field: "server", Have: there,
			Text: schema.Clip(fmt.Sprintf("job %s is on the ps at %s, which this one stands by for", name, there))}
	case run == 0 && j != nil && j.gone != "" && j.version() == 0 && now.Sub(j.since) < othersFirst:
		return true, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
			"job %s was on the ps at %s, of which this one has nothing: %s. It may go on there first", name,
			fabric.WithoutUser(b.url), j.gone))}
	case !goesOn || run != 0 && run != j.run:
		return false, nil
	}
	if run != 0 {
		j.came[from] = now
	}
	here := 0
	for who, at := range j.came {
		if now.Sub(at) > cameWithin {
			delete(j.came, who)
		} else {
			here++
		}
	}
	few := !j.ended && 2*here <= j.trainers
	if planted.Is(planted.GoOnWithMinority) {
		few = here == 0
	}
	if few {
		return true, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
			"%s. The job goes on here when more than half of its %d trainers have come, and %d have: %s", j.gone,
			j.trainers, here, strings.Join(names(j.came), " ")))}
	}
	return true, nil
}

func names(came map[schema.Member]time.Time) (all []string) {
	for who := range came {
		all = append(all, string(who))
	}
	slices.Sort(all)
	return all
}

// goOn gives what a job goes on with, once. run is the one that a trainer comes back from; 0: it is new.
func (b *standby) goOn(job *schema.Job, run schema.RunID) *standing {
	name := job.Name
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[name]
	if j == nil || j.run != run && (run != 0 || !j.ended) || j.gone == "" || j.version() == 0 {
		return nil
	}
	run = j.run
	if field, have, want, differs := j.job.WithChunkBytes(job.ChunkBytes).Diff(job); differs {
		b.server.log.Warn("job begins anew: its settings are others than those of the one that was stood by for", "job", name,
			"field", field, "have", have, "want", want)
		return nil
	}
	b.release(name)
	if b.over = append(b.over, schema.OverRun{Job: name, Run: run}); len(b.over) > endedMax {
		b.over = b.over[1:]
	}
	b.server.log.Info("job goes on here", "job", name, "version", uint64(j.state.Version()), "why", j.gone)
	return j
}

// putBack is told that a job which was to go on here cannot, for now.
func (b *standby) putBack(j *standing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = slices.DeleteFunc(b.over, func(o schema.OverRun) bool { return o.Run == j.run })
	b.jobs[j.job.Name] = j
}
