package trainer

import (
	"context"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/trainer/exchange"
)

// enter begins with the version that the coordinator said.
func (s *Session) enter(ctx context.Context) error {
	if s.joined.Version > 0 {
		return s.resume(ctx)
	}
	return s.assign(ctx)
}

// resume gets the parameters of the version that a resumed job begins with. They are the results of the batch before
// it, which all shards keep, so they are asked for as results are that were lost. Rows come with the first lookup.
func (s *Session) resume(ctx context.Context) error {
	ctx, stop := s.running(ctx)
	defer stop()
	v := s.joined.Version
	last := schema.Batch(v) - 1
	s.compute.params.state.Begin(schema.Version(last))
	s.results.begin(last)
	for _, r := range s.results.sparse {
		if v != s.joined.Resumed {
			break // shards have the results of the batch before
		}
		if err := s.results.over(r.owner, last, round.ResumedWeight); err != nil {
			return fmt.Errorf("resume at version %d: %w", v, err)
		}
	}
	s.exchange.do((*exchange.Exchange).Back) // nobody sends them by itself
	if err := s.awaitResults(ctx, schema.Version(last)); err != nil {
		return fmt.Errorf("resume at version %d: %w", v, err)
	}
	s.compute.params.commit(v)
	s.batch.Store(uint64(v))
	return nil
}
