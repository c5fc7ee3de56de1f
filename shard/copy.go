package shard

import (
	"fmt"

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

// copier takes copies of a model.
type copier struct {
	job     *schema.Job
	plan    *schema.Plan
	model   *model
	member  schema.Member
	copy    *copying       // of a version; nil where there is none
	copies  state.CopyWish // for files
	mirror  state.CopyWish // for a ps that stands by
	copied  schema.Version // the last that a copy was begun of
	holding bool           // rounds may have stayed open for one
}

// CopyAt asks for a copy of a version, in place of what was asked for before and has not begun. A version that was
// reached before is not copied any more, nor one that is reached while another is copied.
func (c *copier) CopyAt(w state.CopyWish) { c.copies = w }

// beginCopy begins the copy of the version before which every round has closed, and after which none has, where it is
// wanted and no other is being taken. Where each trainer has rounds of its own it is of all as it is: where dense
// parameters are at the version, when one of them begins the batch that is computed on it.
func (c *copier) beginCopy(l *round.Line) {
	if plan := c.plan; !plan.ClockOf(schema.ByShards).Common() {
		if plan.Moments() || schema.Version(l.Batch()) >= c.copies.At {
			c.copyNow()
		}
		return
	}
	v, w, mirror := schema.Version(l.Done()), &c.copies, false
	if v != w.At {
		w, mirror = &c.mirror, true
	}
	if v != w.At || !c.copyable(l, v) || c.copy != nil && (mirror || !c.copy.mirror) {
		return
	}
	c.EndCopy()
	c.copied = v
	c.copy = &copying{state.NewVersionCopy(*w, c.model.dense, c.job.Tables, c.model.tables), mirror}
}

// copyNow begins a copy of all as it is, if one is wanted that was not taken.
func (c *copier) copyNow() {
	if w := c.copies; w.At > c.copied && c.copy == nil {
		w.Moment, c.copied = true, w.At
		c.copy = &copying{state.NewVersionCopy(w, c.model.dense, c.job.Tables, c.model.tables), false}
	}
}

// copyable reports whether what is here is at a version or has yet to come to it, and was not copied before.
func (c *copier) copyable(l *round.Line, v schema.Version) bool {
	return v > c.copied && v > c.job.StartVersion() && l.Untouched(schema.Batch(v))
}

// holds reports whether a round of batch b stays open, though its lanes are there, since a version is to be copied that
// not all is at.
func (c *copier) holds(l *round.Line, b schema.Batch) bool {
	at := schema.Batch(c.copies.At)
	held := l.Ahead > 0 && b >= at && l.Done() < at && c.copy == nil && c.copyable(l, c.copies.At)
	c.holding = c.holding || held
	return held
}

// Copying is the version that is being copied for files.
func (c *copier) Copying() (v schema.Version, ok bool) {
	if c.copy == nil || c.copy.mirror {
		return 0, false
	}
	return c.copy.Of().At, true
}

// Mirroring is the version that is being copied for a ps that stands by.
func (c *copier) Mirroring() (v schema.Version, ok bool) {
	if c.copy == nil || !c.copy.mirror {
		return 0, false
	}
	return c.copy.Of().At, true
}

// NextPiece gives the next piece of the copy that is being taken: see state.VersionCopy.Next. After the last, and after
// an error, EndCopy is to be called.
func (c *copier) NextPiece(valuesMax int) (p state.CopyPiece, more bool, err error) {
	if p, more, err = c.copy.Next(valuesMax); err != nil {
		err = fmt.Errorf("version %d of %s: %w", c.copy.Of().At, c.member, err)
	}
	return p, more, err
}

// limitCopy ends a copy that holds more than it may, so that no step adds to that.
func (c *copier) limitCopy() {
	if c.copy != nil {
		c.copy.Limit()
	}
}

// EndCopy ends the copy that is being taken, if any, whether or not it is whole.
func (c *copier) EndCopy() {
	if c.copy != nil {
		c.copy.Close()
		c.copy = nil
	}
}
