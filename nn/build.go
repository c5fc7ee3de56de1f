package nn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrConfig says that a module's configuration is not usable: it names the layer, the field, the value and what would
// be right.
var ErrConfig = errors.New("bad module")

// Limits of what a configuration may ask for.
const (
	sizeMax       = 1 << 24 // of any size of a linear layer or a table
	channelsMax   = 1 << 16 // of images
	kernelMax     = 1 << 10 // side of a kernel, its stride and padding
	layersMax     = 1024
	depthMax      = 8       // of sequential within sequential
	configMax     = 1 << 20 // bytes
	parametersMax = 1 << 30 // values of all parameters
	sampleMax     = 1 << 28 // values of one sample between two layers
)

// Build makes a module from its configuration, a JSON list of layers, each an object with the layer's name and its
// settings. Settings that are left out have their zero value, and unknown ones are refused. It fails with ErrConfig;
// what it gives has bounded size whatever the configuration says, so it may be a stranger's.
//
//	[{"conv2d":{"in":1,"out":32,"kernel":3}}, {"relu":{}}, {"flatten":{}}, {"linear":{"in":21632,"out":10}}]
func Build(config []byte) (Module, error) {
	if len(config) > configMax {
		return nil, fmt.Errorf("%w: %d bytes of configuration: want at most %d", ErrConfig, len(config), configMax)
	}
	b := builder{kinds: kinds()}
	m, err := b.build(config, 1)
	if err != nil {
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	total := 0
	for _, p := range m.Parameters() { // each has at most 2^52 values, which an int holds
		if total += p.Elements(); p.Elements() > parametersMax || total > parametersMax {
			return nil, fmt.Errorf("%w: parameters up to %s have over %d values: want fewer", ErrConfig, p.Name, parametersMax)
		}
	}
	return m, nil
}

// Config is the configuration that Build makes m from.
func Config(m Module) []byte {
	text, err := json.Marshal(listed(m))
	if err != nil {
		panic(fmt.Sprintf("nn: configuration of %v: %v", m, err)) // settings are numbers and words
	}
	return text
}

// listed is a module as a list of layers.
func listed(m Module) []map[string]any {
	all, ok := m.(sequence)
	if !ok {
		all = sequence{m}
	}
	list := make([]map[string]any, len(all))
	for i, m := range all {
		name, settings := m.config()
		list[i] = map[string]any{name: settings}
	}
	return list
}

func (s sequence) config() (string, any) { return sequentialName, listed(s) }

const sequentialName = "sequential"

// builder makes the layers of one module.
type builder struct {
	kinds  []kind
	layers int // that were read
}

// build reads one list of layers.
func (b *builder) build(config []byte, depth int) (Module, error) {
	if depth > depthMax {
		return nil, fmt.Errorf("%w: %s is nested over %d deep: want fewer", ErrConfig, sequentialName, depthMax)
	}
	var list []map[string]json.RawMessage
	if err := strict(config, &list); err != nil {
		return nil, fmt.Errorf("%w: %w: want a list of layers, each {\"name\": {settings}}", ErrConfig, err)
	}
	s := make(sequence, 0, min(len(list), layersMax))
	for i, entry := range list {
		if b.layers++; b.layers > layersMax {
			return nil, fmt.Errorf("%w: over %d layers: want fewer", ErrConfig, layersMax)
		}
		if len(entry) != 1 {
			return nil, fmt.Errorf("layer %d: %w: %d names: want one, as in {\"relu\": {}}", i, ErrConfig, len(entry))
		}
		for name, settings := range entry {
			m, err := b.buildLayer(name, settings, depth)
			if err != nil {
				return nil, fmt.Errorf("layer %d: %w", i, err)
			}
			s = append(s, m)
		}
	}
	return s, nil
}

func (b *builder) buildLayer(name string, settings json.RawMessage, depth int) (Module, error) {
	if name == sequentialName {
		return b.build(settings, depth+1)
	}
	i := slices.IndexFunc(b.kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		var known []string
		for _, k := range b.kinds {
			known = append(known, k.name)
		}
		return nil, fmt.Errorf("%w: unknown layer %q: want one of %s, %s", ErrConfig, name, strings.Join(known, ", "),
			sequentialName)
	}
	m, err := b.kinds[i].decode(settings)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, name, err)
	}
	return m, nil
}

// kind is a layer that a configuration may name.
type kind struct {
	name   string
	decode func(settings []byte) (Module, error)
}

// kinds are all layers but sequential.
func kinds() []kind {
	return []kind{
		kindOf[LinearLayer](), kindOf[BagLayer](), kindOf[Conv2d](), kindOf[MaxPool2d](), kindOf[ReLU](), kindOf[Dropout](),
		kindOf[dropout2d](), kindOf[Flatten](), kindOf[Softmax](), kindOf[logSoftmax](),
	}
}

func kindOf[M layer]() kind {
	var zero M
	name, _ := zero.config()
	return kind{name, func(settings []byte) (Module, error) {
		var m M
		err := strict(settings, &m)
		return m, err
	}}
}

// strict decodes one JSON value and refuses unknown fields and anything that follows.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the value")
	}
	return nil
}

// between refuses a setting out of its range.
func between(layer, field string, value, low, high int) error {
	if value < low || value > high {
		return fmt.Errorf("%w: %s %s %d: want %d to %d", ErrConfig, layer, field, value, low, high)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// badInput says which samples a layer wants.
func badInput(layer string, in []int, want string, args ...any) error {
	return fmt.Errorf("%w: %s of samples of shape %v: want %s", ErrShape, layer, in, fmt.Sprintf(want, args...))
}

// sampleSize refuses samples beyond the limit.
func sampleSize(shape []int) error {
	n := 1
	for _, d := range shape {
		if n *= d; n > sampleMax {
			return fmt.Errorf("%w: samples of shape %v: want at most %d values", ErrShape, shape, sampleMax)
		}
	}
	return nil
}
