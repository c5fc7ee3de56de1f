package exchange

import (
	"context"
	"fmt"
	"time"

	"gradbus/bench/harness"
	"gradbus/internal/config"
)

// startWithin is how long members may take for their first answers.
const startWithin = 30 * time.Second

// team is the members of one measure. The first is the receiver, whose address the others are told.
type team []*harness.Handle

// within starts the members of a measure, connects them, and ends them after do.
func (b *bench) within(ctx context.Context, measure string, specs []spec, do func(team) error) error {
	c := harness.Harness{Roles: Roles()}
	if b.Profile != "" && b.turn == 0 {
		c.Profile = b.Profile
	}
	defer c.Close()
	var members []harness.Spec
	inJob := 0
	for _, s := range specs {
		if s.Job != nil {
			inJob++
		}
	}
	for _, s := range specs {
		if s.Job != nil {
			s.Procs = config.Share(inJob) // what --spawn gives trainers
		}
		name := fmt.Sprintf("%s-%s%d", measure, s.Role, s.Index)
		members = append(members, harness.Spec{Role: harnessRole, Name: name, Settings: s})
	}
	handles, err := c.Start(ctx, members...)
	if err != nil {
		return err
	}
	if err := team(handles).connect(ctx); err != nil {
		return err
	}
	if err := do(handles); err != nil {
		return err
	}
	return c.Close()
}

// connect asks the first member for its address and has the others connect to it.
func (t team) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("members not ready within %v", startWithin))
	defer cancel()
	at, err := t[:1].all(ctx, order{Op: opListen})
	if err != nil {
		return err
	}
	_, err = t[1:].all(ctx, order{Op: opConnect, URL: at[0].URL})
	return err
}

// all gives every member the same order and waits for all answers.
func (t team) all(ctx context.Context, o order) ([]answer, error) { return askAll[answer](ctx, t, o) }

// marks asks every member what it has used.
func (t team) marks(ctx context.Context) ([]mark, error) {
	return askAll[mark](ctx, t, order{Op: opMark})
}

func askAll[A any](ctx context.Context, t team, o order) ([]A, error) {
	for _, h := range t {
		if err := h.Ask(ctx, o); err != nil {
			return nil, err
		}
	}
	all := make([]A, len(t))
	for i, h := range t {
		if err := h.Answer(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// marked gives all members but the first an order, with what each member had used before and after.
func (t team) marked(ctx context.Context, o order) (got []answer, before, after []mark, err error) {
	if before, err = t.marks(ctx); err == nil {
		got, err = t[1:].all(ctx, o)
	}
	if err == nil {
		after, err = t.marks(ctx)
	}
	return got, before, after, err
}

// cpu is the processor seconds that all members together used between two marks.
func cpu(from, to []mark) float64 {
	var s float64
	for i := range from {
		s += to[i].CPU - from[i].CPU
	}
	return s
}
