package state

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

// testOptimizers has each kind, with schedules, clipping, and rows that are exact.
func testOptimizers() map[string]schema.Optimizer {
	cosine := &schema.Schedule{Kind: schema.ScheduleCosine, Warmup: 2, Total: 9, Final: 0.1}
	return map[string]schema.Optimizer{
		"sgd":         {Kind: schema.OptimizerSGD, LR: 0.1, WeightDecay: 0.01, Schedule: cosine},
		"momentum":    {Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9, Dampening: 0.1, WeightDecay: 0.01},
		"exact":       {Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9, WeightDecay: 0.01, Exact: true},
		"exact decay": {Kind: schema.OptimizerSGD, LR: 0.1, WeightDecay: 0.01, Exact: true},
		"adagrad": {Kind: schema.OptimizerAdagrad, LR: 0.1, InitialAccumulator: 0.5,
			Clip: &schema.Clipping{Kind: schema.ClipValue, Max: 0.1}},
		"adamw":           {Kind: schema.OptimizerAdamW, LR: 0.1, Schedule: cosine},
		"ftrl":            {Kind: schema.OptimizerFTRL, LR: 0.1, L1: 0.01, L2: 0.1},
		"rowwise_adagrad": {Kind: schema.OptimizerRowwiseAdagrad, LR: 0.1, InitialAccumulator: 0.5},
		"adam":            {Kind: schema.OptimizerAdam, LR: 0.1, WeightDecay: 0.01, Schedule: cosine},
	}
}

// group is one table over several owners.
type group struct {
	spec   schema.TableSpec
	owners []*Array
	dims   []int
	column []int
}

const testRows, testDim = 57, 5

// newGroup cuts a table by rows over so many owners, or by columns. Each other one is drawn when rows are wanted.
func newGroup(t testing.TB, backend cuda.Backend, o schema.Optimizer, owners, partitions int, columns bool) *group {
	t.Helper()
	g := &group{spec: schema.TableSpec{Name: "t", Rows: testRows, Dim: testDim, Partitions: partitions,
		Init: schema.Normal(1)}}
	for i := range owners {
		late := i%2 == partitions%2
		here := func(p schema.Partition) bool { return columns || int(p)%owners == i }
		first, end := 0, testDim
		if columns {
			first, end = i*testDim/owners, (i+1)*testDim/owners
		}
		a, err := NewArray(t.Context(), ArrayConfig{Backend: backend, Spec: &g.spec, Optimizer: o, Seed: 3, Here: here,
			Column: first, Columns: end - first, Late: late, Undo: true})
		must(t, err)
		t.Cleanup(a.Close)
		g.owners, g.dims, g.column = append(g.owners, a), append(g.dims, end-first), append(g.column, first)
	}
	return g
}

// work is the gradients of one batch; none where it has no samples.
type work struct {
	weight float32
	keys   []uint64
	rows   []float32 // [keys, testDim]
}

func testWork(seed uint64, v schema.Version) *work {
	r := rand.New(rand.NewPCG(seed, uint64(v)))
	if r.IntN(5) == 0 {
		return nil
	}
	w := &work{weight: float32(1 + r.IntN(7))}
	for key := range uint64(testRows) {
		if r.IntN(3) == 0 {
			w.keys = append(w.keys, key)
			for range testDim {
				w.rows = append(w.rows, float32(r.NormFloat64()))
			}
		}
	}
	return w
}

func (g *group) apply(t testing.TB, w *work) {
	t.Helper()
	for i, a := range g.owners {
		if w == nil {
			continue
		}
		var keys []uint64
		var rows []float32
		for k, key := range w.keys {
			if a.places.has(key) {
				keys = append(keys, key)
				rows = append(rows, w.rows[k*testDim+g.column[i]:k*testDim+g.column[i]+g.dims[i]]...)
			}
		}
		half := len(keys) / 2 // in two calls, as parts of a result come
		for _, part := range [][2]int{{half, len(keys)}, {0, half}} {
			must(t,
				a.Apply(RowGradient{Keys: keys[part[0]:part[1]], Sums: cuda.Float32s(rows[part[0]*g.dims[i] : part[1]*g.dims[i]]),
					Weight: w.weight, Scale: 1}))
		}
	}
}

