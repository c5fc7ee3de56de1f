package shard

import (
	"slices"

	"gradbus/schema"
)

// A trainer's place is taken over when it is lost: by another trainer or a new process, which computes the batch
// under way anew, and all after it. A lane's gradient is a function of job, version and lane. So contributions of
// before stay, and the same ones of after are repeats; only a sparse contribution of which chunks are missing is
// dropped, so that no contribution is of two. Nobody else notices: nodes, sequence numbers and windows of the
// others stay what they are.
//
// The batch under way is computed on rows of its version also where its round over rows has closed: see
// state.Table.ReadPrevious.

// TakeOver says that a contributor's place was taken in a generation: frames of an earlier one are refused from
// here on.
func (s *Shard) TakeOver(contributor int, g schema.Generation) {
	s.since[contributor] = g
	if l := s.clock.Line(contributor).Sparse; l != nil {
		l.Forget(contributor)
	}
	s.answering = slices.DeleteFunc(s.answering, func(due int) bool { return due == contributor })
	s.discard(&s.parked[contributor])
}

// Since is the generation in which a contributor's place was taken.
func (s *Shard) Since(contributor int) schema.Generation { return s.since[contributor] }

// reachesPrevious reports whether a read is of the version before the last round over rows, by a trainer whose place
// was taken over, or of a job that stays readable: there another shard may have stopped before that round.
func (s *Shard) reachesPrevious(contributor int, b schema.Batch) bool {
	l := s.clock.Line(contributor).Sparse
	may := s.since[contributor] > s.config.Generation || s.config.StaysReadable
	return s.config.Undo && may && l != nil && b+1 == l.Closed()
}

// readPrevious reads while all rows are of the version before.
func (s *Shard) readPrevious(read func() error) error {
	for _, t := range s.tables {
		if t == nil {
			continue
		}
		inner := read
		read = func() error { return t.ReadPrevious(inner) }
	}
	return read()
}
