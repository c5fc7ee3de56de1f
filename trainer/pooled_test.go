package trainer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// bagToy is a workload over bags: y = W [words, tags] + b against targets, by squares. Everything but the pooling is
// written out sample by sample, so that a reference shares it.
type bagToy struct {
	*toy
	enterBags func(b schema.Batch, l lane.Lane) // called when a lane begins; nil for nothing
}

// bagJob is the toy job with poolings: 5 and 3 columns, which no number of shards above 1 divides.
func bagJob(name, placement string, trainers, lanes int) *schema.Job {
	job := toyJob(name, trainers, lanes, schema.ApplyMean)
	job.Reduce = schema.ReduceTrainers
	job.Optimizer.LR, job.Optimizer.Nesterov = 0.02, true
	job.Parameters = []schema.Parameter{
		{Name: "weight", Shape: []int{toyClasses, toyInputs}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.5}},
		{Name: "bias", Shape: []int{toyClasses}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.1}},
	}
	job.Tables[0].Pooling, job.Tables[1].Pooling = schema.PoolingSum, schema.PoolingMean
	for i := range job.Tables {
		job.Tables[i].Placement = placement
	}
	return job
}

func (m *bagToy) Bags(b schema.Batch, l lane.Lane, offsets [][]int64) [][]int64 {
	words, tags := int64(0), int64(0)
	offsets[0], offsets[1] = append(offsets[0], 0), append(offsets[1], 0)
	for _, s := range m.samples(b, l) {
		words, tags = words+int64(len(s.words)), tags+int64(len(s.tags))
		offsets[0], offsets[1] = append(offsets[0], words), append(offsets[1], tags)
	}
	return offsets
}

func (m *bagToy) Lane(step *LaneStep) (float64, error) {
	if m.enterBags != nil {
		m.enterBags(step.Batch, step.Lane)
	}
	all := m.samples(step.Batch, step.Lane)
	n := bagNet{weight: step.Param("weight"), bias: step.Param("bias"), gradWeight: step.Grad("weight"),
		gradBias:  step.Grad("bias"),
		gradWords: make([]float32, len(all)*toyWordDim), gradTags: make([]float32, len(all)*toyTagDim)}
	loss := n.run(all, step.Pooled(0), step.Pooled(1))
	step.Done("bias")
	step.PooledGrad(0, n.gradWords)
	step.PooledGrad(1, n.gradTags)
	return loss, nil
}

// bagNet is the dense part: one pass over a lane's samples.
type bagNet struct {
	weight, bias, gradWeight, gradBias, gradWords, gradTags []float32
}

func (n *bagNet) run(all []sample, words, tags []float32) (loss float64) {
	clear(n.gradWeight)
	clear(n.gradBias)
	for i, s := range all {
		x := append(slices.Clone(words[i*toyWordDim:(i+1)*toyWordDim]), tags[i*toyTagDim:(i+1)*toyTagDim]...)
		gx := make([]float32, toyInputs)
		for c := range toyClasses {
			y := n.bias[c]
			for k := range x {
				y += float32(n.weight[c*toyInputs+k] * x[k])
			}
			if int32(c) == s.class {
				y--
			}
			loss += float64(y) * float64(y) / 2
			n.gradBias[c] += y
			for k := range x {
				n.gradWeight[c*toyInputs+k] += float32(y * x[k])
				gx[k] += float32(y * n.weight[c*toyInputs+k])
			}
		}
		copy(n.gradWords[i*toyWordDim:], gx[:toyWordDim])
		copy(n.gradTags[i*toyTagDim:], gx[toyWordDim:])
	}
	return loss
}

// naiveBags pools by hand. Bags are far shorter than a block of the canonical order.
func naiveBags(rows [][]float32, dim int, mean bool, all []sample, keys func(sample) []uint64) []float32 {
	out := make([]float32, len(all)*dim)
	for i, s := range all {
		for c := range dim {
			sum, n := float32(0), len(keys(s))
			for _, k := range keys(s) {
				sum += rows[k][c]
			}
			if mean && n > 1 {
				sum /= float32(n)
			}
			out[i*dim+c] = sum
		}
	}
	return out
}

// naiveRows is what the gradients of bags are by row.
func naiveRows(grad []float32, dim int, mean bool, all []sample, keys func(sample) []uint64) map[uint64][]float32 {
	rows := map[uint64][]float32{}
	for i, s := range all {
		for _, k := range keys(s) {
			if rows[k] == nil {
				rows[k] = make([]float32, dim)
			}
			for c := range dim {
				g := grad[i*dim+c]
				if n := len(keys(s)); mean && n > 1 {
					g /= float32(n)
				}
				rows[k][c] += g
			}
		}
	}
	return rows
}

func wordsOf(s sample) []uint64 { return s.words }
func tagsOf(s sample) []uint64  { return s.tags }

