package average

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer"
)

// embeddingName is the embedding's name, a table where its gradient travels as rows and a parameter elsewhere. The
// linear layers are dense.0.weight, dense.0.bias, dense.1.weight, and so on.
const embeddingName = "embedding.weight"

// partitions is the number of parts of the embedding's rows, which shards or trainers share.
const partitions = 64

// module is DummyModel: the mean of a sample's rows, linear layers, and a softmax. The criterion takes the logarithm of
// a softmax of that once more, which is DummyModel's own and kept, since its speed is what is measured.
func (c modelConfig) module() nn.Module {
	bag := nn.BagLayer{Rows: c.NumEmbeddings, Dim: c.EmbeddingDim, Mode: nn.BagMean}
	if c.Sparse {
		bag.Rows, bag.Served = 0, true
	}
	layers := make([]nn.Module, c.DenseLayersCount)
	for i := range layers {
		layers[i] = nn.LinearLayer{In: c.DenseInputSize, Out: c.DenseOutputSize}
	}
	return nn.Sequential(bag, nn.Sequential(layers...), nn.Softmax{})
}

// named gives a parameter of the module the name that it has in the model.
func named(parameter string) string {
	if rest, ok := strings.CutPrefix(parameter, "0."); ok {
		return "embedding." + rest
	}
	return "dense." + strings.TrimPrefix(parameter, "1.")
}

// tensors are the model's parameters and tables, as a job has them.
func (c modelConfig) tensors() (parameters []schema.Parameter, tables []schema.TableSpec) {
	for _, p := range c.module().Parameters() {
		parameters = append(parameters,
			schema.Parameter{Name: named(p.Name), Shape: p.Shape, Init: schema.Init{Kind: p.Kind, Scale: p.Scale}})
	}
	if c.Sparse {
		tables = append(tables, schema.TableSpec{Name: embeddingName, Rows: uint64(c.NumEmbeddings), Dim: c.EmbeddingDim,
			Partitions: min(partitions, c.NumEmbeddings), Replicated: true,
			Init: schema.Init{Kind: schema.InitNormal, Scale: 1}})
	}
	return parameters, tables
}

// model computes DummyModel and its loss, forward and backward. It keeps the memory of one pass and allocates nothing
// after the first of a size; it is not safe for concurrent use.
type model struct {
	net       *nn.Net
	names     []string // of the parameters, in the module's order
	criterion criterion
	loss      *nn.CrossEntropy
	classes   int
	gradY     []float32
}

// newModel readies the model. The configuration must be one that loadModel gives, the criterion one of criteria.
func newModel(c modelConfig, criterionName string, e nn.Env) (*model, error) {
	net, err := nn.NewNet(c.module(), nil, e)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	net.GradX = c.Sparse
	m := &model{net: net, criterion: criteria[criterionName], classes: c.DenseOutputSize,
		loss: nn.NewCrossEntropy(e.Backend, c.DenseOutputSize)}
	for _, p := range net.Parameters() {
		m.names = append(m.names, named(p.Name))
	}
	return m, nil
}

// forward gives the sum of the losses of the samples whose ids bags has, with params in the order of names. bags.Rows
// are the embedding's rows where those are a table.
func (m *model) forward(params [][]float32, bags nn.Bags, targets []int32) (lossSum float64, err error) {
	y, err := m.net.ForwardBags(params, bags, nn.Mode{Train: true})
	if err != nil {
		return 0, err
	}
	if cap(m.gradY) < len(y) {
		m.gradY = make([]float32, len(y))
	}
	m.gradY = m.gradY[:len(y)]
	return m.criterion(m, y, targets, m.gradY)
}

// backward goes back through the last Forward: grad(i) is where the gradient of parameter i goes, the sum over the
// samples, and done(i) says that it is there. pooled is the gradient of the pooled rows, where those are of a table.
func (m *model) backward(params [][]float32, grad func(i int) []float32, done func(i int)) (pooled []float32,
	err error) {
	return m.net.Backward(params, m.gradY, grad, done)
}

