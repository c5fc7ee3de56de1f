package shard

import (
	"errors"
	"strings"

	"gradbus/schema"
	"gradbus/shard/state"
)

// stopOnNonFinite runs a step that may close rounds, of the frame of a contributor; -1: of none's. Where the shard
// stays readable, the first value that is not finite, in a contribution or in what is computed of several, refuses that
// contribution and all later ones, and no round closes any more. So the rows stay those of the last version whose
// round over rows has closed here: lookups and scans go on. All contributors are told, since those that have
// contributed wait for results that will never come; Step tells the frame's own.
func (s *Shard) stopOnNonFinite(contributor int, h *schema.Head, step func() (*refusal, error)) (*refusal, error) {
	if s.stopped != nil {
		return s.stopped, nil
	}
	refused, err := step()
	if !s.config.StaysReadable || refused == nil && err == nil {
		return refused, err
	}
	if _, computed := errors.AsType[*state.NonFiniteError](err); computed {
		prefix := schema.ReasonNonFinite.String() + ": " // which the reason says already
		refused, err = schema.Refuse(schema.ReasonNonFinite, "%s", strings.Replace(err.Error(), prefix, "", 1)), nil
	}
	if err != nil || refused.Reason != schema.ReasonNonFinite {
		return refused, err
	}
	s.stopped = refused
	for i := range s.config.Contributors {
		if i != contributor {
			told := *h
			told.Generation = s.since[i]
			s.outputRefusal(s.config.Contributors[i].Member, told, refused)
		}
	}
	return refused, nil
}
