// Package shardtest provides what tests of shards and of their callers share: a job whose gradients are a pure function
// of batch and lane, the frames of its trainers, a naive model of the result, and payloads that count their releases.
// It knows frames and kernels, and must not know shards.
package shardtest

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

// RunID and Generation are those of the frames in tests.
const (
	RunID      schema.RunID      = 77
	Generation schema.Generation = 1
)

// Problem is a job whose gradients are a pure function of (batch, lane).
type Problem struct {
	Job     *schema.Job
	Backend cuda.Backend
	Absent  map[int]bool // lanes that contribute nothing
}

// LaneWork is the contribution of one lane to a batch.
type LaneWork struct {
	Weight float64
	Dense  [][]float32 // by parameter
	Keys   [][]uint64  // by table, ascending
	Rows   [][]float32
}

// SmallJob has two parameters, in three chunks, and two tables.
func SmallJob(name string, trainers, lanes int) *schema.Job {
	return &schema.Job{
		Name: schema.JobName(name), Workload: "test", Seed: 7, Trainers: trainers, Lanes: lanes,
		Consistency: schema.ConsistencySync, Apply: schema.ApplyUpdate, Policy: schema.PolicyFail,
		ChunkBytes: schema.ChunkBytesMin,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9, WeightDecay: 0.001},
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

// New makes a Problem for a valid job, with the portable backend.
func New(t testing.TB, job *schema.Job) *Problem {
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
	return &Problem{Job: job, Backend: b}
}

// lane draws the work of a lane. Some lanes have no samples, and some of those with samples touch no rows.
func (p *Problem) lane(b schema.Batch, l int) *LaneWork {
	r := rand.New(rand.NewPCG(p.Job.Seed^uint64(b)<<20, uint64(l)))
	w := &LaneWork{Weight: float64(r.IntN(5))}
	if (uint64(b)+p.Job.Seed)%5 == 0 || p.Absent[l] {
		w.Weight = 0 // a batch without samples
	}
	for _, param := range p.Job.Parameters {
		w.Dense = append(w.Dense, w.values(r, param.Elements()))
	}
	for _, t := range p.Job.Tables {
		var keys []uint64
		if w.Weight > 0 && r.IntN(4) > 0 {
			for range 1 + r.IntN(40) {
				keys = append(keys, r.Uint64N(t.Rows))
			}
			slices.Sort(keys)
			keys = slices.Compact(keys)
		}
		w.Keys = append(w.Keys, keys)
		w.Rows = append(w.Rows, w.values(r, len(keys)*t.Dim))
	}
	return w
}

func (w *LaneWork) values(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	if w.Weight > 0 {
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
	}
	return v
}

// Node adds the work of a node's lanes along the tree, as a trainer does.
func (p *Problem) Node(t testing.TB, b schema.Batch, n lane.Node) *LaneWork {
	t.Helper()
	var lanes []*LaneWork
	var at []int
	sum := &LaneWork{}
	for l := int(n.First); l < n.End(); l++ {
		if w := p.lane(b, l); w.Weight > 0 {
			lanes, at = append(lanes, w), append(at, l)
			sum.Weight += w.Weight
		}
	}
	for i, param := range p.Job.Parameters {
		out := make([]float32, param.Elements())
		var terms []cuda.Term
		for k, w := range lanes {
			terms = append(terms, cuda.Term{First: uint16(at[k]), Count: 1, Values: cuda.Float32s(w.Dense[i])})
		}
		if len(terms) > 0 {
			must(t, p.Backend.Average(cuda.Average{Lanes: p.Job.Lanes, Weight: 1, Terms: terms, Out: cuda.Float32s(out)}))
		}
		sum.Dense = append(sum.Dense, out)
	}
	for i, table := range p.Job.Tables {
		var terms []cuda.RowsTerm
		most := 0
		for k, w := range lanes {
			if len(w.Keys[i]) > 0 {
				terms = append(terms, cuda.RowsTerm{First: uint16(at[k]), Count: 1, Keys: cuda.Uint64s(w.Keys[i]),
					Rows: cuda.Float32s(w.Rows[i])})
				most += len(w.Keys[i])
			}
		}
		keys, rows := make([]uint64, most), make([]float32, most*table.Dim)
		n := 0
		if len(terms) > 0 {
			var err error
			n, err = p.Backend.Merge(cuda.Merge{Dim: table.Dim, Lanes: p.Job.Lanes, Terms: terms, OutKeys: cuda.Uint64s(keys),
				OutRows: cuda.Float32s(rows)})
			must(t, err)
		}
		sum.Keys, sum.Rows = append(sum.Keys, keys[:n]), append(sum.Rows, rows[:n*table.Dim])
	}
	return sum
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Model is the naive second implementation: whole tensors on one machine, no buckets, chunks, shards or versions.
type Model struct {
	p        *Problem
	Params   [][]float32
	Tables   [][]float32
	mParams  [][]float32
	mTables  [][]float32
	stepped  bool
	rowsSeen []map[uint64]bool
}

// Model returns the model at version 0.
func (p *Problem) Model(t testing.TB) *Model {
	t.Helper()
	m := &Model{p: p}
	for _, param := range p.Job.Parameters {
		v := make([]float32, param.Elements())
		must(t, philox.FillTensor(v, param.Init.Kind, param.Init.Scale, p.Job.Seed, param.Name))
		m.Params, m.mParams = append(m.Params, v), append(m.mParams, make([]float32, len(v)))
	}
	for _, table := range p.Job.Tables {
		v := make([]float32, int(table.Rows)*table.Dim)
		for key := range table.Rows {
			must(t, philox.FillRow(v[int(key)*table.Dim:][:table.Dim], table.Init.Kind, table.Init.Scale, p.Job.Seed,
				table.Name, key))
		}
		m.Tables, m.mTables = append(m.Tables, v), append(m.mTables, make([]float32, len(v)))
		m.rowsSeen = append(m.rowsSeen, map[uint64]bool{})
	}
	return m
}

// Step applies a batch, all lanes at once.
func (m *Model) Step(t testing.TB, b schema.Batch) {
	t.Helper()
	w := m.p.Node(t, b, lane.Root(m.p.Job.Lanes))
	if w.Weight == 0 {
		return
	}
	o := m.p.Job.Optimizer
	sgd := cuda.SGD{LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay,
		Nesterov: o.Nesterov}
	for i := range m.Params {
		a := cuda.ApplyDense{Optimizer: sgd, Weight: float32(w.Weight), First: !m.stepped, Param: cuda.Float32s(m.Params[i]),
			Grad: cuda.Float32s(w.Dense[i]), Out: cuda.Float32s(m.Params[i])}
		if o.Momentum != 0 {
			v := cuda.Float32s(m.mParams[i])
			a.Slots = []cuda.Slot{{Name: "momentum", Before: v, After: v}}
		}
		must(t, m.p.Backend.ApplyDense(a))
	}
	m.stepped = true
	for i, table := range m.p.Job.Tables {
		d := table.Dim
		for k, key := range w.Keys[i] {
			at := int(key) * d
			row, mom := slices.Clone(m.Tables[i][at:at+d]), slices.Clone(m.mTables[i][at:at+d])
			a := cuda.ApplyRows{Dim: d, Optimizer: sgd, Weight: float32(w.Weight), Table: cuda.Float32s(row),
				Index: cuda.Int64s([]int64{0}),
				Grad:  cuda.Float32s(w.Rows[i][k*d : (k+1)*d]), Out: cuda.Float32s(m.Tables[i][at : at+d])}
			if o.Momentum != 0 {
				first := []uint8{1}
				if m.rowsSeen[i][key] {
					first[0] = 0
				}
				a.First = cuda.Uint8s(first)
				a.Slots = []cuda.Slot{{Name: "momentum", Before: cuda.Float32s(mom), After: cuda.Float32s(m.mTables[i][at : at+d])}}
			}
			must(t, m.p.Backend.ApplyRows(a))
			m.rowsSeen[i][key] = true
		}
	}
}

// Contribution is one frame a trainer sends.
type Contribution struct {
	Shard  int
	Bucket schema.Bucket
	Kind   schema.Kind
	Frame  *schema.Frame
}

// Frames builds the contributions of a node to a batch, in the order of the job: dense buckets, then sparse ones.
func (p *Problem) Frames(t testing.TB, place *schema.Placement, run schema.RunID, b schema.Batch,
	n lane.Node) []Contribution {
	t.Helper()
	w := p.Node(t, b, n)
	head := schema.Head{Job: run, Generation: Generation, Batch: b, Node: n, Lanes: uint16(p.Job.Lanes), Weight: w.Weight}
	var out []Contribution
	for _, bucket := range place.Buckets {
		values := make([]float32, bucket.Elements)
		for _, s := range bucket.Spans {
			copy(values[s.Offset:], w.Dense[s.Parameter][s.From:s.From+s.Elements])
		}
		for c := range place.Chunks(bucket.ID) {
			offset, elements := place.ChunkRange(bucket.ID, schema.Chunk(c))
			f := NewFrame(t, schema.Layout{Kind: schema.KindDense, Values: 4 * elements})
			h := head
			h.Bucket, h.Chunk, h.Chunks, h.Offset = bucket.ID, schema.Chunk(c), schema.Chunk(place.Chunks(bucket.ID)),
				uint64(offset)
			f.SetHead(h)
			copy(f.Float32s(), values[offset:offset+elements])
			out = append(out, Contribution{place.OwnerOfChunk(bucket.ID, schema.Chunk(c)), bucket.ID, schema.KindDense, f})
		}
	}
	if len(p.Job.Tables) > 0 {
		for shard := range place.Shards {
			out = append(out, p.SparseFrames(t, place, head, w, shard, 7)...)
		}
	}
	return out
}

// SparseFrames cuts a shard's share of the rows into frames of a few rows each.
func (p *Problem) SparseFrames(t testing.TB, place *schema.Placement, head schema.Head, w *LaneWork,
	shard, rowsMax int) []Contribution {
	type row struct {
		table schema.Table
		key   uint64
		data  []float32
	}
	var rows []row
	for i, table := range p.Job.Tables {
		for k, key := range w.Keys[i] {
			if place.OwnerOfKey(schema.Table(i), key) == shard {
				rows = append(rows, row{schema.Table(i), key, w.Rows[i][k*table.Dim : (k+1)*table.Dim]})
			}
		}
	}
	chunks := max(1, (len(rows)+rowsMax-1)/rowsMax)
	var out []Contribution
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
		f := NewFrame(t, schema.Layout{Kind: schema.KindSparse, Values: 4 * values, Keys: len(own), Sections: len(sections)})
		h := head
		h.Bucket, h.Chunk, h.Chunks = place.SparseBucket(shard), schema.Chunk(c), schema.Chunk(chunks)
		f.SetHead(h)
		copy(f.Sections(), sections)
		to := f.Float32s()
		for i, r := range own {
			f.Keys()[i] = r.key
			to = to[copy(to, r.data):]
		}
		out = append(out, Contribution{shard, h.Bucket, schema.KindSparse, f})
	}
	return out
}

// NewFrame makes a frame with a layout.
func NewFrame(t testing.TB, l schema.Layout) *schema.Frame {
	t.Helper()
	f, err := schema.NewFrame(l)
	must(t, err)
	return f
}

// View verifies a copy of a frame.
func View(t testing.TB, frame []byte) *schema.View {
	t.Helper()
	v, err := schema.Verify(slices.Clone(frame), schema.Limits{})
	must(t, err)
	return &v
}

// LookupFrame asks one shard for the rows of ascending keys of tables.
func LookupFrame(t testing.TB, job *schema.Job, run schema.RunID, b schema.Batch, keys [][]uint64) *schema.Frame {
	t.Helper()
	var all []uint64
	var sections []schema.Section
	for i, k := range keys {
		if len(k) > 0 {
			sections = append(sections, schema.Section{Table: schema.Table(i), Dim: uint32(job.Tables[i].Dim),
				Count: uint64(len(k))})
			all = append(all, k...)
		}
	}
	f := NewFrame(t, schema.Layout{Kind: schema.KindLookup, Keys: len(all), Sections: len(sections)})
	f.SetHead(schema.Head{Job: run, Generation: Generation, Batch: b, Chunks: 1, Lanes: uint16(job.Lanes)})
	copy(f.Keys(), all)
	copy(f.Sections(), sections)
	return f
}

// FirstDifference returns the position of the first value whose bits differ, or "".
func FirstDifference(have, want []float32) string {
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
