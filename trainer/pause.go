package trainer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// How late a tick must be for the session to take it that its own process did not run: stopped by a signal, by its container, or with its
// machine. It is half of the job's deadline, within these. Ticks come every tickEvery.
const (
	pauseMin = 1500 * time.Millisecond
	pauseMax = 5 * time.Second
	// pauseTold is for how long after a pause an error says that there was one, besides the job's deadline: what follows from it shows by then.
	pauseTold = 30 * time.Second
)

// pause is a time in which this process did not run.
type pause struct {
	length time.Duration
	until  time.Duration // since the session's epoch
}

// pausedUntil is the pause that ends now; nil where the tick before is no longer ago than on a busy machine.
func (s *Session) pausedUntil(now time.Duration) *pause {
	ticked, deadline := time.Duration(s.ticked.Load()), time.Duration(s.joined.DeadlineMS)*time.Millisecond
	if length := now - ticked; ticked > 0 && length > min(pauseMax, max(pauseMin, deadline/2)) {
		return &pause{length, now}
	}
	return nil
}

// forgivePause moves by a pause what the session has waited for until now, with a tick: nobody was heard meanwhile, and that was nobody's
// silence. Whoever was taken for silent or lost has its time again; the coordinator says whether the job went on without this trainer.
func (s *Session) forgivePause(now time.Duration) {
	p := s.pausedUntil(now)
	s.ticked.Store(int64(now))
	if p == nil {
		return
	}
	length := p.length
	s.paused.Store(p)
	later := func(at *atomic.Int64) {
		if old := at.Load(); old != 0 { // else nobody is lost
			at.CompareAndSwap(old, min(old+int64(length), int64(now))) // where it fails, there is later news
		}
	}
	later(&s.heard)
	later(&s.lost)
	later(&s.disowned)
	for _, d := range s.servers {
		later(&d.lost)
	}
	s.config.Log.Warn("this process did not run, and goes on", "job", s.job.Name, "member", s.joined.Member, "for", length.Round(100*time.Millisecond).String())
}

// withPause says of an error that this process did not run a while ago: what it tells of may have come of that.
func (s *Session) withPause(err error) error {
	p := s.paused.Load()
	if now := s.pausedUntil(s.since()); now != nil { // whose end the reader of messages saw first
		p = now
	}
	if p == nil || errors.Is(err, ErrLeft) {
		return err
	}
	ago := s.since() - p.until
	if ago > pauseTold+time.Duration(s.joined.DeadlineMS)*time.Millisecond {
		return err
	}
	until := "just now"
	if ago >= time.Second {
		until = fmt.Sprintf("%v ago", ago.Round(time.Second))
	}
	return fmt.Errorf("%w (this trainer's own process was stopped, or its machine: it did not run for %v, until %s)", err, p.length.Round(100*time.Millisecond), until)
}
