package ps

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/philox"
	"gradbus/schema"
)

// problem is a job whose gradients are a pure function of (batch, lane), as those of a real one are.
type problem struct {
	job     *schema.Job
	backend cuda.Backend
	absent  map[int]bool // lanes that contribute nothing, for the sum over some alone
}

// laneWork is what one lane contributes to a batch.
type laneWork struct {
	weight float64
	dense  [][]float32 // by parameter
	keys   [][]uint64  // by table, ascending
	rows   [][]float32
}

func smallJob(name string, trainers, lanes int) *schema.Job {
	return &schema.Job{
		Name: schema.JobName(name), Workload: "test", Seed: 7, Trainers: trainers, Lanes: lanes,
		Consistency: schema.ConsistencySync, Apply: schema.ApplyUpdate, Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytesMin,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9, WeightDecay: 0.001},
		Parameters: []schema.Parameter{
			{Name: "hidden", Shape: []int{33, 70}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.5}},
			{Name: "out.bias", Shape: []int{3}, Init: schema.Init{Kind: schema.InitZeros}},
		},
		Tables: []schema.TableSpec{
			{Name: "words", Rows: 400, Dim: 5, Partitions: 8, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.1}},
			{Name: "users", Rows: 50, Dim: 16, Partitions: 5, Init: schema.Init{Kind: schema.InitNormal, Scale: 0.3}},
		},
	}
}

func newProblem(t testing.TB, job *schema.Job) *problem {
	t.Helper()
	if err := job.Validate(); err != nil {
		t.Fatal(err)
	}
	b, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return &problem{job: job, backend: b}
}

// lane draws the work of a lane. Some lanes have no samples, and some of those with samples touch no rows.
func (p *problem) lane(b schema.Batch, l int) *laneWork {
	r := rand.New(rand.NewPCG(p.job.Seed^uint64(b)<<20, uint64(l)))
	w := &laneWork{weight: float64(r.IntN(5))}
	if (uint64(b)+p.job.Seed)%5 == 0 || p.absent[l] {
		w.weight = 0 // a batch that nobody has samples for
	}
	for _, param := range p.job.Parameters {
		w.dense = append(w.dense, w.values(r, param.Elements()))
	}
	for _, t := range p.job.Tables {
		var keys []uint64
		if w.weight > 0 && r.IntN(4) > 0 {
			for range 1 + r.IntN(40) {
				keys = append(keys, r.Uint64N(t.Rows))
			}
			slices.Sort(keys)
			keys = slices.Compact(keys)
		}
		w.keys = append(w.keys, keys)
		w.rows = append(w.rows, w.values(r, len(keys)*t.Dim))
	}
	return w
}

func (w *laneWork) values(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	if w.weight > 0 {
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
	}
	return v
}

