package exchange

import (
	"context"
	"encoding/json"
	"fmt"

	"gradbus/bench/harness"
)

// role is what a member does.
type role interface {
	// order does what is asked and gives the answer.
	order(ctx context.Context, o order) (answer, error)
	// bytes is the payload received, or sent, so far. Any goroutine may call it.
	bytes() uint64
	// close ends everything that the role has started and waits for it.
	close()
}

func newRole(ctx context.Context, s *spec) (role, error) {
	switch s.Role {
	case roleSink:
		return newSink()
	case roleSource:
		return newSource(), nil
	case roleReader:
		return newReader(ctx, s)
	case roleWriter:
		return newWriter(s), nil
	case roleShard:
		return newShard(ctx, s)
	case roleFeeder:
		return newFeeder(s)
	case roleAsker:
		return newAsker(s)
	case roleTrainer:
		return newTrainer(s)
	}
	return nil, fmt.Errorf("role %q: no such role", s.Role)
}

// harnessRole is the name that the members of all measures have as a role of a harness; spec says which of them one is.
const harnessRole = "fabric"

// Roles are what the members can be.
func Roles() map[string]harness.Role { return map[string]harness.Role{harnessRole: run} }

// run is a member from start to end: it does what it is asked, and says what it has used where that is the question.
func run(ctx context.Context, m *harness.Member) (any, error) {
	var s spec
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	m.LimitProcs(s.Procs)
	r, err := newRole(ctx, &s)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return nil, m.Serve(ctx, func(ctx context.Context, question json.RawMessage) (any, error) {
		var o order
		if err := json.Unmarshal(question, &o); err != nil {
			return nil, err
		}
		if o.Op == opMark {
			return usage(r.bytes())
		}
		a, err := r.order(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Op, err)
		}
		return a, nil
	})
}
