package ps

import (
	"fmt"
	"slices"
	"time"

	"gradbus/schema"
)

// lives is when the trainers of a job that has modules here were last heard of: contexts end with their trainer, also in a job that goes
// on without it. It knows no clock. A trainer that was never heard of holds nothing.
type lives struct {
	job      schema.JobName
	deadline time.Duration
	trainers []life
	ticked   time.Time
}

type life struct {
	seen      time.Time // zero: never, or not since it was lost
	connected bool      // its connection to our data server has been seen
}

// lostTrainer is one whose contexts end, and why.
type lostTrainer struct {
	host  int
	cause string
}

func newLives(job *schema.Job, deadline time.Duration) *lives {
	return &lives{job: job.Name, deadline: deadline, trainers: make([]life, job.Trainers)}
}

// sign notes that a trainer was heard of.
func (l *lives) sign(host int, at time.Time) {
	if t := &l.trainers[host]; at.After(t.seen) {
		t.seen = at
	}
}

// leave says that a trainer holds nothing any more.
func (l *lives) leave(host int) { l.trainers[host] = life{} }

// tick finds who has been silent for longer than the deadline, or than goneAfter where its connection was there and is gone.
// clients are the names of connections.
func (l *lives) tick(now time.Time, clients []string) (lost []lostTrainer) {
	if pause := now.Sub(l.ticked); !l.ticked.IsZero() && pause > pauseMin {
		for i := range l.trainers { // this process did not run: nobody was heard
			if t := &l.trainers[i]; !t.seen.IsZero() {
				t.seen = t.seen.Add(pause)
			}
		}
	}
	l.ticked = now
	for i := range l.trainers {
		t, name := &l.trainers[i], schema.TrainerMember(i)
		if t.seen.IsZero() {
			continue
		}
		there := slices.Contains(clients, string(l.job)+"/"+string(name))
		t.connected = t.connected || there
		switch silent := now.Sub(t.seen); {
		case silent > l.deadline:
			lost = append(lost, lostTrainer{i, fmt.Sprintf("%s was not heard of for %s (deadline %s)", name, rounded(silent), l.deadline)})
			*t = life{}
		case t.connected && !there && silent > goneAfter:
			lost = append(lost, lostTrainer{i, fmt.Sprintf("%s was not heard of for %s, and its connection is gone", name, rounded(silent))})
			*t = life{}
		}
	}
	return lost
}

// hearTrainer notes a sign of life of a trainer of a job that is kept here.
func (k *kept) hearTrainer(from schema.Member, now time.Time) {
	if k.lives == nil {
		return
	}
	if i := k.hostOf(from); i >= 0 {
		k.lives.sign(i, now)
	}
}

// trainerLeft ends what a trainer that has left holds.
func (k *kept) trainerLeft(from schema.Member) {
	if k.lives == nil {
		return
	}
	if i := k.hostOf(from); i >= 0 {
		k.lives.leave(i)
		k.expire(lostTrainer{i, string(from) + " has left"})
	}
}

func (k *kept) hostOf(from schema.Member) int {
	for i := range k.manifest.Trainers {
		if schema.TrainerMember(i) == from {
			return i
		}
	}
	return -1
}

// tickModules ends the contexts of trainers that are lost.
func (k *kept) tickModules(now time.Time, clients []string) {
	if k.lives == nil {
		return
	}
	for i := range k.manifest.Trainers {
		for _, own := range k.own {
			if at := k.workers[own].modules.heard(i); !at.IsZero() {
				k.lives.sign(i, at)
			}
		}
	}
	for _, lost := range k.lives.tick(now, clients) {
		k.expire(lost)
	}
}

// expire ends what a trainer holds. Seats are locked while answers are sent, so the desk does not wait for that.
func (k *kept) expire(lost lostTrainer) {
	k.asides.Go(func() {
		for _, own := range k.own {
			k.workers[own].modules.expire(lost.host, lost.cause)
		}
	})
}
