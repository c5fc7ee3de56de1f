package state

// back is what the last Commit has changed, as it was before.
type back struct {
	undoRecords
	there bool
	steps uint64
}

// keepBack keeps the records of the open round.
func (t *Array) keepBack() {
	b := &t.back
	b.there, b.steps = true, t.steps
	b.undoRecords, t.undo.open = t.undo.open, b.undoRecords
	t.undo.open.cut()
}

// GoesBack reports whether the version before is there: Back makes it that of the table. It never is where rows make up
// for steps, as reading them changes them.
func (t *Array) GoesBack() bool { return t.back.there && t.last == nil }

// Back undoes the last Commit, and an open round. The table must go back: see GoesBack.
func (t *Array) Back() {
	t.Rollback()
	b := &t.back
	b.there = false
	t.change(b.places)
	t.put(b.places, &b.rowState, true)
	t.steps, t.version = b.steps, t.version-1
}
