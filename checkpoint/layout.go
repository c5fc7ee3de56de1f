package checkpoint

import (
	"cmp"
	"slices"
	"strings"

	"gradbus/internal/safetensors"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/shard/state"
)

// layout is what the part of one shard holds, and where. It follows from the job's manifest, the number of shards and
// the shard, so writer and reader agree on it. Read only once made.
type layout struct {
	shard  int
	dense  []denseLayout // in the manifest's order
	tables []tableLayout // likewise
}

// denseLayout is the elements of a parameter that are on the shard, or a parameter of a module that the shard hosts.
type denseLayout struct {
	parameter string // as pieces of a snapshot name it
	file      string // of the tensor with its values; a slot's has the name of slotName
	elements  int64
	stretches []stretch // ascending, with gaps between them
	slots     []state.SlotShape
}

// stretch is consecutive elements of a parameter.
type stretch struct {
	from, elements int
	at             int64 // of the first of them, in the part's tensor
}

// tableLayout is the rows of a table that are on the shard.
type tableLayout struct {
	table           schema.Table
	file            string // of the tensor with its values
	spec            *schema.TableSpec
	keys            schema.Partitioning
	column, columns int
	// first is the place of each partition's first row, where one that is not here has that of the next one, and at the
	// end the number of rows.
	first []int64
	slots []state.SlotShape
	marks bool
}

// placementOf is where what a job has lies in so many parts: where shards have it, or would, if trainers did not add up
// what they have of it.
func placementOf(job *schema.Job, shards int) *schema.Placement {
	return schema.NewPlacement(job.OnShards(), shards)
}

// newLayout is that of a shard of a job that CheckVersions has found right.
func newLayout(job *schema.Job, place *schema.Placement, shard int) *layout {
	l := &layout{shard: shard}
	l.addDense(job, place, shard)
	for i := range job.Modules {
		if place.ShardOfModule(i) == shard {
			l.addModule(&job.Modules[i], &job.Optimizer)
		}
	}
	for i := range job.Tables {
		l.addTable(job, place, schema.Table(i), shard)
	}
	return l
}

// addDense gathers what the chunks on a shard have of each parameter.
func (l *layout) addDense(job *schema.Job, place *schema.Placement, shard int) {
	pieces := map[string][]state.Piece{}
	for _, c := range place.OwnedChunks(shard) {
		for _, p := range state.PlacedChunk(job, place, c.Bucket, c.Chunk, false).Pieces {
			pieces[p.Name] = append(pieces[p.Name], p)
		}
	}
	for i := range job.Parameters {
		here := pieces[job.Parameters[i].Name]
		if len(here) == 0 {
			continue
		}
		slices.SortFunc(here, func(a, b state.Piece) int { return cmp.Compare(a.From, b.From) })
		name := job.Parameters[i].Name
		d := denseLayout{parameter: name, file: "dense/" + escaped(name), slots: state.SlotsOf(job.OptimizerOfParameter(i))}
		for _, p := range here {
			if n := len(d.stretches); n > 0 && d.stretches[n-1].from+d.stretches[n-1].elements == p.From {
				d.stretches[n-1].elements += p.Elements
			} else {
				d.stretches = append(d.stretches, stretch{from: p.From, elements: p.Elements, at: d.elements})
			}
			d.elements += int64(p.Elements)
		}
		l.dense = append(l.dense, d)
	}
}

// modulesParameters are those of a module. One that cannot be built, which no ps takes, has none.
func modulesParameters(spec *schema.ModuleSpec) []nn.Parameter {
	module, err := nn.Build([]byte(spec.Module))
	if err != nil {
		return nil
	}
	return module.Parameters()
}

// addModule lays out the parameters of a module.
func (l *layout) addModule(spec *schema.ModuleSpec, optimizer *schema.Optimizer) {
	for _, p := range modulesParameters(spec) {
		n := p.Elements()
		l.dense = append(l.dense, denseLayout{parameter: spec.TensorName(p.Name),
			file: "module/" + spec.Name + "/" + escaped(p.Name), elements: int64(n),
			stretches: []stretch{{elements: n}}, slots: state.SlotsOf(*optimizer)})
	}
}

