package checkpoint

import (
	"fmt"
	"slices"
	"sort"

	"gradbus/schema"
)

// shardFile is what a shard has had at the version of a checkpoint: a full part, and those of increments over it.
type shardFile struct {
	*layout
	version schema.Version
	files   []*partFile       // the full one, then the increments, oldest first
	steps   map[string]uint64 // by layout.names

	over []float32 // scratch
}

// openShard opens what a shard has. It holds 64 KiB for each file, and 8 bytes for 128 rows of increments.
func (m *Manifest) openShard(dir string, place *schema.Placement, shard int) (*shardFile, error) {
	f := &shardFile{layout: newLayout(m.Job, place, shard), version: m.ID.Version, steps: map[string]uint64{}}
	for _, link := range m.Chain() {
		p, err := link.openPart(dir, f.layout, shard)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.files = append(f.files, p)
		for name, n := range p.steps { // what an increment does not name has had none since
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

// eachShard opens what one shard after the other has. All of a tensor's parts must have had as many steps. Where each
// is of a moment of its own, all count as if they had had as many as the one with most.
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

// elements reads n elements of a parameter's tensor from a place of the full part on, or of a slot, as they are with
// all increments. They lie in memory, which is made longer where it is too short.
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

// rows reads n rows of a table's tensor, or of a slot or the marks, of so many values each, likewise.
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

// rowIndex is where the rows of an increment lie in a full part, ascending. Of each 128 it holds the first.
type rowIndex struct {
	file   *partFile
	table  *tableLayout
	n      int64
	fences []int64

	from, end int64 // of the newest call of within, which is repeated for each tensor
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

// read reads where rows [first, end) of the increment lie.
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

// within is the rows that lie at places [from, end), and which of the increment the first of them is. They are valid
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
