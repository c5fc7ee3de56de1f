package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// A ps may stand by for the one that has the job: the coordinator says where it is. When a server is lost, the session
// asks there whether it is lost for good. If so the session ends, and the trainer joins there (restart).

// askEvery is the time between two questions to a ps that stands by, and between two joins there.
const askEvery = 20 * time.Millisecond

// setStandby notes where the job goes on when its ps is lost.
func (s *membership) setStandby(url string) {
	if url != "" {
		s.standby.Store(&url)
	}
}

// standbyAt is where the job goes on when its ps is lost; empty: nobody stands by.
func (s *membership) standbyAt() string {
	if url := s.standby.Load(); url != nil {
		return *url
	}
	return ""
}

// serverLost has whoever stands by asked, until servers are back. It may be told again.
func (s *membership) serverLost() {
	s.ending.Lock()
	defer s.ending.Unlock()
	url := s.standbyAt()
	if url == "" || s.ctx.Err() != nil || s.asking.Swap(true) {
		return
	}
	s.clock.Add(1)
	go func() {
		defer s.clock.Done()
		defer s.asking.Store(false)
		for s.ctx.Err() == nil && !s.connected() {
			if err := s.askStandby(url); err != nil && s.ctx.Err() == nil {
				s.config.Log.Debug("whoever stands by does not answer", "at", fabric.WithoutUser(url), "err", err)
			}
			select {
			case <-time.After(askEvery):
			case <-s.ctx.Done():
			}
		}
	}()
}

// askStandby asks until servers are back, or the answer is that the run is lost: then the session ends.
func (s *membership) askStandby(url string) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.AnswerWithin)
	defer cancel()
	c, answers := s.config, make(chan schema.Lost, 1)
	c.Server, c.CredsFile = url, ""
	a, err := c.dialOutside(ctx, s.job, func(m fabric.Message) {
		if v, err := schema.Verify(m.Data, schema.Limits{}); err == nil {
			if c, err := schema.DecodeControl(&v); err == nil && c.Lost != nil && c.Lost.Run == s.joined.RunID {
				select {
				case answers <- *c.Lost:
				default: // it has one
				}
			}
		}
		m.Release()
	})
	if err != nil {
		return err
	}
	defer a.conn.Close()
	question, err := schema.EncodeControl(schema.Head{}, schema.Control{AskLost: &schema.AskLost{Run: s.joined.RunID}})
	if err != nil {
		return err
	}
	for !s.connected() {
		answer, err := fabric.Ask(ctx, askEvery, func() error { return a.publish(question) }, answers)
		if err != nil {
			return err
		}
		if answer.Lost {
			s.fail(fmt.Errorf("%w: %s, at batch %d of job %s; the job goes on at %s", ErrServerLost, answer.Text, s.Version(),
				s.job.Name, fabric.WithoutUser(url)))
			return nil
		}
		select {
		case <-time.After(askEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// atStandby is how to join where the job goes on.
func (c Config) atStandby() Config {
	c.Server, c.CredsFile, c.standby = c.standby, "", ""
	return c
}

// sentOn sets Server to where whoever stands by says that the job is. It reports whether the join is to be tried there.
func (c *Config) sentOn(err error) bool {
	r, ok := errors.AsType[*Refused](err)
	if !ok || r.server == "" {
		return false
	}
	c.Server = r.server
	return true
}
