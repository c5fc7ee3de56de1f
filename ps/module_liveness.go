package ps

import (
	"fmt"
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// trainerLiveness measures the silence of the trainers of a job with modules here: contexts end with their trainer,
// also in a job that continues without it. A trainer that was never heard has none.
type trainerLiveness struct {
	job      schema.JobName
	deadline time.Duration
	trainers []moduleClient
}

// moduleClient is a trainer as one whose contexts may have to end. Modules tell again and again when they heard of it
// last, so what was heard stays known when its silence has ended.
type moduleClient struct {
	liveness.Peer
	heard time.Time // the newest sign of life
}

// lostTrainer is one whose contexts end, and why.
type lostTrainer struct {
	contributor int
	cause       string
}

func newTrainerLiveness(job *schema.Job, deadline time.Duration) *trainerLiveness {
	return &trainerLiveness{job: job.Name, deadline: deadline, trainers: make([]moduleClient, job.Trainers)}
}

// sign notes that a trainer was heard of. A sign that is no newer than those before is none: it would have a trainer
// that is gone be lost again.
func (l *trainerLiveness) sign(contributor int, at time.Time) {
	if p := &l.trainers[contributor]; at.After(p.heard) {
		p.heard = at
		p.Begin(at)
	}
}

// leave says that a trainer holds nothing any more.
func (l *trainerLiveness) leave(contributor int) { l.trainers[contributor].Peer = liveness.Peer{} }

// tick finds who is lost, after a pause of this process. clients are the names of connections.
func (l *trainerLiveness) tick(now time.Time, pause time.Duration, clients []string) (lost []lostTrainer) {
	for i := range l.trainers {
		p, name := &l.trainers[i], schema.TrainerMember(i)
		if !p.Lasts() {
			continue
		}
		p.Excuse(pause, now)
		p.Connection(slices.Contains(clients, string(l.job)+"/"+string(name)))
		if why, gone := p.Lost(now, l.deadline); gone {
			cause := fmt.Sprintf("%s was not heard of for %s%s", name, liveness.Rounded(p.For(now)), why)
			lost = append(lost, lostTrainer{i, cause})
			l.leave(i)
		}
	}
	return lost
}

// hearTrainer notes a sign of life of a trainer of a job with shards here.
func (a *assignment) hearTrainer(from schema.Member, now time.Time) {
	if a.trainers == nil {
		return
	}
	if i := a.hostOf(from); i >= 0 {
		a.trainers.sign(i, now)
	}
}

// trainerLeft ends what a trainer that has left holds.
func (a *assignment) trainerLeft(from schema.Member) {
	if a.trainers == nil {
		return
	}
	if i := a.hostOf(from); i >= 0 {
		a.hearModules(i)
		a.trainers.leave(i)
		a.expire(lostTrainer{i, string(from) + " has left"})
	}
}

func (a *assignment) hostOf(from schema.Member) int {
	for i := range a.manifest.Trainers {
		if schema.TrainerMember(i) == from {
			return i
		}
	}
	return -1
}

// tickModules ends the contexts of trainers that are lost.
func (a *assignment) tickModules(now time.Time, pause time.Duration, clients []string) {
	if a.trainers == nil {
		return
	}
	for i := range a.manifest.Trainers {
		a.hearModules(i)
	}
	for _, lost := range a.trainers.tick(now, pause, clients) {
		a.expire(lost)
	}
}

// hearModules notes when modules here have last heard of a trainer.
func (a *assignment) hearModules(contributor int) {
	for _, own := range a.own {
		if at := a.workers[own].modules.Heard(contributor); !at.IsZero() {
			a.trainers.sign(contributor, at)
		}
	}
}

// expire ends what a trainer holds. Client slots are locked while answers are sent, so the control loop does not wait
// for that.
func (a *assignment) expire(lost lostTrainer) {
	a.asides.Go(func() {
		for _, own := range a.own {
			a.workers[own].modules.Expire(lost.contributor, lost.cause)
		}
	})
}
