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
		r := pieces{tensor: tensor, rows: rows}
		err = m.eachShard(dir, r.read)
	}
	if err != nil {
		return fmt.Errorf("read checkpoint %s of job %s: %w", m.ID, m.Job.Name, err)
	}
	return nil
}

// pieces reads parts piece by piece, into memory of its own that it uses again.
type pieces struct {
	tensor func(state.Tensor) error
	rows   func(state.Rows) error

	values []float32
	slots  [][]float32
	keys   []uint64
	last   []int64
	pairs  []float32
}

func (r *pieces) read(f *shardFile) error {
	for i := range f.dense {
		d := &f.dense[i]
		for _, s := range d.stretches {
			if err := r.readStretch(f, d, s); err != nil {
				return err
			}
		}
	}
	for i := range f.tables {
		t := &f.tables[i]
		for partition := range schema.Partition(t.spec.Partitions) {
			if err := r.readPartition(f, t, partition); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *pieces) readStretch(f *shardFile, d *denseLayout, s stretch) error {
	most := valuesMax / (1 + len(d.slots))
	for done := 0; done < s.elements; {
		n := min(most, s.elements-done)
		at := s.at + int64(done)
		t := state.Tensor{Name: d.parameter, From: s.from + done, Version: f.version, Steps: f.steps[d.file]}
		var err error
		if t.Values, err = f.elements(d, d.file, at, n, &r.values); err != nil {
			return err
		}
		t.Slots, err = r.readSlots(d.slots, func(s state.SlotShape, memory *[]float32) ([]float32, error) {
			return f.elements(d, slotName(d.file, s.Name), at, n, memory)
		})
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

func (r *pieces) readPartition(f *shardFile, t *tableLayout, partition schema.Partition) error {
	each := t.columns
	for _, s := range t.slots {
		each += s.Width(t.columns)
	}
	if t.marks {
		each += 2
	}
	most := int64(max(1, valuesMax/each))
	for at, end := t.first[partition], t.first[partition+1]; at < end; {
		n := min(most, end-at)
		if err := r.readRows(f, t, partition, at, int(n)); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// readRows reads n rows of a partition, from the one at a place of the part on.
func (r *pieces) readRows(f *shardFile, t *tableLayout, partition schema.Partition, at int64, n int) error {
	rows := state.Rows{Table: t.spec.Name, Partition: partition, Column: t.column, Columns: t.columns, Version: f.version,
		Steps: f.steps[t.file]}
	r.keys = r.keys[:0]
	for i := range n {
		r.keys = append(r.keys, t.keys.Key(partition, uint64(at-t.first[partition])+uint64(i)))
	}
	rows.Keys = r.keys
	var err error
	if rows.Values, err = f.rows(t, t.file, t.columns, at, n, &r.values); err != nil {
		return err
	}
	rows.Slots, err = r.readSlots(t.slots, func(s state.SlotShape, memory *[]float32) ([]float32, error) {
		return f.rows(t, slotName(t.file, s.Name), s.Width(t.columns), at, n, memory)
	})
	if err != nil {
		return err
	}
	if t.marks {
		pairs, err := f.rows(t, t.lastName(), 2, at, n, &r.pairs)
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

// readSlots reads values of every slot, as values does.
func (r *pieces) readSlots(shapes []state.SlotShape, values func(state.SlotShape, *[]float32) ([]float32,
	error)) ([]state.Slot, error) {
	var slots []state.Slot
	for len(r.slots) < len(shapes) {
		r.slots = append(r.slots, nil)
	}
	for i, s := range shapes {
		all, err := values(s, &r.slots[i])
		if err != nil {
			return nil, err
		}
		slots = append(slots, state.Slot{Name: s.Name, Values: all})
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
