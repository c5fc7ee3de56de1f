package trainer

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// toy is a small model with everything that a job can have: two tables of different width, three dense parameters, one
// of which has no gradient in some lanes, uneven lanes and empty ones.
//
//	logits = [bag(words), bag(tags)] W + b, and a shift of the bias that only even lanes train
type toy struct {
	backend cuda.Backend
	job     *schema.Job

	// spoil changes a lane's gradient of the bias; nil for nothing.
	spoil func(step *LaneStep, bias []float32)
	// same gives the lanes of every batch the samples of batch 0, which can be learnt.
	same bool
	// ask is called when keys of a lane are wanted, which is when the batch before was sent; nil for nothing.
	ask func(b schema.Batch)
	// enter is called when a lane begins; nil for nothing.
	enter func(b schema.Batch, l lane.Lane)
	// byRows gives all gradients by rows; so jobs in 16 bits do, in which the oracle rounds sums of rows.
	byRows bool
}

const (
	toyWords, toyWordDim = 97, 5
	toyTags, toyTagDim   = 31, 3
	toyClasses           = 4
	toyInputs            = toyWordDim + toyTagDim
)

func toyJob(name string, trainers, lanes int, apply string) *schema.Job {
	return &schema.Job{
		Name: schema.JobName(name), Workload: "toy", Settings: map[string]string{"batch_size": "16"}, Seed: 7,
		Trainers: trainers, Lanes: lanes, Consistency: schema.ConsistencySync, Apply: apply, Policy: schema.PolicyFail,
		ChunkBytes: schema.ChunkBytesMin,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9, WeightDecay: 0.01},
		Parameters: []schema.Parameter{
			// Larger than a chunk, so that chunks of one bucket come and go on their own.
			{Name: "ballast", Shape: []int{1500}, Init: schema.Init{Kind: schema.InitNormal, Scale: 1}},
			{Name: "weight", Shape: []int{toyInputs, toyClasses}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.5}},
			{Name: "shift", Shape: []int{toyClasses}, Init: schema.Init{Kind: schema.InitZeros}},
			{Name: "bias", Shape: []int{toyClasses}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.1}},
		},
		Tables: []schema.TableSpec{
			{Name: "words", Rows: toyWords, Dim: toyWordDim, Partitions: 8,
				Init: schema.Init{Kind: schema.InitNormal, Scale: 0.3}},
			{Name: "tags", Rows: toyTags, Dim: toyTagDim, Partitions: 5,
				Init: schema.Init{Kind: schema.InitUniform, Scale: 0.3}},
		},
	}
}

// sample is one example: its words and tags, and its class.
type sample struct {
	words, tags []uint64
	class       int32
}

// samples are those of a lane: none in one lane of four, and none at all in batch 3.
func (m *toy) samples(b schema.Batch, l lane.Lane) []sample {
	if m.same {
		b = 0
	}
	random := rand.New(rand.NewPCG(m.job.Seed, uint64(b)<<16|uint64(l)))
	n := random.IntN(6)
	if b == 3 || (int(l)+int(b))%4 == 3 {
		n = 0
	}
	all := make([]sample, n)
	for i := range all {
		s := &all[i]
		for range random.IntN(5) {
			s.words = append(s.words, random.Uint64N(toyWords))
		}
		if l != 2 { // this lane has no tags
			s.tags = append(s.tags, random.Uint64N(toyTags), random.Uint64N(toyTags))
		}
		s.class = int32(random.IntN(toyClasses))
	}
	return all
}

func (m *toy) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	if m.ask != nil {
		m.ask(b)
	}
	all := m.samples(b, l)
	for _, s := range all {
		keys[0] = append(keys[0], s.words...)
		keys[1] = append(keys[1], s.tags...)
	}
	return len(all), keys
}

