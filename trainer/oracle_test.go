package trainer

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"gradbus/lane"
	"gradbus/philox"
	"gradbus/schema"
)

// oracle trains a job in one process without frames, shards or windows: whole tables by key, the lane tree by
// recursion, SGD written out. It shares only the toy's lanes with what it judges.
type oracle struct {
	job      *schema.Job
	params   [][]float32
	momentum [][]float32
	tables   []oracleTable
	stepped  bool
	batches  int // that a replay has taken
	// whose weights a lane is computed on; nil means its own
	sees  func(lane.Lane) *oracle
	alone func(schema.Batch, lane.Lane) (*laneGrads, float64, int) // computes a lane; nil runs the workload on it
	// rounds what trainers send; nil sends the lanes as they are
	sent *oracleWire
}

// oracleWire is what happens to gradients on their way.
type oracleWire struct {
	dtype     schema.DType
	feedback  bool
	nodes     []lane.Node
	residuals map[string][]float32 // by node and parameter

}

func newOracleWire(job *schema.Job, nodes []lane.Node) *oracleWire {
	return &oracleWire{dtype: job.Wire.DType(), feedback: job.Wire.ErrorFeedback, nodes: nodes,
		residuals: map[string][]float32{}}
}

// sum adds up the tree, what each node's trainer sends being rounded. key names the parameter that error feedback is
// for; an empty one has none.
func (w *oracleWire) sum(root lane.Node, key string, of func(lane.Lane) []float32) []float32 {
	if w == nil {
		return treeSum(root, of)
	}
	if !slices.Contains(w.nodes, root) {
		left, right := root.Split()
		l, r := w.sum(left, key, of), w.sum(right, key, of)
		if l == nil || r == nil {
			return append(l, r...)
		}
		return treeSum(lane.Node{Count: 2}, func(side lane.Lane) []float32 { return [][]float32{l, r}[side] })
	}
	sum := slices.Clone(treeSum(root, of))
	if sum == nil {
		return nil
	}
	residual := make([]float32, len(sum))
	if name := fmt.Sprint(root, key); w.feedback && key != "" {
		if w.residuals[name] == nil {
			w.residuals[name] = residual
		}
		residual = w.residuals[name]
	}
	for i := range sum {
		t := sum[i] + residual[i]
		sum[i] = naiveRound(w.dtype, t)
		residual[i] = t - sum[i]
	}
	return sum
}

type oracleTable struct {
	rows, momentum [][]float32 // by key; momentum nil before the row's first step
}

func newOracle(t *testing.T, job *schema.Job) *oracle {
	t.Helper()
	o := &oracle{job: job}
	for _, p := range job.Parameters {
		values := make([]float32, p.Elements())
		if err := philox.FillTensor(values, p.Init.Kind, p.Init.Scale, job.Seed, p.Name); err != nil {
			t.Fatal(err)
		}
		o.params, o.momentum = append(o.params, values), append(o.momentum, make([]float32, len(values)))
	}
	for _, spec := range job.Tables {
		table := oracleTable{rows: make([][]float32, spec.Rows), momentum: make([][]float32, spec.Rows)}
		for key := range table.rows {
			table.rows[key] = make([]float32, spec.Dim)
			if err := philox.FillRow(table.rows[key], spec.Init.Kind, spec.Init.Scale, job.Seed, spec.Name,
				uint64(key)); err != nil {
				t.Fatal(err)
			}
		}
		o.tables = append(o.tables, table)
	}
	return o
}

// laneGrads is what one lane adds to a batch; nil where it is absent.
type laneGrads struct {
	params [][]float32
	rows   []map[uint64][]float32 // [table][key]
	counts []map[uint64]float32   // by table: how often keys are named
}

// step trains one batch on a workload and returns the sum of losses and the number of samples.
func (o *oracle) step(t *testing.T, w Workload, b schema.Batch) (loss float64, samples int) {
	t.Helper()
	grads := make([]*laneGrads, o.job.Lanes)
	for l := range grads {
		see := o
		if o.sees != nil {
			see = o.sees(lane.Lane(l))
		}
		var g *laneGrads
		var lossSum float64
		var n int
		if o.alone != nil {
			g, lossSum, n = o.alone(b, lane.Lane(l))
		} else {
			g, lossSum, n = see.lane(t, w, b, lane.Lane(l))
		}
		if n > 0 {
			grads[l] = g
			loss, samples = loss+lossSum, samples+n
		}
	}
	if samples == 0 {
		return 0, 0
	}
	of := func(l lane.Lane) *laneGrads { return grads[l] }
	o.applyParams(of, float32(samples))
	o.applyRows(of, float32(samples))
	return loss, samples
}

// applyParams takes a step of the dense parameters.
func (o *oracle) applyParams(grads func(lane.Lane) *laneGrads, weight float32) {
	root := lane.Root(o.job.Lanes)
	for i, p := range o.params {
		sum := o.sent.sum(root, o.job.Parameters[i].Name, func(l lane.Lane) []float32 {
			if grads(l) == nil {
				return nil
			}
			return grads(l).params[i]
		})
		o.sgd(p, o.momentum[i], sum, weight, !o.stepped)
	}
	o.stepped = true
}

