package shard

import (
	"gradbus/schema"
	"gradbus/shard/round"
)

// Contributor is a trainer and its lanes: [First, First+Count).
type Contributor = round.Contributor

// Payload is the memory that a frame lies in, and a lease of it.
type Payload = round.Payload

// bytes is what a contribution takes of the budget for open rounds.
func (s *Shard) bytes(contributor int, v *schema.View) int64 {
	if s.config.Contributors[contributor].Member == s.config.Own {
		return 0
	}
	return int64(len(v.Bytes()))
}

// checkStaged refuses what the budget for open rounds has no room for.
func (s *Shard) checkStaged(bytes int64) *refusal {
	if held := s.held.Bytes(); held+bytes > s.config.StagedBytesMax {
		return schema.Refuse(schema.ReasonOverBudget, "%d bytes: %d of the %d bytes for open rounds are in use; %s",
			bytes, held, s.config.StagedBytesMax, s.config.Advice)
	}
	return nil
}
