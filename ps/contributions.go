package ps

import (
	"gradbus/round"
	"gradbus/schema"
)

// Host is a trainer and the lanes it hosts: [First, First+Count).
type Host = round.Host

// Payload is the memory that a frame lies in, and a lease of it.
type Payload = round.Payload

// checkStaged refuses what the budget for open rounds has no room for.
func (s *Shard) checkStaged(bytes int64) *refusal {
	if held := s.held.Bytes(); held+bytes > s.stagedMax {
		return schema.Refuse(schema.ReasonOverBudget, "%d bytes: %d of the %d bytes for open rounds are in use; "+
			"raise the server's --staged-mib or send smaller batches", bytes, held, s.stagedMax)
	}
	return nil
}
