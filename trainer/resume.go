package trainer

import (
	"context"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/trainer/internal/exchange"
)

// enter begins with the version that the coordinator said.
func (s *membership) enter(ctx context.Context) error {
	if s.joined.Version > 0 {
		return s.resume(ctx)
	}
	return s.assign(ctx)
}

// resume gets the parameters of the version that the trainer begins with: in a job that was resumed, or in the place of
// a trainer that was lost. Rows come with the first lookup.
func (s *membership) resume(ctx context.Context) (err error) {
	ctx, stop := s.running(ctx)
	defer stop()
	v := s.joined.Version
	if s.place.Plan.Owner == schema.ByTrainers {
		err = s.resumeReplica(ctx, v)
	} else {
		err = s.resumeResults(ctx, v)
	}
	if err != nil {
		return fmt.Errorf("resume at version %d: %w", v, err)
	}
	s.compute.params.commit(v)
	s.batch.Store(uint64(v))
	return nil
}

// resumeResults gets the parameters as the results of the batch before, which all shards keep: they are asked for as
// results are that were lost.
func (s *membership) resumeResults(ctx context.Context, v schema.Version) error {
	last := schema.Batch(v) - 1
	s.compute.params.state.Begin(schema.Version(last))
	s.results.begin(last)
	for _, r := range s.results.sparse {
		if v != s.joined.Resumed {
			break // shards have the results of the batch before
		}
		if err := s.results.over(r.owner, last, round.ResumedWeight); err != nil {
			return err
		}
	}
	s.exchange.do((*exchange.Exchange).Back) // nobody sends them by itself
	return s.awaitResults(ctx, schema.Version(last))
}
