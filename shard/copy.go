package shard

import (
	"fmt"
	"maps"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// A copy is what the shard has at one version, with what its optimizers keep, taken piece by piece while later batches
// are under way. It begins with the first frame of the batch that is computed on the version, which proves that the
// version is complete everywhere and comes before any round of the batch is over: rows are of the version then, and
// every chunk has it. So a version that all shards copy is one version. A step waits for the copy of what it is about
// to change at most.
//
// In async and grouped there is no common version: a copy is of what is here when the first frame comes after it was
// asked for.

// A copy is for files, or for a ps that stands by (MirrorAt). There is one at a time, and the first goes before the
// second, which is asked for again soon.

// copying is a copy that is being taken.
type copying struct {
	*state.VersionCopy
	mirror bool // it is for a ps that stands by
}

// CopyAt asks for a copy of a version, in place of what was asked for before and has not begun. A version that was
// reached before is not copied any more, nor one that is reached while another is copied.
func (s *Shard) CopyAt(w state.CopyWish) { s.copies = w }

// MirrorAt asks for a copy of a version for a ps that stands by. It reports whether one will begin, unless one for
// files is under way then: it does not where the batch that is computed on the version has begun.
func (s *Shard) MirrorAt(w state.CopyWish) bool {
	if s.copy != nil && s.copy.mirror { // of one that was given up
		s.EndCopy()
	}
	if s.Began(w.At) {
		return false
	}
	s.mirror = w
	return true
}

// Began reports whether the batch that is computed on a version, or a later one, has begun here, of all trainers.
func (s *Shard) Began(v schema.Version) bool {
	l := s.clock.Line(0)
	at := schema.Version(l.Batch())
	return at > v || at == v && l.Open() < l.Rounds()
}

// enter opens the round of a contribution, and begins the copy of the version that its batch is computed on.
func (s *Shard) enter(e round.Entry) {
	s.clock.Enter(e)
	s.beginCopy(e.Line)
}

// beginCopy begins the copy of the version before which every round has closed, and after which none has, where it is
// wanted and no other is being taken. Where each trainer has rounds of its own it is of all as it is: where dense
// parameters are at the version, when one of them begins the batch that is computed on it.
func (s *Shard) beginCopy(l *round.Line) {
	if plan := s.config.Placement.Plan; !plan.ClockOf(schema.ByShards).Common() {
		if plan.Moments() || schema.Version(l.Batch()) >= s.copies.At {
			s.copyNow()
		}
		return
	}
	v, w, mirror := schema.Version(l.Done()), &s.copies, false
	if v != w.At {
		w, mirror = &s.mirror, true
	}
	if v != w.At || !s.copyable(l, v) || s.copy != nil && (mirror || !s.copy.mirror) {
		return
	}
	s.EndCopy()
	s.copied = v
	s.copy = &copying{state.NewVersionCopy(*w, s.dense, s.config.Job.Tables, s.tables), mirror}
}

// copyNow begins a copy of all as it is, if one is wanted that was not taken.
func (s *Shard) copyNow() {
	if w := s.copies; w.At > s.copied && s.copy == nil {
		w.Moment, s.copied = true, w.At
		s.copy = &copying{state.NewVersionCopy(w, s.dense, s.config.Job.Tables, s.tables), false}
	}
}

// copyable reports whether what is here is at a version or has yet to come to it, and was not copied before.
func (s *Shard) copyable(l *round.Line, v schema.Version) bool {
	return v > s.copied && v > s.config.Job.StartVersion() && l.Untouched(schema.Batch(v))
}

// holds reports whether a round of batch b stays open, though its lanes are there, since a version is to be copied that
// not all is at.
func (s *Shard) holds(l *round.Line, b schema.Batch) bool {
	at := schema.Batch(s.copies.At)
	held := l.Ahead > 0 && b >= at && l.Done() < at && s.copy == nil && s.copyable(l, s.copies.At)
	s.holding = s.holding || held
	return held
}

// closeHeld closes the rounds that have stayed open for a copy, where they may by now.
func (s *Shard) closeHeld(l *round.Line) error {
	if !s.holding {
		return nil
	}
	s.holding = false
	return s.closeAll(l)
}

// Copying is the version that is being copied for files.
func (s *Shard) Copying() (v schema.Version, ok bool) {
	if s.copy == nil || s.copy.mirror {
		return 0, false
	}
	return s.copy.Of().At, true
}

// Mirroring is the version that is being copied for a ps that stands by.
func (s *Shard) Mirroring() (v schema.Version, ok bool) {
	if s.copy == nil || !s.copy.mirror {
		return 0, false
	}
	return s.copy.Of().At, true
}

// Touched is what the copy that is being taken was to be, and what may have changed since the earlier version of that.
func (s *Shard) Touched() (state.CopyWish, state.Extent) {
	touched := s.copy.Touched()
	if s.dense == nil {
		others := s.OfTrainers()
		touched.Tensors, touched.Bytes = others.Tensors, touched.Bytes+others.Bytes
		maps.Copy(touched.Rows, others.Rows)
	}
	return s.copy.Of(), touched
}

// NextPiece gives the next piece of the copy that is being taken: see state.VersionCopy.Next. After the last, and after
// an error, EndCopy is to be called.
func (s *Shard) NextPiece(valuesMax int) (p state.CopyPiece, more bool, err error) {
	if p, more, err = s.copy.Next(valuesMax); err != nil {
		err = fmt.Errorf("version %d of %s: %w", s.copy.Of().At, s.member, err)
	}
	return p, more, err
}

// limitCopy ends a copy that holds more than it may, so that no step adds to that.
func (s *Shard) limitCopy() {
	if s.copy != nil {
		s.copy.Limit()
	}
}

// EndCopy ends the copy that is being taken, if any, whether or not it is whole.
func (s *Shard) EndCopy() {
	if s.copy != nil {
		s.copy.Close()
		s.copy = nil
	}
}
