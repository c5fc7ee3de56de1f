package average

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"gradbus/internal/regular"
	"gradbus/schema"
)

// The configurations that are used where no file is given; they are also the examples of what a file looks like.
//
//go:embed configurations/model_configurations.json
var modelConfigurations []byte

//go:embed configurations/data_configurations.json
var dataConfigurations []byte

// modelConfig is DummyModel: an embedding bag that takes the mean, linear layers without an activation between them,
// and a softmax. The fields are those of a configuration file.
type modelConfig struct {
	NumEmbeddings    int  `json:"num_embeddings"`     // rows of the embedding
	EmbeddingDim     int  `json:"embedding_dim"`      // values of a row: what the first linear layer takes
	DenseInputSize   int  `json:"dense_input_size"`   // of every linear layer
	DenseOutputSize  int  `json:"dense_output_size"`  // of every linear layer; that of the last is the number of classes
	DenseLayersCount int  `json:"dense_layers_count"` // linear layers
	Sparse           bool `json:"sparse"`             // the embedding's gradient travels as rows
}

// dataConfig is DummyData: samples of ids drawn with replacement from some of [0, MaxVal), and targets in [0, MaxVal).
type dataConfig struct {
	MaxVal             int `json:"max_val"`
	SampleCount        int `json:"sample_count"`
	SampleLength       int `json:"sample_length"`       // ids of a sample
	SparsityPercentage int `json:"sparsity_percentage"` // of the ids, how many in a hundred no sample has
}

// ids is how many different ids samples are drawn from.
func (d dataConfig) ids() int { return d.MaxVal * (100 - d.SparsityPercentage) / 100 }

// Limits of configurations. Their products stay far below 2^63, and an index into samples fits 32 bits.
const (
	sizeMax        = 1 << 24 // of a dimension
	layersMax      = 1024
	samplesMax     = 1 << 24
	allIDsMax      = 1 << 30 // of all samples together
	fileBytesMax   = 1 << 20
	defaultModelID = "DummyModel"
	defaultDataID  = "DummyData"
)

// number is a field of a configuration that is a whole number within a range.
type number struct {
	name      string
	to        *int
	low, high int
}

// loadModel reads the configuration of a model. where is the name of one of this package's, empty for DummyModel, or a
// file, or FILE:ID for one of its entries; without an id it is the entry DummyModel, or the only one. A file may also
// hold one entry alone, or its fields. A file with a name of this package's is had with its folder: ./DummyModel.
// Errors name file, field, value and what would be right.
func loadModel(where string) (modelConfig, error) {
	var m modelConfig
	numbers := []number{{"num_embeddings", &m.NumEmbeddings, 1, sizeMax},
		{"embedding_dim", &m.EmbeddingDim, 1, schema.DimMax},
		{"dense_input_size", &m.DenseInputSize, 1, sizeMax}, {"dense_output_size", &m.DenseOutputSize, 1, sizeMax},
		{"dense_layers_count", &m.DenseLayersCount, 1, layersMax}}
	l := loader{what: "model", class: "model_class", id: defaultModelID, embedded: modelConfigurations, numbers: numbers,
		flags: map[string]*bool{"sparse": &m.Sparse}}
	if err := l.load(where); err != nil {
		return modelConfig{}, err
	}
	if err := m.check(); err != nil {
		return modelConfig{}, fmt.Errorf("%s: %w", l.from, err)
	}
	return m, nil
}

func (m modelConfig) check() error {
	switch {
	case m.EmbeddingDim != m.DenseInputSize:
		return fmt.Errorf("embedding_dim %d: want dense_input_size, %d: the first linear layer takes a pooled row",
			m.EmbeddingDim, m.DenseInputSize)
	case m.DenseLayersCount > 1 && m.DenseInputSize != m.DenseOutputSize:
		return fmt.Errorf("dense_output_size %d: want dense_input_size, %d: the next of %d layers takes it",
			m.DenseOutputSize, m.DenseInputSize, m.DenseLayersCount)
	case m.NumEmbeddings*m.EmbeddingDim > math.MaxInt32 || m.DenseInputSize*m.DenseOutputSize > math.MaxInt32:
		return fmt.Errorf("num_embeddings %d, dense_output_size %d: want matrices of at most %d values", m.NumEmbeddings,
			m.DenseOutputSize, math.MaxInt32)
	}
	return nil
}

// loadData reads the configuration of data, as loadModel does that of a model.
func loadData(where string) (dataConfig, error) {
	var d dataConfig
	numbers := []number{{"max_val", &d.MaxVal, 1, sizeMax}, {"sample_count", &d.SampleCount, 1, samplesMax},
		{"sample_length", &d.SampleLength, 1, sizeMax}, {"sparsity_percentage", &d.SparsityPercentage, 0, 99}}
	l := loader{what: "data", class: "data_class", id: defaultDataID, embedded: dataConfigurations, numbers: numbers}
	if err := l.load(where); err != nil {
		return dataConfig{}, err
	}
	switch {
	case d.ids() < 1:
		return dataConfig{}, fmt.Errorf("%s: sparsity_percentage %d: want less: of %d ids none is left", l.from,
			d.SparsityPercentage, d.MaxVal)
	case d.SampleCount > allIDsMax/d.SampleLength:
		return dataConfig{}, fmt.Errorf("%s: sample_count %d: want at most %d samples of %d ids", l.from, d.SampleCount,
			allIDsMax/d.SampleLength, d.SampleLength)
	}
	return d, nil
}