// addTable lays out the partitions of a table that are on a shard, unless it has no row there.
func (l *layout) addTable(job *schema.Job, place *schema.Placement, table schema.Table, shard int) {
	spec, optimizer := &job.Tables[table], job.OptimizerOf(table)
	t := tableLayout{table: table, file: "table/" + escaped(spec.Name), spec: spec,
		keys: spec.Partitioning(), first: make([]int64, spec.Partitions+1),
		slots: state.SlotsOf(optimizer), marks: state.MarksRows(optimizer)}
	if t.column, t.columns = place.Columns(table, shard); t.columns == 0 {
		return
	}
	for p := range schema.Partition(spec.Partitions) {
		t.first[p+1] = t.first[p]
		if place.Holds(table, p, shard) {
			t.first[p+1] += int64(t.keys.Rows(p))
		}
	}
	if t.rows() > 0 {
		l.tables = append(l.tables, t)
	}
}

// rows is how many rows of the table are here.
func (t *tableLayout) rows() int64 { return t.first[len(t.first)-1] }

// escaped makes a name one without colons. Two names are never made the same one.
func escaped(name string) string { return escapes.Replace(name) }

var escapes = strings.NewReplacer("%", "%25", ":", "%3A")

// slotName has a separator that escaped names do not have.
func slotName(tensor, slot string) string { return tensor + ":" + slot }

// lastName is where marks of rows are; no optimizer has a slot of that name.
func (t *tableLayout) lastName() string { return slotName(t.file, "last") }

// tensors are those of the part's file.
func (l *layout) tensors() (all []safetensors.Tensor) {
	for i := range l.dense {
		all = append(all, l.dense[i].tensors(l.dense[i].elements)...)
	}
	for i := range l.tables {
		all = append(all, l.tables[i].tensors(int(l.tables[i].rows()))...)
	}
	return all
}

// tensors are those with so many elements of the parameter.
func (d *denseLayout) tensors(elements int64) []safetensors.Tensor {
	all := []safetensors.Tensor{{Name: d.file, Shape: []int{int(elements)}}}
	for _, s := range d.slots {
		all = append(all, safetensors.Tensor{Name: slotName(d.file, s.Name), Shape: []int{int(elements)}})
	}
	return all
}

// tensors are those with so many rows of the table.
func (t *tableLayout) tensors(rows int) []safetensors.Tensor {
	all := []safetensors.Tensor{{Name: t.file, Shape: []int{rows, t.columns}}}
	for _, s := range t.slots {
		shape := []int{rows}
		if !s.PerRow {
			shape = []int{rows, t.columns}
		}
		all = append(all, safetensors.Tensor{Name: slotName(t.file, s.Name), Shape: shape})
	}
	if t.marks {
		all = append(all, safetensors.Tensor{Name: t.lastName(), Shape: []int{rows, 2}})
	}
	return all
}

// names are those of parameters and tables that have anything here, as name gives them, with how many elements or rows.
func (l *layout) names() map[string]int64 {
	names := map[string]int64{}
	for i := range l.dense {
		names[l.dense[i].file] = l.dense[i].elements
	}
	for i := range l.tables {
		names[l.tables[i].file] = l.tables[i].rows()
	}
	return names
}

// stretch is the one that has all of n elements from one on.
func (d *denseLayout) stretch(from, n int) (stretch, bool) {
	i, found := slices.BinarySearchFunc(d.stretches, from, func(s stretch, from int) int {
		return cmp.Compare(s.from, from)
	})
	if !found {
		i--
	}
	if i < 0 || from < 0 || n > d.stretches[i].elements || from-d.stretches[i].from > d.stretches[i].elements-n {
		return stretch{}, false
	}
	return d.stretches[i], true
}