// bagLane is one lane of the reference, on parameters and on pooled rows.
func bagLane(params [][]float32, all []sample, words, tags []float32) (*laneGrads, float64, int) {
	if len(all) == 0 {
		return nil, 0, 0
	}
	n := bagNet{weight: params[0], bias: params[1], gradWeight: make([]float32, len(params[0])),
		gradBias:  make([]float32, len(params[1])),
		gradWords: make([]float32, len(all)*toyWordDim), gradTags: make([]float32, len(all)*toyTagDim)}
	loss := n.run(all, words, tags)
	return &laneGrads{params: [][]float32{n.gradWeight, n.gradBias}, rows: []map[uint64][]float32{
			naiveRows(n.gradWords, toyWordDim, false, all, wordsOf), naiveRows(n.gradTags, toyTagDim, true, all, tagsOf)}},
		loss, len(all)
}

// bagOutcome is what a single process makes of the bag job.
func bagOutcome(t *testing.T, lanes, batches int) ([32]byte, []float64) {
	t.Helper()
	o := newOracle(t, bagJob("reference", "", 1, lanes))
	m := &bagToy{toy: newToy(t, o.job)}
	o.alone = func(b schema.Batch, l lane.Lane) (*laneGrads, float64, int) {
		all := m.samples(b, l)
		return bagLane(o.params, all, naiveBags(o.tables[0].rows, toyWordDim, false, all, wordsOf),
			naiveBags(o.tables[1].rows, toyTagDim, true, all, tagsOf))
	}
	losses := make([]float64, batches)
	for b := range losses {
		losses[b], _ = o.step(t, m, schema.Batch(b))
	}
	return o.digest(t), losses
}

// Whichever way tables are placed, and at any number of trainers and shards, a workload that is written over bags has
// the bits of a single process: momentum, uneven and empty lanes, empty bags, and more shards than some tables have
// columns.
func TestPlacementsGiveEqualBits(t *testing.T) {
	const lanes, batches = 6, 7
	want, losses := bagOutcome(t, lanes, batches)
	for _, shards := range []int{1, 3, 4} {
		server := startServer(t, shards)
		for _, placement := range []string{"", schema.PlacementColumns, schema.PlacementTables} {
			for trainers := 1; trainers <= 3; trainers++ {
				if shards == 4 && trainers == 2 {
					continue // says no more than the others
				}
				t.Run(fmt.Sprintf("%s/%d shards/%d trainers", placement, shards, trainers), func(t *testing.T) {
					job := bagJob(fmt.Sprintf("bags%s-%d", placement, trainers), placement, trainers, lanes)
					if trainers == 2 { // through the shards, and both kinds of table in one job
						job.Reduce, job.Tables[1].Placement = schema.ReduceShards, ""
					}
					checkOutcomes(t, trainBags(t, testConfig(t, server), job, batches), want, losses)
				})
			}
		}
		server.Close()
	}
}

func trainBags(t *testing.T, config Config, job *schema.Job, batches uint64) []outcome {
	t.Helper()
	out := make([]outcome, job.Trainers)
	var all sync.WaitGroup
	for i := range out {
		c := config
		c.Member = schema.TrainerMember(i)
		all.Go(func() { out[i] = train(testContext(t), c, job, &bagToy{toy: newToy(t, job)}, batches) })
	}
	all.Wait()
	return out
}

// A table that is pooled on its shards has no rows here, and a workload that asks for them, or gives no bags, is told.
func TestPooledTablesHaveNoRows(t *testing.T) {
	server := startServer(t, 1)
	for i, c := range []struct {
		use  func(*LaneStep)
		want string
	}{
		{func(s *LaneStep) { s.Rows(0) }, "use Pooled"},
		{func(s *LaneStep) { s.RowGrad(0, nil, nil) }, "use Pooled"},
		{func(s *LaneStep) { s.PooledGrad(0, make([]float32, 1)) }, "values for"},
		{func(s *LaneStep) { s.PooledGrad(7, nil) }, "the job has 2 tables"},
		{nil, "lacks Bags"},
	} {
		job := bagJob(fmt.Sprintf("wrong-%d", i), schema.PlacementColumns, 1, 1)
		session := joinAll(t, testConfig(t, server), job)[0]
		var w Workload = &wrongUse{&bagToy{toy: newToy(t, job)}, c.use}
		if c.use == nil {
			w = newToy(t, job)
		}
		err := session.Run(testContext(t), w, 3, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: want that it says %q", err, c.want)
		}
		_ = session.Abort(errors.New("it is over"))
	}
}

type wrongUse struct {
	*bagToy
	use func(*LaneStep)
}

func (w *wrongUse) Lane(step *LaneStep) (float64, error) {
	w.use(step)
	return 0, nil
}
