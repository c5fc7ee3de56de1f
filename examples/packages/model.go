package packages

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gradbus/cuda"
	"gradbus/examples/packages/corpus"
	"gradbus/internal/safetensors"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
	"gradbus/trainer/shuffle"
)

// ErrModel says that a file is no model of this workload; the text says what is wrong with it.
var ErrModel = errors.New("not a model of the workload packages")

// ErrNoWords says that a text has no token, so that there is nothing to predict from.
var ErrNoWords = errors.New("no words")

// format names what the metadata of a saved model hold.
const format = "gradbus packages 1"

// Model is a trained model with what is needed to use it.
type Model struct {
	Classes []string
	Dim     int
	// why it may be wrong: memory of a GPU was, while it was trained; empty where nothing speaks for it
	Suspect   string
	Synthetic bool              // trained on the generated corpus
	Settings  map[string]string // how it was trained, for people
	Embedding []float32         // [corpus.Rows, Dim]
	Weight    []float32         // [classes, Dim]
	Bias      []float32         // [classes]
}

// Collect reads the whole model from a session at its current version.
func Collect(ctx context.Context, session *trainer.Session, s Settings, data *corpus.Data) (*Model, error) {
	m := &Model{
		Classes: data.Classes, Dim: s.Dim, Synthetic: data.Synthetic, Settings: s.record(data),
		Embedding: make([]float32, corpus.Rows*s.Dim),
		Weight:    slices.Clone(session.Param(weightName)),
		Bias:      slices.Clone(session.Param(biasName)),
	}
	err := session.Table(ctx, 0, func(_ schema.Partition, keys []uint64, rows []float32) error {
		for i, key := range keys {
			copy(m.Embedding[int(key)*s.Dim:][:s.Dim], rows[i*s.Dim:])
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("collect the model: %w", err)
	}
	return m, nil
}

// record is the settings as text.
func (s Settings) record(data *corpus.Data) map[string]string {
	record := s.Record()
	record["batch"], record["data"] = strconv.Itoa(s.Batch), hex.EncodeToString(data.Digest[:])
	return record
}

// Save writes the model as a safetensors file: tensors embedding.weight [262144, Dim], linear.weight [classes, Dim] and
// linear.bias [classes], float32, and in the metadata the classes, the tokenizer and the settings, and "suspect" where
// it may be wrong. The file is there whole or not at all: it is written beside path and then renamed.
func (m *Model) Save(path string) error {
	classes, err := json.Marshal(m.Classes)
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	metadata := map[string]string{"format": format, "classes": string(classes), "tokenizer": corpus.Tokenizer,
		"synthetic": strconv.FormatBool(m.Synthetic)}
	if m.Suspect != "" {
		metadata["suspect"] = m.Suspect
	}
	for name, value := range m.Settings {
		metadata["settings."+name] = value
	}
	err = safetensors.Save(path, metadata, []safetensors.Tensor{
		{Name: embeddingName, Shape: []int{corpus.Rows, m.Dim}, Values: m.Embedding},
		{Name: biasName, Shape: []int{len(m.Classes)}, Values: m.Bias},
		{Name: weightName, Shape: []int{len(m.Classes), m.Dim}, Values: m.Weight},
	})
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// LoadModel reads a file that Save wrote. It fails with ErrModel where it is something else, cut, of other shapes, or
// holds values that are not finite; and where it cannot be opened (fs.ErrNotExist).
func LoadModel(path string) (*Model, error) {
	m, err := safetensors.Read(path, modelOf)
	var unfit *safetensors.ContentError
	switch {
	case err == nil:
		return m, nil
	case errors.As(err, &unfit):
		return nil, fmt.Errorf("load model %s: %w", path, unfit.Err)
	case errors.Is(err, safetensors.ErrFormat):
		return nil, fmt.Errorf("load model: %w: %w", ErrModel, err)
	}
	return nil, fmt.Errorf("load model: %w", err)
}

func modelOf(metadata map[string]string, tensors map[string]safetensors.Tensor) (*Model, error) {
	if got := metadata["format"]; got != format {
		return nil, fmt.Errorf("%w: format %q in its metadata, want %q", ErrModel, got, format)
	}
	if got := metadata["tokenizer"]; got != corpus.Tokenizer {
		return nil, fmt.Errorf("%w: tokenizer %q, want %q", ErrModel, got, corpus.Tokenizer)
	}
	m := &Model{Settings: map[string]string{}, Synthetic: metadata["synthetic"] == "true", Suspect: metadata["suspect"]}
	for name, value := range metadata {
		if setting, ok := strings.CutPrefix(name, "settings."); ok {
			m.Settings[setting] = value
		}
	}
	if err := json.Unmarshal([]byte(metadata["classes"]), &m.Classes); err != nil || len(m.Classes) == 0 {
		return nil, fmt.Errorf("%w: its classes are no list of names", ErrModel)
	}
	table, err := safetensors.Find(tensors, embeddingName)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	if len(table.Shape) != 2 || table.Shape[0] != corpus.Rows || table.Shape[1] < 1 {
		return nil, fmt.Errorf("%w: %s has shape %v, want [%d, dim]", ErrModel, embeddingName, table.Shape, corpus.Rows)
	}
	m.Dim = table.Shape[1]
	for _, want := range []struct {
		name  string
		shape []int
		to    *[]float32
	}{
		{embeddingName, []int{corpus.Rows, m.Dim}, &m.Embedding},
		{weightName, []int{len(m.Classes), m.Dim}, &m.Weight},
		{biasName, []int{len(m.Classes)}, &m.Bias},
	} {
		values, err := safetensors.Values(tensors, want.name, want.shape)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrModel, err)
		}
		*want.to = values
	}
	if len(tensors) != 3 {
		return nil, fmt.Errorf("%w: %d tensors, want %s, %s and %s alone", ErrModel, len(tensors), embeddingName,
			weightName, biasName)
	}
	return m, nil
}

// Lookup gives rows of the table, as a session does; it makes a Model a Weights.
func (m *Model) Lookup(_ context.Context, asks []trainer.TableKeys) ([][]float32, error) {
	out := make([][]float32, len(asks))
	for i, ask := range asks {
		out[i] = make([]float32, 0, len(ask.Keys)*m.Dim)
		for _, key := range ask.Keys {
			if ask.Table != 0 || key >= corpus.Rows {
				return nil, fmt.Errorf("lookup: key %d of table %d: want table 0 and keys below %d", key, ask.Table, corpus.Rows)
			}
			out[i] = append(out[i], m.Embedding[int(key)*m.Dim:][:m.Dim]...)
		}
	}
	return out, nil
}

// Param gives a dense parameter, nil for an unknown name.
func (m *Model) Param(name string) []float32 {
	switch name {
	case weightName:
		return m.Weight
	case biasName:
		return m.Bias
	}
	return nil
}

// Prediction is a section and how probable the model holds it.
type Prediction struct {
	Section     string  `json:"section"`
	Probability float64 `json:"probability"`
}

// Predict gives all sections for a package, the most probable first and of equal ones in the order of names. text is
// taken as the first line of its description; name, which may be empty, as its name. It fails with ErrNoWords where
// neither has a token.
//
//	predictions, err := model.Predict(backend, "text editor with syntax highlighting", "")
func (m *Model) Predict(backend cuda.Backend, text, name string) ([]Prediction, error) {
	keys := corpus.AppendKeys(nil, name, text)
	if len(keys) == 0 {
		return nil, fmt.Errorf("predict %q: %w: want letters or digits", text, ErrNoWords)
	}
	e := evaluator{weights: m, layers: newLayers(backend, m.Dim, len(m.Classes)), dim: m.Dim, classes: len(m.Classes),
		offsets: []int64{0, int64(len(keys))}}
	scores, err := e.scores(context.Background(), keys)
	if err != nil {
		return nil, fmt.Errorf("predict %q: %w", text, err)
	}
	probabilities := make([]float32, len(scores))
	if err := e.layers.loss.Probabilities(scores, probabilities); err != nil {
		return nil, fmt.Errorf("predict %q: %w", text, err)
	}
	all := make([]Prediction, len(scores))
	for i, p := range probabilities {
		all[i] = Prediction{m.Classes[i], float64(p)}
	}
	slices.SortStableFunc(all, func(a, b Prediction) int {
		switch {
		case a.Probability > b.Probability:
			return -1
		case a.Probability < b.Probability:
			return 1
		}
		return 0
	})
	return all, nil
}

// Workload feeds and computes the lanes of a job; it is a trainer.Workload. It is not safe for concurrent use.
type Workload struct {
	settings Settings
	data     *corpus.Data
	shuffler *shuffle.Shuffler
	layers   *layers

	targets                        []int32
	logits, gradLogits, gradPooled []float32
}

var _ trainer.Bagged = (*Workload)(nil)

// NewWorkload readies the examples of data for the job of s. It fails where shuffle.New does.
func NewWorkload(s Settings, data *corpus.Data, backend cuda.Backend) (*Workload, error) {
	shuffler, err := shuffle.New(s.Seed, data.Train.Len(), s.Batch, s.LaneCount())
	if err != nil {
		return nil, err
	}
	return &Workload{settings: s, data: data, shuffler: shuffler, layers: newLayers(backend, s.Dim, len(data.Classes))},
		nil
}

// layers is the model without its parameters.
type layers struct {
	bag    *nn.EmbeddingBag
	linear *nn.Linear
	loss   *nn.CrossEntropy
}

func newLayers(backend cuda.Backend, dim, classes int) *layers {
	return &layers{bag: nn.NewEmbeddingBag(backend, dim, cuda.Mean), linear: nn.NewLinear(backend, dim, classes),
		loss: nn.NewCrossEntropy(backend, classes)}
}

// examples are the training examples of a lane, as indices into the training set.
func (w *Workload) examples(b schema.Batch, l lane.Lane) []int32 { return w.shuffler.Samples(b, l) }

// Keys appends the keys of a lane's examples.
func (w *Workload) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	chosen := w.examples(b, l)
	for _, i := range chosen {
		keys[0] = append(keys[0], w.data.Train.KeysOf(int(i))...)
	}
	return len(chosen), keys
}

