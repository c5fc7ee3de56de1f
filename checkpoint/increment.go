package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"gradbus/internal/safetensors"
	"gradbus/shard/state"
)

// content is what a part has of its layout: all of it, or the increment.
type content struct {
	*layout
	inc *increment // nil of a full part
}

// increment is what the part of an increment has. What has changed since the base is in it; the rest need not be.
type increment struct {
	base ID
	runs map[string][]run // by denseLayout.name, ascending; none where there are no elements
	rows map[string]int64 // by tableLayout.name: how many
}

// run is consecutive elements of a parameter that an increment has.
type run struct {
	from, elements int
	place          int64 // of the first, in the tensor of a full part
	at             int64 // of the first, in that of the increment
}

// newIncrement is the one that has what was touched.
func newIncrement(l *layout, base ID, e *state.Extent) (*increment, error) {
	inc := &increment{base: base, runs: map[string][]run{}, rows: map[string]int64{}}
	for _, t := range e.Tensors {
		d, err := l.parameter(t.Name)
		if err == nil {
			err = inc.add(l, d, t.From, t.Elements)
		}
		if err != nil {
			return nil, fmt.Errorf("elements %d to %d of parameter %q: %w", t.From, t.From+t.Elements-1, t.Name, err)
		}
	}
	left := 0
	for _, n := range e.Rows {
		if n != 0 {
			left++
		}
	}
	for i := range l.tables {
		t := &l.tables[i]
		n := e.Rows[t.spec.Name]
		if n < 0 || n > t.rows() {
			return nil, fmt.Errorf("%d rows of table %q: it has %d on shard %d", n, t.spec.Name, t.rows(), l.shard)
		}
		if inc.rows[t.file] = n; n > 0 {
			left--
		}
	}
	if left > 0 {
		return nil, fmt.Errorf("rows of %d tables that are not on shard %d", left, l.shard)
	}
	return inc, inc.order()
}

func (inc *increment) add(l *layout, d *denseLayout, from, elements int) error {
	s, ok := d.stretch(from, elements)
	if !ok || elements < 1 {
		return fmt.Errorf("not all of them are on shard %d", l.shard)
	}
	inc.runs[d.file] = append(inc.runs[d.file], run{from: from, elements: elements, place: s.at + int64(from-s.from)})
	return nil
}

// order sorts runs, joins those that touch, and says where each lies.
func (inc *increment) order() error {
	for name, all := range inc.runs {
		slices.SortFunc(all, func(a, b run) int { return cmp.Compare(a.from, b.from) })
		joined := all[:0]
		for _, r := range all {
			last := len(joined) - 1
			switch {
			case last >= 0 && r.from < joined[last].from+joined[last].elements:
				return fmt.Errorf("element %d of %s comes twice", r.from, name)
			case last >= 0 && r.from == joined[last].from+joined[last].elements:
				joined[last].elements += r.elements
				continue
			case last >= 0:
				r.at = joined[last].at + int64(joined[last].elements)
			}
			joined = append(joined, r)
		}
		inc.runs[name] = joined
	}
	return nil
}

// elements is how many of a parameter are in the increment.
func (inc *increment) elements(d *denseLayout) (n int64) {
	for _, r := range inc.runs[d.file] {
		n += int64(r.elements)
	}
	return n
}

// at is where the first of n elements lies in the part.
func (c content) at(d *denseLayout, from, n int) (int64, error) {
	s, ok := d.stretch(from, n)
	if !ok {
		return 0, fmt.Errorf("not all of them are on shard %d", c.shard)
	}
	if c.inc == nil {
		return s.at + int64(from-s.from), nil
	}
	for _, r := range c.inc.runs[d.file] {
		if from >= r.from && from+n <= r.from+r.elements {
			return r.at + int64(from-r.from), nil
		}
	}
	return 0, errors.New("not all of them were touched")
}

// encodeRuns and decodeRuns are what the metadata have of runs: of each parameter pairs of the first element and how
// many there are.
func (inc *increment) encodeRuns() string {
	pairs := map[string][][2]int{}
	for name, runs := range inc.runs {
		for _, r := range runs {
			pairs[name] = append(pairs[name], [2]int{r.from, r.elements})
		}
	}
	b, err := json.Marshal(pairs)
	if err != nil {
		panic(fmt.Sprintf("checkpoint: encode runs: %v", err)) // numbers by strings always encode
	}
	return string(b)
}

func (inc *increment) decodeRuns(l *layout, text string) error {
	var pairs map[string][][2]int
	if err := decodeStrict([]byte(text), &pairs); err != nil {
		return fmt.Errorf("metadata %s: %w", runsEntry, err)
	}
	for i := range l.dense {
		d := &l.dense[i]
		for _, p := range pairs[d.file] {
			if err := inc.add(l, d, p[0], p[1]); err != nil {
				return fmt.Errorf("metadata %s: elements from %d on, %d of them, of %s: %w", runsEntry, p[0], p[1], d.file, err)
			}
		}
	}
	return inc.order()
}

// tensors are those of the part's file.
func (c content) tensors() (all []safetensors.Tensor) {
	if c.inc == nil {
		return c.layout.tensors()
	}
	for i := range c.dense {
		if d := &c.dense[i]; len(c.inc.runs[d.file]) > 0 {
			all = append(all, d.tensors(c.inc.elements(d))...)
		}
	}
	for i := range c.tables {
		t := &c.tables[i]
		if rows := int(c.inc.rows[t.file]); rows > 0 {
			all = append(append(all, t.tensors(rows)...), safetensors.Tensor{Name: t.keyName(), Shape: []int{rows, 2}})
		}
	}
	return all
}

// names are those of parameters and tables whose steps the part says, with how many elements or rows it has of each.
func (c content) names() map[string]int64 {
	if c.inc == nil {
		return c.layout.names()
	}
	names := map[string]int64{}
	for i := range c.dense {
		if d := &c.dense[i]; len(c.inc.runs[d.file]) > 0 {
			names[d.file] = c.inc.elements(d)
		}
	}
	for i := range c.tables {
		names[c.tables[i].file] = c.inc.rows[c.tables[i].file]
	}
	return names
}

// keyName is where an increment has the keys of its rows; no optimizer has a slot of that name.
func (t *tableLayout) keyName() string { return slotName(t.file, "key") }

// placeOf is where the row of a key lies in a full part; false where it is not on the shard.
func (t *tableLayout) placeOf(key uint64) (int64, bool) {
	if key >= t.spec.Rows {
		return 0, false
	}
	p, position := t.keys.At(key)
	return t.first[p] + int64(position), t.first[p] < t.first[p+1]
}

// parameter is what of a parameter is on the shard.
func (l *layout) parameter(name string) (*denseLayout, error) {
	for i := range l.dense {
		if l.dense[i].parameter == name {
			return &l.dense[i], nil
		}
	}
	return nil, fmt.Errorf("shard %d has none of it", l.shard)
}

// tableOf is what of a table is on the shard.
func (l *layout) tableOf(name string) (*tableLayout, error) {
	for i := range l.tables {
		if l.tables[i].spec.Name == name {
			return &l.tables[i], nil
		}
	}
	return nil, fmt.Errorf("shard %d has none of it", l.shard)
}
