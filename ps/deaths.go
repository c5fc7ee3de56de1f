package ps

import (
	"gradbus/internal/process"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// Trainers of this machine are watched: the end of a process is seen at once, and without a doubt. Of others silence
// tells.

// So are ps with shards of a job whose ps stand by for each other.

// death says that the process of a trainer has ended.
type death struct {
	job        *job
	member     schema.Member
	generation schema.Generation
	process    string
	server     int // among those of the job, of which one has ended in place of a trainer; -1: none
}

// died takes the end of a process.
func (l *controlLoop) died(d *death) {
	c := d.job.coordinator
	if d.server >= 0 {
		l.carryOut(d.job, c.ShardServerGone(d.server, "has ended"))
		return
	}
	l.carryOut(d.job, c.Died(l.server.now(), d.member, d.generation))
}

// watchServers watches the processes of those who have shards.
func (l *controlLoop) watchServers(j *job) {
	if !l.server.config.grouped() || coordinator.CheckReplicas(j.manifest) != nil {
		return
	}
	j.serving = make([]watching, len(j.servers))
	for i := range j.servers {
		l.watch(&j.serving[i], death{job: j, process: j.servers[i].Process, server: i})
	}
}

// watchTrainers watches the processes of those who have places now, and no others.
func (l *controlLoop) watchTrainers(j *job) {
	for i := range j.watching {
		process, generation := j.coordinator.Process(i)
		l.watch(&j.watching[i], death{j, schema.TrainerMember(i), generation, process, -1})
	}
}

// watch watches a process in the place of another one.
func (l *controlLoop) watch(w *watching, d death) {
	if w.process == d.process && w.generation == d.generation {
		return
	}
	w.stop()
	*w = watching{process: d.process, generation: d.generation}
	if d.process == "" || d.process == l.server.process { // which ends with this one
		return
	}
	stop, err := process.Watch(d.process, func() {
		select {
		case l.deaths <- d:
		case <-l.done:
		}
	})
	if err == nil { // else it is elsewhere
		w.end = stop
	}
}

// watching is the process of a place that is watched.
type watching struct {
	process    string
	generation schema.Generation
	end        func() // nil where there is none
}

func (w *watching) stop() {
	if w.end != nil {
		w.end()
	}
}