// criterion gives the sum of the samples' losses from y [n, classes], what the model's softmax gave, and writes the
// sum's gradient with respect to y.
type criterion func(m *model, y []float32, targets []int32, grad []float32) (float64, error)

// criteria are the choices of --criterion: cross-entropy, which takes y for logits, and the negative logarithm of y
// itself.
var criteria = map[string]criterion{
	"cel": func(m *model, y []float32, targets []int32, grad []float32) (float64, error) {
		return m.loss.Loss(y, targets, grad)
	},
	"nll": negativeLogarithm,
}

// data is DummyData: every sample is ids drawn with replacement from a part of all ids, chosen once, and a target. It
// is a pure function of the configuration and the seed.
type data struct {
	Length  int     // ids of a sample
	IDs     []int32 // [samples, Length]
	Targets []int32 // [samples]
}

// newData draws the data. The configuration must be one that loadData gives.
func newData(c dataConfig, seed uint64) *data {
	chosen := philox.Permutation(seed, 0, c.MaxVal)[:c.ids()]
	d := &data{Length: c.SampleLength, IDs: make([]int32, c.SampleCount*c.SampleLength),
		Targets: make([]int32, c.SampleCount)}
	ids, targets := philox.New(seed, "dummy data ids", 0, 0, 0), philox.New(seed, "dummy data targets", 0, 0, 0)
	for i := range d.IDs {
		d.IDs[i] = chosen[ids.Below(uint32(len(chosen)))]
	}
	for i := range d.Targets {
		d.Targets[i] = int32(targets.Below(uint32(c.MaxVal)))
	}
	return d
}

// samples returns the number of samples.
func (d *data) samples() int { return len(d.Targets) }

// dealt is the assignment of samples to trainers: in their order, in batches of a fixed size, which go to the trainers
// in turn. So in step s, counted through the epochs, trainer t has batch s * trainers + t of its epoch, if there is
// one.
type dealt struct {
	samples, batchSize, trainers int
}

// batches returns the number of batches in an epoch; the last may be smaller than the others.
func (d dealt) batches() int { return (d.samples + d.batchSize - 1) / d.batchSize }

// steps returns the number of steps in an epoch. In the last one some trainers may have no batch.
func (d dealt) steps() int { return (d.batches() + d.trainers - 1) / d.trainers }

// of gives the samples [lo, hi) of a trainer in a step; none where it has no batch.
func (d dealt) of(step uint64, trainer int) (lo, hi int) {
	lo = (int(step%uint64(d.steps()))*d.trainers + trainer) * d.batchSize
	return min(lo, d.samples), min(lo+d.batchSize, d.samples)
}

// preprocessing is a transformation of the data before training, by name.
type preprocessing func(*data)

// preprocessings are the choices of --preprocess.
var preprocessings = map[string]preprocessing{"preprocess_dummy_data": func(*data) {}, "sort_ids": sortIDs}

// sortIDs puts the ids of every sample in order, which changes no mean but for its rounding.
func sortIDs(d *data) {
	for i := range d.samples() {
		slices.Sort(d.IDs[i*d.Length : (i+1)*d.Length])
	}
}

// workload feeds and computes the lanes of a job, of which each trainer has one; it is a trainer.Workload. It is not
// safe for concurrent use.
type workload struct {
	data   *data
	dealt  dealt
	scale  func(sizes []int, lane int) float32 // of a lane's gradient, by the mean
	sizes  []int                               // of the lanes of a step
	model  *model
	sparse bool
	step   iterationStep

	now    *trainer.LaneStep // the step at hand
	params [][]float32       // its parameters
	grad   func(i int) []float32
	done   func(i int)

	ids, offsets []int64
	times        passTimes // of the last lane computed
}

// passTimes is when the parts of a step were done.
type passTimes struct{ begun, forward, backward time.Time }

var _ trainer.Workload = (*workload)(nil)