func (m *toy) Lane(step *LaneStep) (float64, error) {
	if m.enter != nil {
		m.enter(step.Batch, step.Lane)
	}
	all := m.samples(step.Batch, step.Lane)
	if len(all) != step.Samples {
		return 0, fmt.Errorf("%d samples, want %d", step.Samples, len(all))
	}
	n := len(all)
	words := newBag(step, 0, toyWordDim, cuda.Sum, all, func(s sample) int { return len(s.words) })
	tags := newBag(step, 1, toyTagDim, cuda.Mean, all, func(s sample) int { return len(s.tags) })
	x, logits, grad, loss := make([]float32, n*toyInputs), make([]float32, n*toyClasses), make([]float32, n*toyClasses),
		make([]float32, n)
	bias, targets := make([]float32, toyClasses), make([]int32, n)
	for i, s := range all {
		targets[i] = s.class
	}
	for i := range bias {
		bias[i] = step.Param("bias")[i] + step.Param("shift")[i]
	}
	errs := []error{words.forward(m.backend), tags.forward(m.backend)}
	for i := range n {
		copy(x[i*toyInputs:], words.out[i*toyWordDim:(i+1)*toyWordDim])
		copy(x[i*toyInputs+toyWordDim:], tags.out[i*toyTagDim:(i+1)*toyTagDim])
	}
	ones, dx := make([]float32, n), make([]float32, n*toyInputs)
	for i := range ones {
		ones[i] = 1
	}
	errs = append(errs,
		m.backend.MatMul(cuda.MatMul{M: n, N: toyClasses, K: toyInputs, A: cuda.Float32s(x),
			B: cuda.Float32s(step.Param("weight")), Bias: cuda.Float32s(bias), C: cuda.Float32s(logits)}),
		m.backend.SoftmaxCrossEntropy(cuda.SoftmaxCrossEntropy{Classes: toyClasses, Logits: cuda.Float32s(logits),
			Targets: cuda.Int32s(targets), Loss: cuda.Float32s(loss), Grad: cuda.Float32s(grad)}),
		m.backend.MatMul(cuda.MatMul{M: 1, N: toyClasses, K: n, A: cuda.Float32s(ones), B: cuda.Float32s(grad),
			C: cuda.Float32s(step.Grad("bias"))}))
	if m.spoil != nil {
		m.spoil(step, step.Grad("bias"))
	}
	step.Done("bias")
	if step.Lane%2 == 0 {
		copy(step.Grad("shift"), m.columnSums(ones, grad))
	}
	step.Done("shift")
	errs = append(errs,
		m.backend.MatMul(cuda.MatMul{M: toyInputs, N: toyClasses, K: n, TransA: true, A: cuda.Float32s(x),
			B: cuda.Float32s(grad), C: cuda.Float32s(step.Grad("weight"))}),
		m.backend.MatMul(cuda.MatMul{M: n, N: toyInputs, K: toyClasses, TransB: true, A: cuda.Float32s(grad),
			B: cuda.Float32s(step.Param("weight")), C: cuda.Float32s(dx)}))
	for i, g := 0, step.Grad("ballast"); i < len(g); i++ {
		g[i] = float32(step.Param("ballast")[i]*loss[0]) + float32(i)
	}
	for i := range n {
		copy(words.grad[i*toyWordDim:(i+1)*toyWordDim], dx[i*toyInputs:])
		copy(tags.grad[i*toyTagDim:(i+1)*toyTagDim], dx[i*toyInputs+toyWordDim:])
	}
	errs = append(errs, words.backward(m, step), tags.backward(m, step))
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	sum := 0.0
	for _, l := range loss {
		sum += float64(l)
	}
	return sum, nil
}

// bag is the embedding bag of one table over a lane.
type bag struct {
	table     schema.Table
	dim       int
	mode      cuda.Mode
	rows      []float32
	ids       []int64
	offsets   []int64
	out, grad []float32
}

func newBag(step *LaneStep, table schema.Table, dim int, mode cuda.Mode, all []sample, length func(sample) int) *bag {
	b := &bag{table: table, dim: dim, mode: mode, rows: step.Rows(table), ids: step.IDs(table), offsets: []int64{0},
		out: make([]float32, len(all)*dim), grad: make([]float32, len(all)*dim)}
	for i, s := range all {
		b.offsets = append(b.offsets, b.offsets[i]+int64(length(s)))
	}
	return b
}

func (b *bag) forward(backend cuda.Backend) error {
	return backend.BagForward(cuda.BagForward{Dim: b.dim, Mode: b.mode, Padding: cuda.NoPadding,
		Rows: cuda.Float32s(b.rows), IDs: cuda.Int64s(b.ids), Offsets: cuda.Int64s(b.offsets), Out: cuda.Float32s(b.out)})
}

// backward gives the gradient by bags, but for the tags of one batch in three, which it gives by rows.
func (b *bag) backward(m *toy, step *LaneStep) error {
	switch {
	case len(b.ids) == 0: // without keys the gradient need not be given
		return nil
	case !m.byRows && (b.table == 0 || step.Batch%3 != 1):
		step.BagGrad(b.table, b.mode, b.offsets, b.grad)
		return nil
	}
	keys, out := make([]int64, len(b.ids)), make([]float32, len(b.ids)*b.dim)
	n, err := m.backend.BagBackward(cuda.BagBackward{Dim: b.dim, Mode: b.mode, Padding: cuda.NoPadding,
		R: int64(len(b.rows) / b.dim), IDs: cuda.Int64s(b.ids),
		Offsets: cuda.Int64s(b.offsets), GradOut: cuda.Float32s(b.grad), Keys: cuda.Int64s(keys), Out: cuda.Float32s(out)})
	if err == nil {
		step.RowGrad(b.table, keys[:n], out[:n*b.dim])
	}
	return err
}

// columnSums is the gradient of the shift: that of the bias, computed apart.
func (m *toy) columnSums(ones, grad []float32) []float32 {
	out := make([]float32, toyClasses)
	if err := m.backend.MatMul(cuda.MatMul{M: 1, N: toyClasses, K: len(ones), A: cuda.Float32s(ones),
		B: cuda.Float32s(grad), C: cuda.Float32s(out)}); err != nil {
		panic(err)
	}
	return out
}

func newToy(t testing.TB, job *schema.Job) *toy {
	return &toy{backend: testBackend(t), job: job, byRows: job.Wire.DType() != schema.DTypeFloat32}
}
