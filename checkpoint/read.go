package checkpoint

import (
	"fmt"

	"gradbus/schema"
	"gradbus/shard/state"
)

// valuesMax is how many values a piece has at most, slots and marks counted, unless one row has more: 1 MiB of them.
const valuesMax = 1 << 18

// Read gives all pieces of all parts, shard by shard, for state.DenseRestore.Tensor and state.RowsRestore.Rows. What a
// piece holds is valid until the call returns; an error of a call ends the reading and is returned. Sizes are looked
// at, and checksums are not: Verify or Newest has done that.
//
//	err := m.Read(dir, restore.Tensor, func(r state.Rows) error { return tables[r.Table].Rows(r) })
func (m *Manifest) Read(dir string, tensor func(state.Tensor) error, rows func(state.Rows) error) error {
	err := m.check()
	if err == nil {
		r := pieces{version: m.ID.Version, tensor: tensor, rows: rows}
		err = m.eachPart(dir, func(_ int, p *partFile) error { return r.read(p) })
	}
	if err != nil {
		return fmt.Errorf("read checkpoint %s of job %s: %w", m.ID, m.Job.Name, err)
	}
	return nil
}

// pieces reads parts piece by piece, into memory of its own that it uses again.
type pieces struct {
	version schema.Version
	tensor  func(state.Tensor) error
	rows    func(state.Rows) error

	values []float32
	slots  [][]float32
	keys   []uint64
	last   []int64
	pairs  []float32
}

func (r *pieces) read(p *partFile) error {
	for i := range p.layout.dense {
		d := &p.layout.dense[i]
		for _, s := range d.stretches {
			if err := r.readStretch(p, d, s); err != nil {
				return err
			}
		}
	}
	for i := range p.layout.tables {
		t := &p.layout.tables[i]
		for partition := range schema.Partition(t.spec.Partitions) {
			if err := r.readPartition(p, t, partition); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *pieces) readStretch(p *partFile, d *denseLayout, s stretch) error {
	most := valuesMax / (1 + len(d.slots))
	for done := 0; done < s.elements; {
		n := min(most, s.elements-done)
		at := s.at + int64(done)
		t := state.Tensor{Name: d.parameter, From: s.from + done, Version: r.version, Steps: p.steps[d.name()]}
		var err error
		if t.Values, err = read(p, d.name(), at, n, &r.values); err != nil {
			return err
		}
		t.Slots, err = r.readSlots(p, d.name(), d.slots, func(state.SlotShape) (int64, int) { return at, n })
		if err != nil {
			return err
		}
		if err := r.tensor(t); err != nil {
			return err
		}
		done += n
	}
	return nil
}

func (r *pieces) readPartition(p *partFile, t *tableLayout, partition schema.Partition) error {
	each := t.columns
	for _, s := range t.slots {
		each += t.width(s)
	}
	if t.marks {
		each += 2
	}
	most := int64(max(1, valuesMax/each))
	for at, end := t.first[partition], t.first[partition+1]; at < end; {
		n := min(most, end-at)
		if err := r.readRows(p, t, partition, at, int(n)); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// readRows reads n rows of a partition, from the one at a place of the part on.
func (r *pieces) readRows(p *partFile, t *tableLayout, partition schema.Partition, at int64, n int) error {
	rows := state.Rows{Table: t.spec.Name, Partition: partition, Column: t.column, Columns: t.columns, Version: r.version,
		Steps: p.steps[t.name()]}
	r.keys = r.keys[:0]
	for i := range n {
		r.keys = append(r.keys, t.keys.Key(partition, uint64(at-t.first[partition])+uint64(i)))
	}
	rows.Keys = r.keys
	var err error
	if rows.Values, err = read(p, t.name(), at*int64(t.columns), n*t.columns, &r.values); err != nil {
		return err
	}
	rows.Slots, err = r.readSlots(p, t.name(), t.slots, func(s state.SlotShape) (int64, int) {
		return at * int64(t.width(s)), n * t.width(s)
	})
	if err != nil {
		return err
	}
	if t.marks {
		pairs, err := read(p, t.lastName(), 2*at, 2*n, &r.pairs)
		if err != nil {
			return err
		}
		if r.last, err = join(r.last[:0], pairs); err != nil {
			return err
		}
		rows.Last = r.last
	}
	return r.rows(rows)
}

// readSlots reads values of every slot; where says which.
func (r *pieces) readSlots(p *partFile, tensor string, shapes []state.SlotShape,
	where func(state.SlotShape) (first int64, n int)) ([]state.Slot, error) {
	var slots []state.Slot
	for len(r.slots) < len(shapes) {
		r.slots = append(r.slots, nil)
	}
	for i, s := range shapes {
		first, n := where(s)
		values, err := read(p, slotName(tensor, s.Name), first, n, &r.slots[i])
		if err != nil {
			return nil, err
		}
		slots = append(slots, state.Slot{Name: s.Name, Values: values})
	}
	return slots, nil
}

// read reads n values of a tensor into memory that is made longer where it is too short.
func read(p *partFile, name string, first int64, n int, memory *[]float32) ([]float32, error) {
	if cap(*memory) < n {
		*memory = make([]float32, n)
	}
	values := (*memory)[:n]
	if err := p.ReadAt(name, first, values); err != nil {
		return nil, judged(err)
	}
	return values, nil
}
