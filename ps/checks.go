package ps

import (
	"fmt"
	"time"
)

// Check is one thing that must be so for the server to take jobs.
type Check struct {
	Name string // short and stable
	OK   bool
	Text string // what was found, for people
}

const (
	// aliveWithin is how long the control loop may be busy with one iteration. It begins one at least once a tick.
	aliveWithin = 5 * tickEvery
)

// Alive is when the control loop, which every job depends on, last began an iteration: it does so several times a
// second, and a server whose control loop hangs serves nobody.
func (s *Server) Alive() time.Time { return s.loop.began.get() }

// Checks looks at what must be so for the server to take jobs and to keep those it has. It waits for nothing.
func (s *Server) Checks() []Check {
	now := s.now()
	all := []Check{checkAge("control loop", "its last iteration began", now.Sub(s.Alive()), aliveWithin)}
	control := Check{Name: "control", OK: !s.controlLost.Load(), Text: "connected to " + s.control.Address()}
	if !control.OK {
		control.Text = "the control server at " + s.control.Address() + " is out of reach: see that it runs and can be " +
			"reached from here"
	}
	all = append(all, control)
	if err := s.unfit(); err != nil {
		all = append(all, Check{Name: "compute", Text: err.Error()})
	}
	if lost := s.registry.lost.Load(); lost != nil {
		all = append(all, Check{Name: "registry", Text: *lost})
	} else if renewed := s.registry.renewed.get(); renewed.IsZero() {
		all = append(all, Check{Name: "registry", Text: "no lease record yet"})
	} else {
		all = append(all, checkAge("registry", "announced", now.Sub(renewed), s.lease))
	}
	data := Check{Name: "data", OK: !s.links.lost(), Text: "connected to the embedded server"}
	if !data.OK {
		data.Text = "the embedded NATS server does not answer"
	}
	all = append(all, data)
	if err := s.Err(); err != nil {
		all = append(all, Check{Name: "server", Text: err.Error()})
	} else if s.running.Err() != nil {
		all = append(all, Check{Name: "server", Text: "shutting down"})
	}
	return all
}

func checkAge(name, what string, age, most time.Duration) Check {
	return Check{Name: name, OK: age <= most,
		Text: fmt.Sprintf("%s %s ago (at most %s)", what, rounded(max(0, age)), most)}
}

// unfit says why this process must compute nothing more; nil where it may.
func (s *Server) unfit() error {
	if s.fit == nil {
		return nil
	}
	return s.fit()
}