func (g *group) commit() {
	for _, a := range g.owners {
		a.Commit()
	}
}

// all is every row of the table, as readers see it.
func (g *group) all(t testing.TB) []float32 {
	t.Helper()
	all := make([]float32, testRows*testDim)
	for i, a := range g.owners {
		for key := range uint64(testRows) {
			if a.places.has(key) {
				copy(all[int(key)*testDim+g.column[i]:], gathered(t, a, g.dims[i], key, key)[:g.dims[i]])
			}
		}
	}
	return all
}

func (g *group) snapshot(t testing.TB) *Snapshot {
	t.Helper()
	s := &Snapshot{}
	for _, a := range g.owners {
		must(t, a.Snapshot(17, s.AddRows))
	}
	return s
}

func (g *group) restore(t testing.TB, s *Snapshot) {
	t.Helper()
	for _, a := range g.owners {
		r := a.Restore()
		for _, rows := range s.Rows {
			must(t, r.Rows(rows))
		}
		must(t, r.Done())
	}
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// naive steps every row as a tensor of its own.
type naive struct {
	backend cuda.Backend
	o       schema.Optimizer
	rows    [][]float32
	slots   [][]cuda.Slot
	stepped []bool
	version schema.Version
	steps   uint64
}

func newNaive(t testing.TB, backend cuda.Backend, o schema.Optimizer, first []float32) *naive {
	n := &naive{backend: backend, o: o, stepped: make([]bool, testRows)}
	r, err := newRule(o, nil, 0)
	must(t, err)
	for key := range testRows {
		n.rows = append(n.rows, slices.Clone(first[key*testDim:(key+1)*testDim]))
		var slots []cuda.Slot
		for _, s := range r.slots {
			v := make([]float32, s.width(testDim))
			for i := range v {
				v[i] = o.InitialAccumulator
			}
			slots = append(slots, cuda.Slot{Name: s.name, Before: cuda.Float32s(v), After: cuda.Float32s(v)})
		}
		n.slots = append(n.slots, slots)
	}
	return n
}

func (n *naive) step(t testing.TB, w *work) {
	defer func() { n.version++ }()
	if w == nil {
		return
	}
	r, err := newRule(n.o, nil, 0)
	must(t, err)
	for key, row := range n.rows {
		g := make([]float32, testDim)
		at, found := slices.BinarySearch(w.keys, uint64(key))
		if found {
			copy(g, w.rows[at*testDim:])
		} else if !n.o.Exact {
			continue
		}
		must(t, n.backend.ApplyDense(cuda.ApplyDense{Dim: testDim, Optimizer: r.at(n.version, n.steps), Clip: r.clip,
			Weight: w.weight, First: !n.stepped[key],
			Slots: n.slots[key], Param: cuda.Float32s(row), Out: cuda.Float32s(row), Grad: cuda.Float32s(g)}))
		n.stepped[key] = true
	}
	n.steps++
}

// However a table is cut, and with each optimizer, its rows are what the naive one makes of them at every version;
// an open round shows nowhere. Exact rows are what steps of the whole table make of them.
func TestTablesAgreeWithTheNaiveOne(t *testing.T) {
	backend := testBackend(t)
	for name, o := range testOptimizers() {
		for owners := range 3 {
			g := newGroup(t, backend, o, 1+owners, 3+5*owners, owners == 2 && o.Kind != schema.OptimizerRowwiseAdagrad)
			n := newNaive(t, backend, o, g.all(t))
			r := rand.New(rand.NewPCG(9, uint64(owners)))
			for v := range schema.Version(12) {
				w := testWork(5, v)
				g.apply(t, w)
				if r.IntN(2) == 0 { // who looks, and when, changes nothing
					if !sameBits(g.all(t), slices.Concat(n.rows...)) {
						t.Fatalf("%s, %d owners: the open round of version %d shows", name, owners+1, v)
					}
				}
				g.commit()
				if n.step(t, w); r.IntN(2) == 0 && !sameBits(g.all(t), slices.Concat(n.rows...)) {
					t.Fatalf("%s, %d owners: version %d differs", name, owners+1, v+1)
				}
			}
			if !sameBits(g.all(t), slices.Concat(n.rows...)) {
				t.Errorf("%s, %d owners: the end differs", name, owners+1)
			}
		}
	}
}

// A snapshot at any version, in an open round or not, goes on as if nothing had happened: on as many owners,
// or others.
func TestTablesGoOnFromASnapshot(t *testing.T) {
	backend := testBackend(t)
	for name, o := range testOptimizers() {
		for seed := range uint64(6) {
			r := rand.New(rand.NewPCG(seed, 1))
			cuts := o.Kind != schema.OptimizerRowwiseAdagrad
			first := newGroup(t, backend, o, 1+r.IntN(3), 1+r.IntN(9), cuts && r.IntN(3) == 0)
			at, end := schema.Version(r.IntN(8)), schema.Version(10)
			for v := range at {
				first.apply(t, testWork(seed, v))
				first.commit()
			}
			if r.IntN(2) == 0 {
				first.apply(t, testWork(seed, at))
			}
			snapshot := first.snapshot(t)
			for _, a := range first.owners {
				a.Rollback()
			}
			second := newGroup(t, backend, o, 1+r.IntN(3), 1+r.IntN(9), cuts && r.IntN(3) == 0)
			second.apply(t, testWork(seed+1, 0)) // what was there is forgotten
			second.restore(t, snapshot)
			for v := at; v < end; v++ {
				for _, g := range []*group{first, second} {
					g.apply(t, testWork(seed, v))
					g.commit()
				}
			}
			if !sameBits(first.all(t), second.all(t)) {
				t.Errorf("%s seed %d: rows differ after a snapshot of version %d", name, seed, at)
			}
			if a, b := marksOf(first.snapshot(t)), marksOf(second.snapshot(t)); a != b {
				t.Errorf("%s seed %d: %s, and %s", name, seed, a, b)
			}
		}
	}
}

// marksOf is what a snapshot says besides values, by key.
func marksOf(s *Snapshot) string {
	last := map[uint64]int64{}
	for _, r := range s.Rows {
		for i, key := range r.Keys {
			if len(r.Last) > 0 {
				last[key] = r.Last[i]
			}
		}
	}
	return fmt.Sprint(s.Rows[0].Version, s.Rows[0].Steps, last)
}

// What does not fit is refused by name.
func TestTablesRefuseSnapshots(t *testing.T) {
	backend := testBackend(t)
	o := testOptimizers()["momentum"]
	s := newGroup(t, backend, o, 1, 2, false).snapshot(t)
	fresh := func() RowsRestore { return newGroup(t, backend, o, 1, 3, false).owners[0].Restore() }
	r := fresh()
	for _, rows := range s.Rows[1:] {
		must(t, r.Rows(rows))
	}
	wants(t, "a piece less", r.Done(), ErrSnapshot)
	must(t, r.Rows(s.Rows[0]))
	must(t, r.Done())
	must(t, r.Rows(s.Rows[0]))
	wants(t, "a piece twice", r.Done(), ErrSnapshot)
	for what, change := range map[string]func(*Rows){
		"another version":     func(r *Rows) { r.Version++ },
		"no slots":            func(r *Rows) { r.Slots = nil },
		"another slot":        func(r *Rows) { r.Slots = []Slot{{"sum", r.Slots[0].Values}} },
		"a slot that is less": func(r *Rows) { r.Slots = []Slot{{"momentum", r.Slots[0].Values[1:]}} },
		"no marks":            func(r *Rows) { r.Last = nil },
		"fewer values":        func(r *Rows) { r.Values = r.Values[1:] },
	} {
		r := fresh()
		must(t, r.Rows(s.Rows[0]))
		changed := s.Rows[1]
		change(&changed)
		wants(t, what, r.Rows(changed), ErrSnapshot)
	}
}