// Bags appends where each example's keys begin: an example is a bag.
func (w *Workload) Bags(b schema.Batch, l lane.Lane, offsets [][]int64) [][]int64 {
	at, all := int64(0), append(offsets[0], 0)
	for _, i := range w.examples(b, l) {
		at += int64(len(w.data.Train.KeysOf(int(i))))
		all = append(all, at)
	}
	offsets[0] = all
	return offsets
}

// Lane computes forward, loss and backward of a lane. The linear layer's gradients are declared final before those of
// the rows are computed, so that they are under way meanwhile.
func (w *Workload) Lane(step *trainer.LaneStep) (lossSum float64, err error) {
	pooled, chosen := step.Pooled(0), w.examples(step.Batch, step.Lane)
	n, dim, classes := len(chosen), w.settings.Dim, len(w.data.Classes)
	w.targets = w.targets[:0]
	for _, i := range chosen {
		w.targets = append(w.targets, w.data.Train.Labels[i])
	}
	w.gradPooled = grown(w.gradPooled, n*dim)
	w.logits, w.gradLogits = grown(w.logits, n*classes), grown(w.gradLogits, n*classes)
	weight := step.Param(weightName)
	if err := w.layers.linear.Forward(weight, step.Param(biasName), pooled, w.logits); err != nil {
		return 0, err
	}
	if lossSum, err = w.layers.loss.Loss(w.logits, w.targets, w.gradLogits); err != nil {
		return 0, err
	}
	if err := w.layers.linear.BackwardParams(pooled, w.gradLogits, step.Grad(weightName),
		step.Grad(biasName)); err != nil {
		return 0, err
	}
	step.Done(biasName)
	step.Done(weightName)
	if err := w.layers.linear.BackwardInput(weight, w.gradLogits, w.gradPooled); err != nil {
		return 0, err
	}
	step.PooledGrad(0, w.gradPooled)
	return lossSum, nil
}

