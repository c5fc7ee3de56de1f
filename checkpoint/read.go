package checkpoint

import (
	"fmt"
	"slices"
	"sort"

	"gradbus/schema"
	"gradbus/shard/state"
)

// valuesMax bounds the values of a piece, including slots and marks, unless one row has more: 1 MiB.
const valuesMax = 1 << 18

// Read passes all pieces of all parts, shard by shard, to state.DenseRestore.Tensor and state.RowsRestore.Rows. A piece
// is valid until the call returns; an error of a call ends the reading and is returned. Read checks sizes but not
// checksums: Verify or Newest does that.
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

// pieces reads parts piece by piece into memory that it reuses.
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

// readRows reads n rows of a partition, from a place of the part on.
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

// read reads n values of a tensor into memory, which it extends if necessary.
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

// shardFile is the state of a shard at the version of a checkpoint: a full part, and those of increments over it.
type shardFile struct {
	*layout
	version schema.Version
	files   []*partFile       // the full part, then the increments, oldest first
	steps   map[string]uint64 // by layout.names

	over []float32 // scratch
}

// openShard opens the files of a shard. It needs 64 KiB for each file, and 8 bytes for 128 rows of increments.
func (m *Manifest) openShard(dir string, place *schema.Placement, shard int) (*shardFile, error) {
	f := &shardFile{layout: newLayout(m.Job, place, shard), version: m.ID.Version, steps: map[string]uint64{}}
	for _, link := range m.Chain() {
		p, err := link.openPart(dir, f.layout, shard)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.files = append(f.files, p)
		for name, n := range p.steps { // tensors that an increment does not name had no further steps
			f.steps[name] = n
		}
	}
	return f, nil
}

// Close closes the files.
func (f *shardFile) Close() {
	for _, p := range f.files {
		p.Close()
	}
}

// eachShard opens the files of one shard after the other. All parts of a tensor must have the same number of steps. In
// a fuzzy checkpoint all count with the largest number.
func (m *Manifest) eachShard(dir string, use func(f *shardFile) error) error {
	place, steps, most := placementOf(m.Job, m.Shards), agreement{}, map[string]uint64{}
	if m.Job.Moments() {
		err := m.eachPart(dir, func(_ int, p *partFile) error {
			for name, n := range p.steps {
				most[name] = max(most[name], n)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for shard := range m.Parts {
		f, err := m.openShard(dir, place, shard)
		if err != nil {
			return err
		}
		for name := range f.steps {
			f.steps[name] = max(f.steps[name], most[name])
		}
		if err = steps.agree(shard, f.steps); err == nil {
			err = use(f)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// elements reads n elements of a parameter's tensor, or of a slot, from a place of the full part on, with all
// increments applied. The result is in memory, which is extended if necessary.
func (f *shardFile) elements(d *denseLayout, tensor string, place int64, n int, memory *[]float32) ([]float32, error) {
	values, err := read(f.files[0], tensor, place, n, memory)
	if err != nil {
		return nil, err
	}
	end := place + int64(n)
	for _, p := range f.files[1:] {
		for _, r := range p.content.inc.runs[d.file] {
			lo, hi := max(place, r.place), min(end, r.place+int64(r.elements))
			if lo >= hi {
				continue
			}
			if err := p.ReadAt(tensor, r.at+lo-r.place, values[lo-place:hi-place]); err != nil {
				return nil, judged(err)
			}
		}
	}
	return values, nil
}

// rows reads n rows of a table's tensor, or of a slot or the marks, with a number of values each, in the same way.
func (f *shardFile) rows(t *tableLayout, tensor string, width int, place int64, n int, memory *[]float32) ([]float32,
	error) {
	values, err := read(f.files[0], tensor, place*int64(width), n*width, memory)
	if err != nil {
		return nil, err
	}
	for _, p := range f.files[1:] {
		x := p.indices[t.file]
		if x == nil {
			continue
		}
		first, places, err := x.within(place, place+int64(n))
		if err != nil {
			return nil, err
		}
		if len(places) == 0 {
			continue
		}
		over, err := read(p, tensor, first*int64(width), len(places)*width, &f.over)
		if err != nil {
			return nil, err
		}
		for i, at := range places {
			copy(values[int(at-place)*width:], over[i*width:(i+1)*width])
		}
	}
	return values, nil
}

// rowIndex maps the rows of an increment to their ascending places in a full part. It stores the first of every 128.
type rowIndex struct {
	file   *partFile
	table  *tableLayout
	n      int64
	fences []int64

	from, end int64 // of the last call of within, which is repeated for each tensor
	first     int64
	places    []int64
	all       []int64
	pairs     []float32
}

const fenceRows = 128

// readKeys reads the keys of all rows of an increment, which must be on the shard and ascend.
func (p *partFile) readKeys() error {
	if p.content.inc == nil {
		return nil
	}
	for i := range p.content.tables {
		t := &p.content.tables[i]
		n := p.content.inc.rows[t.file]
		if n == 0 {
			continue
		}
		x, last := &rowIndex{file: p, table: t, n: n}, int64(-1)
		for at := int64(0); at < n; at += valuesMax / 2 {
			places, err := x.read(at, min(n, at+valuesMax/2))
			if err != nil {
				return err
			}
			for k, place := range places {
				if place <= last {
					return fmt.Errorf("%w: row %d of %s is that of place %d, after place %d", ErrDamaged, at+int64(k), t.file,
						place, last)
				}
				if last = place; (at+int64(k))%fenceRows == 0 {
					x.fences = append(x.fences, place)
				}
			}
		}
		p.indices[t.file] = x
	}
	return nil
}

// read returns the places of rows [first, end) of the increment.
func (x *rowIndex) read(first, end int64) ([]int64, error) {
	pairs, err := read(x.file, x.table.keyName(), 2*first, int(2*(end-first)), &x.pairs)
	if err != nil {
		return nil, err
	}
	if x.all, err = join(x.all[:0], pairs); err != nil {
		return nil, err
	}
	for i, key := range x.all {
		place, ok := x.table.placeOf(uint64(key))
		if !ok {
			return nil, fmt.Errorf("%w: key %d of %s is not on this shard", ErrDamaged, key, x.table.file)
		}
		x.all[i] = place
	}
	return x.all, nil
}

// within returns the rows at places [from, end), and the index in the increment of the first of them. They are valid
// until the next call.
func (x *rowIndex) within(from, end int64) (first int64, places []int64, err error) {
	if x.from == from && x.end == end {
		return x.first, x.places, nil
	}
	lo := int64(max(0, sort.Search(len(x.fences), func(i int) bool { return x.fences[i] > from })-1)) * fenceRows
	hi := min(x.n, int64(sort.Search(len(x.fences), func(i int) bool { return x.fences[i] >= end }))*fenceRows)
	all := x.all[:0]
	if lo < hi {
		if all, err = x.read(lo, hi); err != nil {
			return 0, nil, err
		}
	}
	skip, _ := slices.BinarySearch(all, from)
	stop, _ := slices.BinarySearch(all, end)
	x.from, x.end, x.first, x.places = from, end, lo+int64(skip), all[skip:stop]
	return x.first, x.places, nil
}
