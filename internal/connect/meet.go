package connect

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gradbus/schema"
	"gradbus/trainer"
)

// Meeting is where the trainers of a job wait for each other, on whichever hosts they are. Config is how this one has
// joined, and Session is its place.
type Meeting struct {
	Config  trainer.Config
	Session *trainer.Session
	Apart   bool // there are trainers on other hosts; else Wait is nothing, for those who wait here for each other
}

// Wait returns when every trainer of the job has called it with this occasion, which each job has once. They join a job
// of their own for it, which starts when the last one comes. Errors: those of trainer.Join, and why the session ended.
func (m *Meeting) Wait(ctx context.Context, occasion string) error {
	if !m.Apart {
		return nil
	}
	of := m.Session.Job()
	job := &schema.Job{Name: of.Name + schema.JobName("-"+occasion), Workload: "meeting", Trainers: of.Trainers,
		Policy:     schema.PolicyFail,
		Parameters: []schema.Parameter{{Name: "none", Shape: []int{1}, Init: schema.Init{Kind: schema.InitZeros}}}}
	c := m.Config
	c.Member = m.Session.Member()
	ctx, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	looking.Go(func() { m.look(ctx, cancel) })
	defer looking.Wait()
	defer cancel(nil)
	met, err := trainer.Join(ctx, c, job)
	if err == nil {
		err = met.Close()
	}
	if err != nil {
		return fmt.Errorf("wait for the trainers on other hosts (%s): %w", occasion, err)
	}
	return nil
}

// look ends the wait when the session has ended: no trainer would join.
func (m *Meeting) look(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second / 5)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := m.Session.Err(); err != nil {
			cancel(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