// grown gives s the length n, keeping its memory where that suffices. Values are what they happen to be.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

// Weights gives the weights of a model in training; a *trainer.Session is one.
type Weights interface {
	// Lookup gives the rows [len(Keys), dim] of each of asks.
	Lookup(ctx context.Context, asks []trainer.TableKeys) ([][]float32, error)
	// Param gives a dense parameter.
	Param(name string) []float32
}

var _ Weights = (*trainer.Session)(nil)

// evaluationSamples is how many samples are evaluated at once: it bounds the rows that are held, about 10 a sample.
const evaluationSamples = 4096

// Evaluate is the share of examples whose highest score is that of their class; of equal scores the first counts. dim
// and classes are those of the model. It fails where the lookup or the backend does, and where the set is empty.
//
//	accuracy, err := packages.Evaluate(ctx, session, backend, settings.Dim, len(data.Classes), &data.Test)
func Evaluate(ctx context.Context, w Weights, backend cuda.Backend, dim, classes int, set *corpus.Examples) (float64,
	error) {
	if set.Len() == 0 {
		return 0, fmt.Errorf("evaluate: no examples")
	}
	e := evaluator{weights: w, layers: newLayers(backend, dim, classes), dim: dim, classes: classes}
	right := 0
	for lo := 0; lo < set.Len(); lo += evaluationSamples {
		hi := min(lo+evaluationSamples, set.Len())
		keys := set.Keys[set.Offsets[lo]:set.Offsets[hi]]
		e.offsets = e.offsets[:0]
		for _, at := range set.Offsets[lo : hi+1] {
			e.offsets = append(e.offsets, at-set.Offsets[lo])
		}
		logits, err := e.scores(ctx, keys)
		if err != nil {
			return 0, fmt.Errorf("evaluate examples %d to %d: %w", lo, hi, err)
		}
		for i, label := range set.Labels[lo:hi] {
			if highest(logits[i*classes:][:classes]) == int(label) {
				right++
			}
		}
	}
	return float64(right) / float64(set.Len()), nil
}

