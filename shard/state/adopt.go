package state

// Adopt makes what another table of the same spec and rows has that of this one, without a copy: rows, slots, marks,
// the version, the one before it, and when rows were changed. An open round there is undone. The other table has
// nothing then, and must be closed. Adopts has said that it may be.
func (t *Array) Adopt(from *Array) {
	t.Close()
	from.Rollback()
	t.undo.reset()
	t.stepping = false
	t.version, t.steps, t.free, t.initial = from.version, from.steps, from.free, from.initial
	t.rows, t.slots, t.stepped, t.last = from.rows, from.slots, from.stepped, from.last
	t.touched, t.back = from.touched, from.back
	from.free, from.copying = nil, nil
	from.Close()
	from.back, from.touched = back{}, touched{}
}

// Adopts reports whether one may make what the other has its own: not where memory of the two is of different backends,
// or one of them notes when rows change and the other does not.
func (t *Array) Adopts(from *Array) bool {
	return t.config.Backend == from.config.Backend && t.config.Touches == from.config.Touches &&
		t.config.GoesBack == from.config.GoesBack
}
