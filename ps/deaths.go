package ps

import (
	"gradbus/internal/process"
	"gradbus/schema"
)

// Trainers of this machine are watched: the end of a process is seen at once, and without a doubt. Of others silence
// tells.

// death says that the process of a trainer has ended.
type death struct {
	job        *job
	member     schema.Member
	generation schema.Generation
}

// watchTrainers watches the processes of those who have places now, and no others.
func (l *controlLoop) watchTrainers(j *job) {
	for i := range j.coordinator.members {
		m := &j.coordinator.members[i]
		w := &j.watching[i]
		if w.process == m.process && w.generation == m.generation {
			continue
		}
		w.stop()
		*w = watching{process: m.process, generation: m.generation}
		if m.process == "" || m.process == l.server.process || !m.here() {
			continue // this process ends with it
		}
		d := death{j, schema.TrainerMember(i), m.generation}
		stop, err := process.Watch(m.process, func() {
			select {
			case l.deaths <- d:
			case <-l.done:
			}
		})
		if err == nil { // else it is elsewhere
			w.end = stop
		}
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
