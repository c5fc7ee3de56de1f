package trainer

import (
	"context"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/round"
)

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
		if err := s.results.over(r.owner, last, round.ResumedWeight); err != nil {
			return fmt.Errorf("resume at version %d: %w", v, err)
		}
	}
	if err := s.awaitResults(ctx, schema.Version(last)); err != nil {
		return fmt.Errorf("resume at version %d: %w", v, err)
	}
	s.compute.params.commit(v)
	s.batch.Store(uint64(v))
	return nil
}
