package state

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gradbus/schema"
)

// A snapshot is what an owner has at one version, piece by piece, each by the name of its tensor: a writer streams it,
// and nothing of it says how tensors were cut. Dense.Copy and Table.Copy give pieces in a fixed order while later
// versions are made: chunks as they are numbered, partitions and keys ascending. A restore takes pieces in any order
// and leaves out those of elsewhere, so all pieces of a job can be given to every owner, however many there are now;
// Done says whether anything was missing.

// Tensor is a stretch of a dense parameter.
type Tensor struct {
	Name    string
	From    int // its first element
	Values  []float32
	Slots   []Slot // in the optimizer's order, each as long as Values
	Version schema.Version
	Steps   uint64 // that were done by then; the first is yet to come where there are none
}

// Rows are rows of a partition of a table, or columns of them.
type Rows struct {
	Table     string
	Partition schema.Partition
	Column    int      // the first
	Columns   int      // how many
	Keys      []uint64 // ascending
	Values    []float32
	Slots     []Slot // [len(Keys), Columns], or [len(Keys)] of a slot that has one value a row
	// Last says of each row which steps it has had, where the optimizer asks: 0 for none, else its last one where steps
	// are made up for (Optimizer.Exact), else 1.
	Last    []int64
	Version schema.Version
	Steps   uint64 // of the table that were done by then
}

// Slot is a named state of an optimizer.
type Slot struct {
	Name   string
	Values []float32
}

// Newest stands for the newest version of each chunk or table, where they need not have one in common.
const Newest = schema.Version(math.MaxUint64)

// Errors of snapshots and restores.
var (
	// ErrVersion says that a version is not kept: it is to come, or a later one has taken its memory. Nothing changed.
	ErrVersion = errors.New("version is not kept")
	// ErrSnapshot says that a piece does not fit what it is restored to, or that some are missing. What was restored by
	// then stays, and the owner must not be used.
	ErrSnapshot = errors.New("snapshot does not fit")
)

// beyond is how many more steps there were than a version has batches: of a moment, where each trainer has made steps
// by itself (CopyWish.Moment). Else there are none.
func beyond(v schema.Version, steps uint64) schema.Version {
	return max(v, schema.Version(steps)) - v
}

// Snapshot holds pieces in memory of their own. Its methods are what Dense.Snapshot and Array.Snapshot call.
type Snapshot struct {
	Tensors []Tensor
	Rows    []Rows
}

// AddTensor keeps a copy.
func (s *Snapshot) AddTensor(t Tensor) error {
	s.Tensors = append(s.Tensors, Cloned([]Tensor{t})...)
	return nil
}

// Cloned are tensors in memory of their own.
func Cloned(tensors []Tensor) []Tensor {
	all := slices.Clone(tensors)
	for i, t := range all {
		all[i].Values, all[i].Slots = slices.Clone(t.Values), cloned(t.Slots)
	}
	return all
}

// AddRows keeps a copy.
func (s *Snapshot) AddRows(r Rows) error {
	r.Keys, r.Values, r.Slots, r.Last = slices.Clone(r.Keys), slices.Clone(r.Values), cloned(r.Slots), slices.Clone(r.Last)
	s.Rows = append(s.Rows, r)
	return nil
}

func cloned(slots []Slot) []Slot {
	all := make([]Slot, len(slots))
	for i, s := range slots {
		all[i] = Slot{s.Name, slices.Clone(s.Values)}
	}
	return all
}

// checkSlots compares the slots of a piece with those of a rule. size is how many values a slot has.
func (r *rule) checkSlots(slots []Slot, size func(slotShape) int) error {
	if len(slots) != len(r.slots) {
		return fmt.Errorf("%w: %d slots, %s has %d", ErrSnapshot, len(slots), r.named.Kind, len(r.slots))
	}
	for i, s := range r.slots {
		if slots[i].Name != s.name || len(slots[i].Values) != size(s) {
			return fmt.Errorf("%w: slot %q of %d values, want %q of %d", ErrSnapshot, slots[i].Name, len(slots[i].Values),
				s.name, size(s))
		}
	}
	return nil
}