// applyRows takes a step of the rows that anybody touched.
func (o *oracle) applyRows(grads func(lane.Lane) *laneGrads, weight float32) {
	root := lane.Root(o.job.Lanes)
	for i := range o.tables {
		table := &o.tables[i]
		for key := range table.rows {
			sum := o.sent.sum(root, "", func(l lane.Lane) []float32 {
				if grads(l) == nil {
					return nil
				}
				return grads(l).rows[i][uint64(key)]
			})
			if sum == nil {
				continue
			}
			first := table.momentum[key] == nil
			if first {
				table.momentum[key] = make([]float32, len(sum))
			}
			divisor := weight
			if o.job.Tables[i].PerRow {
				divisor = 0
				for l := range o.job.Lanes {
					if g := grads(lane.Lane(l)); g != nil {
						divisor += g.counts[i][uint64(key)]
					}
				}
			}
			o.sgd(table.rows[key], table.momentum[key], sum, divisor, first)
		}
	}
}

func (o *oracle) sgd(p, m, grad []float32, weight float32, first bool) {
	c := o.job.Optimizer
	for i := range p {
		d := grad[i] / weight
		if c.WeightDecay != 0 {
			d = d + float32(c.WeightDecay*p[i])
		}
		if c.Momentum == 0 {
			p[i] = p[i] - float32(c.LR*d)
			continue
		}
		if first {
			m[i] = d
		} else {
			m[i] = float32(c.Momentum*m[i]) + float32((1-c.Dampening)*d)
		}
		step := m[i]
		if c.Nesterov {
			step = d + float32(c.Momentum*m[i])
		}
		p[i] = p[i] - float32(c.LR*step)
	}
}

// lane runs the workload on one lane alone and takes its gradients out.
func (o *oracle) lane(t *testing.T, w Workload, b schema.Batch, l lane.Lane) (*laneGrads, float64, int) {
	t.Helper()
	flat := &flatSpace{specs: o.job.Parameters}
	p := &parameters{values: make([][]float32, 1), flat: flat, index: map[string]int{}}
	for i, values := range o.params {
		at := len(p.values[0])
		flat.params = append(flat.params, span{at, at + len(values)})
		p.values[0] = append(p.values[0], values...)
		p.index[o.job.Parameters[i].Name] = i
	}
	plan, tables := newLanePlan(l, 1, o.job.Lanes), newTables(o.job.Tables, 1)
	c := &compute{plan: plan, tables: tables, params: p, samples: make([]int, 1),
		dense: newDenseSums(testBackend(t), o.job.Lanes, 1, flat.params, nil),
		rows:  testRowSums(t, o.job.Lanes, plan, tables.dims())}
	c.rows.count = func(table int) int { return len(tables.keys[table]) }
	if err := errors.Join(c.collect(w, b), c.named(b, nil)); err != nil {
		t.Fatal(err)
	}
	if c.samples[0] == 0 {
		return nil, 0, 0
	}
	tables.size()
	for i, keys := range tables.keys {
		for j, key := range keys {
			copy(tables.rows[i][j*o.job.Tables[i].Dim:], o.tables[i].rows[key])
		}
	}
	c.begin()
	c.beginLane(0)
	step := &LaneStep{Batch: b, Lane: l, Samples: c.samples[0], compute: c}
	loss, err := w.Lane(step)
	if err = c.endLane(step, err); err != nil {
		t.Fatal(err)
	}
	g := &laneGrads{}
	for _, at := range flat.params {
		g.params = append(g.params, c.dense.slots[0][at.lo:at.hi])
	}
	for i, spec := range o.job.Tables {
		counts := map[uint64]float32{}
		for _, key := range tables.used[i] {
			counts[key]++
		}
		g.counts = append(g.counts, counts)
		byKey := map[uint64][]float32{}
		for j, id := range c.rows.node[0][i].ids {
			byKey[tables.keys[i][id]] = c.rows.node[0][i].values[j*spec.Dim : (j+1)*spec.Dim]
		}
		g.rows = append(g.rows, byKey)
	}
	return g, loss, c.samples[0]
}

func (o *oracle) digest(t *testing.T) [32]byte {
	t.Helper()
	d := schema.NewWeightsDigest(o.job)
	for at, ok := d.Next(); ok; at, ok = d.Next() {
		if !at.IsTable {
			_ = d.Values(o.params[at.Index])
			continue
		}
		var all []float32
		for _, row := range o.tables[at.Index].rows {
			all = append(all, row...)
		}
		_ = d.Table(all)
	}
	sum, err := d.Sum()
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// toyOutcome is what the oracle makes of the toy job: its digest and the loss of each batch.
func toyOutcome(t *testing.T, lanes, batches int) (digest [32]byte, losses []float64) {
	t.Helper()
	o := newOracle(t, toyJob("oracle", 1, lanes, schema.ApplyUpdate))
	w := newToy(t, o.job)
	losses = make([]float64, batches)
	for b := range losses {
		losses[b], _ = o.step(t, w, schema.Batch(b))
	}
	return o.digest(t), losses
}