// evaluator runs the model forward.
type evaluator struct {
	weights        Weights
	layers         *layers
	dim, classes   int
	ids            []int64
	offsets        []int64 // [n+1] of the samples in hand
	pooled, logits []float32
}

// scores gives the logits [n, classes] of samples whose keys begin at e.offsets. They are valid until the next call.
func (e *evaluator) scores(ctx context.Context, keys []uint64) ([]float32, error) {
	rows, err := e.weights.Lookup(ctx, []trainer.TableKeys{{Table: 0, Keys: keys}})
	if err != nil {
		return nil, err
	}
	for len(e.ids) < len(keys) {
		e.ids = append(e.ids, int64(len(e.ids)))
	}
	n := len(e.offsets) - 1
	e.pooled, e.logits = grown(e.pooled, n*e.dim), grown(e.logits, n*e.classes)
	if err := e.layers.bag.Forward(rows[0], e.ids[:len(keys)], e.offsets, e.pooled); err != nil {
		return nil, err
	}
	err = e.layers.linear.Forward(e.weights.Param(weightName), e.weights.Param(biasName), e.pooled, e.logits)
	return e.logits, err
}

func highest(scores []float32) int {
	best := 0
	for i, s := range scores {
		if s > scores[best] {
			best = i
		}
	}
	return best
}
