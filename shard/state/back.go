package state

// back is what the last Commit has changed, as it was before: of rows, of slots, and of what is known of steps.
type back struct {
	there   bool
	places  []int64
	rows    []float32   // [len(places), dim]
	slots   [][]float32 // [rule.slots][len(places), width]
	stepped []uint8     // [len(places)] where the table has it
	steps   uint64
}

// keepBack keeps what the staged rows take the place of.
func (t *Array) keepBack() {
	b, n := &t.back, len(t.staged.places)
	b.there, b.steps = true, t.steps
	b.places = append(b.places[:0], t.staged.places...)
	b.rows = grown(b.rows, n*t.dim)
	if b.slots == nil {
		b.slots = make([][]float32, len(t.slots))
	}
	for k, s := range t.rule.slots {
		b.slots[k] = grown(b.slots[k], n*s.width(t.dim))
	}
	b.stepped = grown(b.stepped, n)
	for i, at := range b.places {
		copy(b.rows[i*t.dim:(i+1)*t.dim], t.row(int(at)))
		for k, s := range t.rule.slots {
			width := s.width(t.dim)
			copy(b.slots[k][i*width:(i+1)*width], t.slots[k][int(at)*width:])
		}
		if t.stepped != nil {
			b.stepped[i] = t.stepped[at]
		}
	}
}

// GoesBack reports whether the version before is there: Back makes it that of the table. It never is where rows make up
// for steps, as reading them changes them.
func (t *Array) GoesBack() bool { return t.back.there && t.last == nil }

// Back undoes the last Commit, and what is staged. The table must go back: see GoesBack.
func (t *Array) Back() {
	b := &t.back
	b.there = false
	t.cut(0)
	t.staged.step = false
	t.change(b.places)
	for i, at := range b.places {
		copy(t.row(int(at)), b.rows[i*t.dim:(i+1)*t.dim])
		for k, s := range t.rule.slots {
			width := s.width(t.dim)
			copy(t.slots[k][int(at)*width:(int(at)+1)*width], b.slots[k][i*width:])
		}
		if t.stepped != nil {
			t.stepped[at] = b.stepped[i]
		}
	}
	t.steps, t.version = b.steps, t.version-1
}
