package average

import (
	"fmt"
	"strings"

	"gradbus/nn"
	"gradbus/schema"
)

// embeddingName is the embedding's name, a table where its gradient travels as rows and a parameter elsewhere. The
// linear layers are dense.0.weight, dense.0.bias, dense.1.weight, and so on.
const embeddingName = "embedding.weight"

// partitions is how many parts the embedding's rows are cut into, which shards or trainers share.
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
	by, err := criteria.find("criterion", criterionName)
	if err != nil {
		return nil, err
	}
	net, err := nn.NewNet(c.module(), nil, e)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	net.GradX = c.Sparse
	m := &model{net: net, criterion: by, classes: c.DenseOutputSize,
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
var criteria = choice[criterion]{
	{"cel", func(m *model, y []float32, targets []int32, grad []float32) (float64, error) {
		return m.loss.Loss(y, targets, grad)
	}},
	{"nll", negativeLogarithm},
}
