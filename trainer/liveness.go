package trainer

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

const (
	// graceOfCoordinator is added to the deadline for the coordinator's own silence, so that it speaks first.
	graceOfCoordinator = 2 * time.Second
	// pauseTold is for how long after a pause of this process an error says that there was one, besides the job's
	// deadline: what follows from it shows by then.
	pauseTold = 30 * time.Second
)

// watch is how those fare whom the session cannot do without: the coordinator, the control server, and servers of
// shards (dataServer.lost). Goroutines of fabric's note what they see, and keepTime looks.
type watch struct {
	mu          sync.Mutex       // guards what follows, and lost of all servers. A leaf
	ticks       liveness.Ticks   // of keepTime
	coordinator liveness.Peer    // heard of by heartbeats and control messages
	control     liveness.Silence // since the control server is out of reach
	disowned    liveness.Silence // since a shard has said that it does not know the job
	pause       time.Duration    // for which this process last did not run
	paused      liveness.Silence // since the end of that
}

// note has what is seen noted.
func (w *watch) note(see func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	see()
}

// lasts says for how long something has lasted, and whether it does.
func (w *watch) lasts(s *liveness.Silence, now time.Time) (long time.Duration, lasts bool) {
	w.note(func() { long, lasts = s.For(now), s.Lasts() })
	return long, lasts
}

// deadline is that of the job.
func (s *membership) deadline() time.Duration {
	return time.Duration(s.joined.DeadlineMS) * time.Millisecond
}

// excusePause is called at each tick, and takes a time in which this process did not run out of every silence: nobody
// was heard then. The coordinator says whether the job went on without this trainer.
func (s *membership) excusePause(now time.Time) {
	w := &s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	pause := w.ticks.Tick(now, s.deadline())
	if pause == 0 {
		return
	}
	w.pause = pause
	w.paused.Begin(now)
	for _, silence := range []*liveness.Silence{&w.coordinator.Silence, &w.control, &w.disowned} {
		silence.Excuse(pause, now)
	}
	for _, d := range s.servers {
		d.lost.Excuse(pause, now)
	}
	s.config.Log.Warn("this process did not run, and goes on", "job", s.job.Name, "member", s.joined.Member,
		"for", pause.Round(100*time.Millisecond).String())
}

// stuck reports whether keepTime has stood still for longer than the job's deadline.
func (s *membership) stuck(now time.Time) (stuck bool) {
	s.watch.note(func() { stuck = s.watch.ticks.Since(now) > s.deadline() })
	return stuck
}

// withPause says of an error that this process did not run a while ago: what it tells of may have come of that.
func (s *membership) withPause(err error) error {
	if errors.Is(err, ErrLeft) {
		return err
	}
	w, now := &s.watch, time.Now()
	w.mu.Lock()
	length, ago, paused := w.pause, w.paused.For(now), w.paused.Lasts()
	if p := w.ticks.Pause(now, s.deadline()); p > 0 { // whose end the reader of messages saw first
		length, ago, paused = p, 0, true
	}
	w.mu.Unlock()
	if !paused || ago > pauseTold+s.deadline() {
		return err
	}
	until := "just now"
	if ago >= time.Second {
		until = fmt.Sprintf("%v ago", ago.Round(time.Second))
	}
	return fmt.Errorf("%w (this trainer's own process was stopped, or its machine: it did not run for %v, until %s)", err,
		length.Round(100*time.Millisecond), until)
}

// checkSilence says whom to give up: a server of shards after ReconnectTimeout, control and the coordinator after the
// job's deadline.
func (s *membership) checkSilence(now time.Time) error {
	for _, d := range s.servers {
		if d.peer != "" && !s.training.Load() {
			continue // it may have left; who is needed for the next batch is told then
		}
		if gone, _ := s.watch.lasts(&d.lost, now); gone > s.config.ReconnectTimeout {
			return fmt.Errorf("%w: %s has been out of reach for %v, at batch %d of job %s", d.lostError(), d.name(),
				gone.Round(100*time.Millisecond), s.Version(), s.job.Name)
		}
	}
	deadline, server := s.deadline(), s.config.serverName()
	unknown, _ := s.watch.lasts(&s.watch.disowned, now)
	disowned := unknown > s.config.RetryAfter
	if gone, lost := s.watch.lasts(&s.watch.control, now); lost { // the coordinator then ends the job unheard
		if gone > deadline || disowned {
			return fmt.Errorf("%w: control server %s has been out of reach for %v (deadline %v), at batch %d of job %s",
				ErrServerLost, server, gone.Round(100*time.Millisecond), deadline, s.Version(), s.job.Name)
		}
		return nil
	}
	if disowned {
		return fmt.Errorf("%w: %s does not know this run of job %s any more, at batch %d: it was started anew, or has ended "+
			"the job unheard",
			ErrServerLost, server, s.job.Name, s.Version())
	}
	if silent, _ := s.watch.lasts(&s.watch.coordinator.Silence, now); silent > deadline+graceOfCoordinator {
		return fmt.Errorf("%w: the coordinator of job %s at %s has been silent for %v (deadline %v), at batch %d",
			ErrServerLost, s.job.Name, server, silent.Round(time.Second), deadline, s.Version())
	}
	return nil
}

// connected says that no server is out of reach.
func (s *membership) connected() (all bool) {
	s.watch.note(func() {
		lost := func(d *dataServer) bool { return d.lost.Lasts() }
		all = !s.watch.control.Lasts() && !slices.ContainsFunc(s.servers, lost)
	})
	return all
}

// hear notes a sign of life of the coordinator.
func (s *membership) hear(from string) {
	if from == string(schema.Coordinator) {
		s.watch.note(func() {
			s.watch.coordinator.Begin(time.Now())
			s.watch.disowned.End() // by another ps, which does not know of this one
		})
	}
}