// newWorkload draws the data and readies the model.
func newWorkload(s *system, e nn.Env) (*workload, error) {
	model, err := newModel(s.Model, s.Criterion, e)
	if err != nil {
		return nil, err
	}
	w := &workload{data: newData(s.Data, s.Seed), dealt: s.dealt(), scale: means[s.Mean], model: model,
		sparse: s.Model.Sparse, step: iterationSteps[s.IterationStep]}
	w.grad = func(i int) []float32 { return w.now.Grad(model.names[i]) }
	w.done = func(i int) { w.now.Done(model.names[i]) }
	preprocessings[s.Preprocess](w.data)
	return w, nil
}

// Keys appends the ids of a lane's batch, where they are keys of a table.
func (w *workload) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	lo, hi := w.dealt.of(uint64(b), int(l))
	if w.sparse {
		for _, id := range w.data.IDs[lo*w.data.Length : hi*w.data.Length] {
			keys[0] = append(keys[0], uint64(id))
		}
	}
	return hi - lo, keys
}

// Lane is one step of a trainer.
func (w *workload) Lane(s *trainer.LaneStep) (lossSum float64, err error) {
	w.now, w.params = s, w.params[:0]
	for _, name := range w.model.names {
		w.params = append(w.params, s.Param(name))
	}
	return w.step(w, s)
}

// forward is a step's forward pass and loss.
func (w *workload) forward(s *trainer.LaneStep) (lossSum float64, err error) {
	w.times.begun = time.Now()
	lo, hi := w.dealt.of(uint64(s.Batch), int(s.Lane))
	w.offsets = w.offsets[:0]
	for i := range hi - lo + 1 {
		w.offsets = append(w.offsets, int64(i*w.data.Length))
	}
	bags := nn.Bags{Offsets: w.offsets}
	if w.sparse {
		bags.Rows, bags.IDs = s.Rows(0), s.IDs(0)
	} else {
		w.ids = w.ids[:0]
		for _, id := range w.data.IDs[lo*w.data.Length : hi*w.data.Length] {
			w.ids = append(w.ids, int64(id))
		}
		bags.IDs = w.ids
	}
	lossSum, err = w.model.forward(w.params, bags, w.data.Targets[lo:hi])
	if scale := w.scale(w.laneSizes(uint64(s.Batch)), int(s.Lane)); scale != 1 {
		for i := range w.model.gradY {
			w.model.gradY[i] *= scale
		}
	}
	w.times.forward = time.Now()
	return lossSum, err
}

// laneSizes are the samples of each lane of a step.
func (w *workload) laneSizes(step uint64) []int {
	w.sizes = w.sizes[:0]
	for l := range w.dealt.trainers {
		lo, hi := w.dealt.of(step, l)
		w.sizes = append(w.sizes, hi-lo)
	}
	return w.sizes
}

// backward is its backward pass; done is told which gradients are final.
func (w *workload) backward(s *trainer.LaneStep, done func(i int)) error {
	pooled, err := w.model.backward(w.params, w.grad, done)
	if err != nil {
		return err
	}
	if w.sparse {
		s.BagGrad(0, cuda.Mean, w.offsets, pooled)
	}
	w.times.backward = time.Now()
	return nil
}

// means are the choices of --mean.
var means = map[string]func(sizes []int, lane int) float32{
	harness.MeanSamples: func([]int, int) float32 { return 1 },
	harness.MeanLanes:   harness.LaneScale,
}

// iterationStep is the work of a trainer on a batch, by name.
type iterationStep func(w *workload, s *trainer.LaneStep) (lossSum float64, err error)

// iterationSteps are the choices of --iteration-step. Both give the same weights.
var iterationSteps = map[string]iterationStep{
	"basic_iteration_step":      basicStep,
	"sequential_iteration_step": sequentialStep,
}

// basicStep sends each gradient as soon as it is final, while the backward pass continues.
func basicStep(w *workload, s *trainer.LaneStep) (float64, error) {
	lossSum, err := w.forward(s)
	if err != nil {
		return 0, err
	}
	return lossSum, w.backward(s, w.done)
}

// sequentialStep sends nothing before the backward pass is over, which shows what their overlap is worth.
func sequentialStep(w *workload, s *trainer.LaneStep) (float64, error) {
	lossSum, err := w.forward(s)
	if err != nil {
		return 0, err
	}
	return lossSum, w.backward(s, nil)
}
