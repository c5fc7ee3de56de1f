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
	"gradbus/schema"
	"gradbus/trainer"
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