// fits checks data against the model that takes it.
func (d dataConfig) fits(m modelConfig) error {
	switch {
	case d.MaxVal > m.NumEmbeddings:
		return fmt.Errorf("data: max_val %d: want at most num_embeddings of the model, %d: ids are rows of it", d.MaxVal,
			m.NumEmbeddings)
	case d.MaxVal > m.DenseOutputSize:
		return fmt.Errorf("data: max_val %d: want at most dense_output_size of the model, %d: targets are classes of it",
			d.MaxVal, m.DenseOutputSize)
	}
	return nil
}

// loader reads one configuration from a file of them.
type loader struct {
	// "model", the field that names the class, and the entry, and the class, that are meant without a name
	what, class, id string
	embedded        []byte
	numbers         []number
	flags           map[string]*bool
	from            string // what errors begin with: the file, and the entry where it has several
}

// load finds the entry and its fields.
func (l *loader) load(where string) error {
	text, id, err := l.read(where)
	if err != nil {
		return err
	}
	fields, err := l.object(text)
	if err != nil {
		return fmt.Errorf("%s: %w", l.from, err)
	}
	_, entry := fields[l.class]
	if !entry && !l.hasField(fields) {
		if fields, err = l.entry(fields, id); err != nil {
			return err
		}
		entry = true
	} else if id != "" {
		return fmt.Errorf("%s: %s %q: want no id: the file is one configuration", l.from, l.what, id)
	}
	if entry {
		if fields, err = l.configurations(fields); err != nil {
			return fmt.Errorf("%s: %w", l.from, err)
		}
	}
	if err := l.fill(fields); err != nil {
		return fmt.Errorf("%s: %w", l.from, err)
	}
	return nil
}

// read gives the text of the file, and the id behind it.
func (l *loader) read(where string) (text []byte, id string, err error) {
	known, err := l.object(l.embedded)
	if err != nil {
		return nil, "", err
	}
	if where == "" || known[where] != nil {
		l.from = l.what + " configurations"
		return l.embedded, where, nil
	}
	file := where
	if _, err := os.Stat(file); err != nil {
		if at := strings.LastIndexByte(where, ':'); at > 0 {
			file, id = where[:at], where[at+1:]
		}
	}
	l.from = file
	if text, err = regular.Read(file, fileBytesMax); err != nil {
		return nil, "", fmt.Errorf("%s %q: want %s, or a file of configurations, or FILE:ID: %w", l.what, where,
			strings.Join(slices.Sorted(maps.Keys(known)), ", "), reason(err))
	}
	return text, id, nil
}

// reason is what is wrong with a file, without its name.
func reason(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// object reads a JSON object.
func (l *loader) object(text []byte) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		var wrong *json.SyntaxError
		if errors.As(err, &wrong) {
			return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(text[:min(int(wrong.Offset), len(text))], []byte("\n")), err)
		}
		return nil, fmt.Errorf("%s: want an object of JSON", shown(text))
	}
	return fields, nil
}

func (l *loader) hasField(fields map[string]json.RawMessage) bool {
	return slices.ContainsFunc(l.names(), func(name string) bool { return fields[name] != nil })
}

func (l *loader) names() []string {
	var names []string
	for _, n := range l.numbers {
		names = append(names, n.name)
	}
	return append(names, slices.Sorted(maps.Keys(l.flags))...)
}

// entry finds the entry of an id.
func (l *loader) entry(entries map[string]json.RawMessage, id string) (map[string]json.RawMessage, error) {
	known := slices.Sorted(maps.Keys(entries))
	switch {
	case id != "":
	case entries[l.id] != nil:
		id = l.id
	case len(known) == 1:
		id = known[0]
	default:
		return nil, fmt.Errorf("%s: %s: want one of its %d configurations, as in %s:ID (known: %s)", l.from, l.what,
			len(known), l.from, strings.Join(known, ", "))
	}
	text, ok := entries[id]
	if !ok {
		return nil, fmt.Errorf("%s: %s %q: want one of %s", l.from, l.what, id, strings.Join(known, ", "))
	}
	l.from += ": " + id
	fields, err := l.object(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.from, err)
	}
	return fields, nil
}

// configurations checks an entry's class and gives its fields.
func (l *loader) configurations(entry map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	for _, name := range slices.Sorted(maps.Keys(entry)) {
		if name != l.class && name != "configurations" {
			return nil, fmt.Errorf("%s: want %s and configurations alone", name, l.class)
		}
	}
	var class string
	if err := json.Unmarshal(entry[l.class], &class); err != nil || class != l.id {
		return nil, fmt.Errorf("%s %s: want %q", l.class, shown(entry[l.class]), l.id)
	}
	if entry["configurations"] == nil {
		return nil, fmt.Errorf("configurations: missing: want an object with %s", strings.Join(l.names(), ", "))
	}
	return l.object(entry["configurations"])
}

// fill checks the fields and puts their values in place. All of them have to be there.
func (l *loader) fill(fields map[string]json.RawMessage) error {
	names := l.names()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%s: no such field: want %s", name, strings.Join(names, ", "))
		}
	}
	for _, n := range l.numbers {
		if err := json.Unmarshal(fields[n.name], n.to); err != nil || *n.to < n.low || *n.to > n.high {
			return fmt.Errorf("%s %s: want a whole number, %d to %d", n.name, shown(fields[n.name]), n.low, n.high)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.flags)) {
		if err := json.Unmarshal(fields[name], l.flags[name]); err != nil {
			return fmt.Errorf("%s %s: want true or false", name, shown(fields[name]))
		}
	}
	return nil
}

// shown is a value in an error.
func shown(value json.RawMessage) string {
	if value == nil {
		return "is missing"
	}
	text := strings.Join(strings.Fields(string(value)), " ")
	if len(text) > 40 {
		text = text[:40] + "..."
	}
	return text
}