// node adds the work of a node's lanes along the tree, as a trainer does.
func (p *problem) node(t testing.TB, b schema.Batch, n lane.Node) *laneWork {
	t.Helper()
	var lanes []*laneWork
	var at []int
	sum := &laneWork{}
	for l := int(n.First); l < n.End(); l++ {
		if w := p.lane(b, l); w.weight > 0 {
			lanes, at = append(lanes, w), append(at, l)
			sum.weight += w.weight
		}
	}
	for i, param := range p.job.Parameters {
		out := make([]float32, param.Elements())
		var terms []cuda.Term
		for k, w := range lanes {
			terms = append(terms, cuda.Term{First: uint16(at[k]), Count: 1, Values: cuda.Float32s(w.dense[i])})
		}
		if len(terms) > 0 {
			must(t, p.backend.Average(cuda.Average{Lanes: p.job.Lanes, Weight: 1, Terms: terms, Out: cuda.Float32s(out)}))
		}
		sum.dense = append(sum.dense, out)
	}
	for i, table := range p.job.Tables {
		var terms []cuda.RowsTerm
		most := 0
		for k, w := range lanes {
			if len(w.keys[i]) > 0 {
				terms = append(terms, cuda.RowsTerm{First: uint16(at[k]), Count: 1, Keys: cuda.Uint64s(w.keys[i]), Rows: cuda.Float32s(w.rows[i])})
				most += len(w.keys[i])
			}
		}
		keys, rows := make([]uint64, most), make([]float32, most*table.Dim)
		n := 0
		if len(terms) > 0 {
			var err error
			n, err = p.backend.Merge(cuda.Merge{Dim: table.Dim, Lanes: p.job.Lanes, Terms: terms, OutKeys: cuda.Uint64s(keys), OutRows: cuda.Float32s(rows)})
			must(t, err)
		}
		sum.keys, sum.rows = append(sum.keys, keys[:n]), append(sum.rows, rows[:n*table.Dim])
	}
	return sum
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// model is the naive second implementation: whole tensors on one machine, no buckets, chunks, shards or versions.
type model struct {
	p        *problem
	params   [][]float32
	tables   [][]float32
	mParams  [][]float32
	mTables  [][]float32
	stepped  bool
	rowsSeen []map[uint64]bool
}

func (p *problem) model(t testing.TB) *model {
	t.Helper()
	m := &model{p: p}
	for _, param := range p.job.Parameters {
		v := make([]float32, param.Elements())
		must(t, philox.FillTensor(v, param.Init.Kind, param.Init.Scale, p.job.Seed, param.Name))
		m.params, m.mParams = append(m.params, v), append(m.mParams, make([]float32, len(v)))
	}
	for _, table := range p.job.Tables {
		v := make([]float32, int(table.Rows)*table.Dim)
		for key := range table.Rows {
			must(t, philox.FillRow(v[int(key)*table.Dim:][:table.Dim], table.Init.Kind, table.Init.Scale, p.job.Seed, table.Name, key))
		}
		m.tables, m.mTables = append(m.tables, v), append(m.mTables, make([]float32, len(v)))
		m.rowsSeen = append(m.rowsSeen, map[uint64]bool{})
	}
	return m
}

// step applies a batch, all lanes at once.
func (m *model) step(t testing.TB, b schema.Batch) {
	t.Helper()
	w := m.p.node(t, b, lane.Root(m.p.job.Lanes))
	if w.weight == 0 {
		return
	}
	o := m.p.job.Optimizer
	sgd := cuda.SGD{LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay, Nesterov: o.Nesterov}
	for i := range m.params {
		a := cuda.ApplyDense{Optimizer: sgd, Weight: float32(w.weight), First: !m.stepped, Param: cuda.Float32s(m.params[i]), Grad: cuda.Float32s(w.dense[i]), Out: cuda.Float32s(m.params[i])}
		if o.Momentum != 0 {
			v := cuda.Float32s(m.mParams[i])
			a.Slots = []cuda.Slot{{Name: "momentum", Before: v, After: v}}
		}
		must(t, m.p.backend.ApplyDense(a))
	}
	m.stepped = true
	for i, table := range m.p.job.Tables {
		d := table.Dim
		for k, key := range w.keys[i] {
			at := int(key) * d
			row, mom := slices.Clone(m.tables[i][at:at+d]), slices.Clone(m.mTables[i][at:at+d])
			a := cuda.ApplyRows{Dim: d, Optimizer: sgd, Weight: float32(w.weight), Table: cuda.Float32s(row), Index: cuda.Int64s([]int64{0}),
				Grad: cuda.Float32s(w.rows[i][k*d : (k+1)*d]), Out: cuda.Float32s(m.tables[i][at : at+d])}
			if o.Momentum != 0 {
				first := []uint8{1}
				if m.rowsSeen[i][key] {
					first[0] = 0
				}
				a.First = cuda.Uint8s(first)
				a.Slots = []cuda.Slot{{Name: "momentum", Before: cuda.Float32s(mom), After: cuda.Float32s(m.mTables[i][at : at+d])}}
			}
			must(t, m.p.backend.ApplyRows(a))
			m.rowsSeen[i][key] = true
		}
	}
}

// contribution is one frame a trainer sends.
type contribution struct {
	shard  int
	bucket schema.Bucket
	kind   schema.Kind
	frame  *schema.Frame
}

// frames builds all that a node contributes to a batch, in the order of the job: dense buckets, then sparse ones.
func (p *problem) frames(t testing.TB, place *schema.Placement, run schema.RunID, b schema.Batch, n lane.Node) []contribution {
	t.Helper()
	w := p.node(t, b, n)
	head := schema.Head{Job: run, Generation: generationFirst, Batch: b, Node: n, Lanes: uint16(p.job.Lanes), Weight: w.weight}
	var out []contribution
	for _, bucket := range place.Buckets {
		values := make([]float32, bucket.Elements)
		for _, s := range bucket.Spans {
			copy(values[s.Offset:], w.dense[s.Parameter][s.From:s.From+s.Elements])
		}
		for c := range place.Chunks(bucket.ID) {
			offset, elements := place.ChunkRange(bucket.ID, schema.Chunk(c))
			f := newFrame(t, schema.Layout{Kind: schema.KindDense, Values: 4 * elements})
			h := head
			h.Bucket, h.Chunk, h.Chunks, h.Offset = bucket.ID, schema.Chunk(c), schema.Chunk(place.Chunks(bucket.ID)), uint64(offset)
			f.SetHead(h)
			copy(f.Float32s(), values[offset:offset+elements])
			out = append(out, contribution{place.ShardOfBucket(bucket.ID), bucket.ID, schema.KindDense, f})
		}
	}
	if len(p.job.Tables) > 0 {
		for shard := range place.Shards {
			out = append(out, p.sparseFrames(t, place, head, w, shard, 7)...)
		}
	}
	return out
}

// sparseFrames cuts a shard's share of the rows into frames of a few rows each.
func (p *problem) sparseFrames(t testing.TB, place *schema.Placement, head schema.Head, w *laneWork, shard, rowsMax int) []contribution {
	type row struct {
		table schema.Table
		key   uint64
		data  []float32
	}
	var rows []row
	for i, table := range p.job.Tables {
		for k, key := range w.keys[i] {
			if place.ShardOfKey(schema.Table(i), key) == shard {
				rows = append(rows, row{schema.Table(i), key, w.rows[i][k*table.Dim : (k+1)*table.Dim]})
			}
		}
	}
	chunks := max(1, (len(rows)+rowsMax-1)/rowsMax)
	var out []contribution
	for c := range chunks {
		own := rows[c*rowsMax : min(len(rows), (c+1)*rowsMax)]
		var sections []schema.Section
		values := 0
		for _, r := range own {
			if len(sections) == 0 || sections[len(sections)-1].Table != r.table {
				sections = append(sections, schema.Section{Table: r.table, Dim: uint32(len(r.data))})
			}
			sections[len(sections)-1].Count++
			values += len(r.data)
		}
		f := newFrame(t, schema.Layout{Kind: schema.KindSparse, Values: 4 * values, Keys: len(own), Sections: len(sections)})
		h := head
		h.Bucket, h.Chunk, h.Chunks = place.SparseBucket(shard), schema.Chunk(c), schema.Chunk(chunks)
		f.SetHead(h)
		copy(f.Sections(), sections)
		to := f.Float32s()
		for i, r := range own {
			f.Keys()[i] = r.key
			to = to[copy(to, r.data):]
		}
		out = append(out, contribution{shard, h.Bucket, schema.KindSparse, f})
	}
	return out
}

func newFrame(t testing.TB, l schema.Layout) *schema.Frame {
	t.Helper()
	f, err := schema.NewFrame(l)
	must(t, err)
	return f
}

func view(t testing.TB, frame []byte) *schema.View {
	t.Helper()
	v, err := schema.Verify(slices.Clone(frame), schema.Limits{})
	must(t, err)
	return &v
}

// lookupFrame asks one shard for the rows of ascending keys of tables.
func lookupFrame(t testing.TB, job *schema.Job, run schema.RunID, b schema.Batch, keys [][]uint64) *schema.Frame {
	t.Helper()
	var all []uint64
	var sections []schema.Section
	for i, k := range keys {
		if len(k) > 0 {
			sections = append(sections, schema.Section{Table: schema.Table(i), Dim: uint32(job.Tables[i].Dim), Count: uint64(len(k))})
			all = append(all, k...)
		}
	}
	f := newFrame(t, schema.Layout{Kind: schema.KindLookup, Keys: len(all), Sections: len(sections)})
	f.SetHead(schema.Head{Job: run, Generation: generationFirst, Batch: b, Chunks: 1, Lanes: uint16(job.Lanes)})
	copy(f.Keys(), all)
	copy(f.Sections(), sections)
	return f
}

// firstDifference names where two slices differ in any bit, or gives "".
func firstDifference(have, want []float32) string {
	if len(have) != len(want) {
		return fmt.Sprintf("%d values, want %d", len(have), len(want))
	}
	for i := range have {
		if bits(have[i]) != bits(want[i]) {
			return fmt.Sprintf("element %d is %v (%08x), want %v (%08x)", i, have[i], bits(have[i]), want[i], bits(want[i]))
		}
	}
	return ""
}
