package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

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

// earlierFormat names the files that this workload had before they had a manifest.
const earlierFormat = "gradbus packages 1"

// classesEntry is the entry of a saved model's metadata that has the names of the classes, as JSON.
const classesEntry = "classes"

// Model is a trained model with what is needed to use it.
type Model struct {
	Weights
	Classes []string
	Dim     int
	File    *trainer.Model // that it was loaded from
}

// Metadata returns the text in the file of a model besides its weights and its manifest: see trainer.Session.Save.
func Metadata(data *corpus.Data) map[string]string {
	classes, _ := json.Marshal(data.Classes) // texts
	return map[string]string{classesEntry: string(classes)}
}

// LoadModel reads a file that was saved with Metadata. It fails with ErrModel where it is something else, cut or changed,
// and where it cannot be opened (fs.ErrNotExist).
func LoadModel(path string) (*Model, error) {
	file, err := trainer.OpenModel(path)
	if errors.Is(err, trainer.ErrModel) {
		file, err = openEarlier(path, err)
	}
	if errors.Is(err, trainer.ErrModel) {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	} else if err != nil {
		return nil, err
	}
	m := &Model{Weights: file, File: file}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModel, path, err)
	}
	return m, nil
}

// openEarlier opens a file of an earlier version, which has no manifest, or returns otherwise, the error of any other file.
func openEarlier(path string, otherwise error) (*trainer.Model, error) {
	metadata, tensors, err := safetensors.Load(path, func(map[string]string, map[string]safetensors.Tensor) error {
		return nil
	})
	if table := tensors[embeddingName]; err != nil || metadata["format"] != earlierFormat || len(table.Shape) != 2 {
		return nil, otherwise
	}
	var classes []string
	s := Defaults()
	if s.Dim = tensors[embeddingName].Shape[1]; json.Unmarshal([]byte(metadata[classesEntry]), &classes) != nil ||
		len(classes) == 0 || s.Dim == 0 || metadata["tokenizer"] != corpus.Tokenizer {
		return nil, otherwise
	}
	return trainer.OpenWeights(path, Job(s, &corpus.Data{Classes: classes}))
}

// check takes what the manifest and the metadata say.
func (m *Model) check() error {
	job := m.File.Job()
	if job.Workload != Name || len(job.Tables) != 1 || job.Tables[0].Rows != corpus.Rows {
		return fmt.Errorf("it is of workload %q: want %s, with one table of %d rows", job.Workload, Name, corpus.Rows)
	}
	if got := job.Settings["tokenizer"]; got != corpus.Tokenizer {
		return fmt.Errorf("tokenizer %q, want %q", got, corpus.Tokenizer)
	}
	if err := json.Unmarshal([]byte(m.File.Metadata[classesEntry]), &m.Classes); err != nil || len(m.Classes) == 0 {
		return errors.New("its classes are no list of names")
	}
	m.Dim = job.Tables[0].Dim
	if len(m.Param(weightName)) != len(m.Classes)*m.Dim || len(m.Param(biasName)) != len(m.Classes) {
		return fmt.Errorf("%s and %s do not fit its %d classes", weightName, biasName, len(m.Classes))
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
	e := evaluator{weights: m.Weights, layers: newLayers(backend, m.Dim, len(m.Classes)), dim: m.Dim, classes: len(m.Classes),
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
	Lookup(ctx context.Context, asks []trainer.Query) ([][]float32, error)
	// Param gives a dense parameter.
	Param(name string) []float32
}

var _ Weights = (*trainer.Session)(nil)

// evaluationSamples is the number of samples that are evaluated at once: it bounds the rows in memory, about 10 per
// sample.
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
	rows, err := e.weights.Lookup(ctx, []trainer.Query{{Table: 0, Keys: keys}})
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
