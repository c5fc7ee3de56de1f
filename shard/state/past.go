package state

import "gradbus/internal/planted"

// past is the rows that the last Commit has changed, as they were before it.
type past struct {
	places []int64
	rows   []float32 // [len(places), dim]
}

// keepPast moves staged rows into the table, and keeps what they take the place of.
func (t *Array) keepPast() {
	st, p, dim := &t.staged, &t.past, t.dim
	p.places = append(p.places[:0], st.places...)
	p.rows = grown(p.rows, len(st.rows))
	for i, at := range st.places {
		row, from := t.rows[int(at)*dim:int(at)*dim+dim], i*dim
		copy(p.rows[from:from+dim], row)
		copy(row, st.rows[from:from+dim])
	}
}

// exchange puts rows in the place of those at places, which are distinct, and those in theirs.
func (t *Array) exchange(places []int64, rows []float32) {
	for i, at := range places {
		here, there := t.row(int(at)), rows[i*t.dim:(i+1)*t.dim]
		for k := range here {
			here[k], there[k] = there[k], here[k]
		}
	}
}

// Past implements Table.
func (t *Array) Past(read func() error) error {
	if planted.Is(planted.ReadChangedRows) {
		return read()
	}
	t.exchange(t.past.places, t.past.rows)
	defer t.exchange(t.past.places, t.past.rows)
	return read()
}
