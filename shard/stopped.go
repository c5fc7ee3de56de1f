package shard

import (
	"errors"
	"strings"

	"gradbus/schema"
	"gradbus/shard/state"
)

// stopOnNonFinite steps a contribution. Where the shard stays readable, the first value that is not finite, in a
// contribution or in what is computed of several, refuses that contribution and all later ones, so that the rows stay
// those of the last version whose round over rows has closed here: lookups and scans go on. A value computed of several
// trainers' gradients is told to all of them, since each of them waits for it.
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
		for i := range s.config.Contributors {
			if i != contributor {
				s.outputRefusal(s.config.Contributors[i].Member, *h, refused)
			}
		}
	}
	if err == nil && refused.Reason == schema.ReasonNonFinite {
		s.stopped = refused
	}
	return refused, err
}
