package mnist

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gradbus/internal/safetensors"
	"gradbus/nn"
)

// ErrModel says that a file is no model of this workload; the text says what is wrong with it.
var ErrModel = errors.New("not a model of the workload mnist")

// format names what the metadata of a saved model hold.
const format = "gradbus mnist 1"

// Saved is a trained model with what is needed to use it.
type Saved struct {
	Module    nn.Module
	Data      string            // name of the data set it was trained on
	Settings  map[string]string // how it was trained, for people
	Params    [][]float32       // in the order of Module.Parameters
	Synthetic bool
	Suspect   string // why it may be wrong: memory of a GPU was, while it was trained; empty where nothing speaks for it
}

// Collect reads a whole model at its current version.
func Collect(p Params, s Settings, name string, data *Data, m nn.Module) *Saved {
	saved := &Saved{Module: m, Data: name, Synthetic: data.Synthetic, Settings: s.Record()}
	saved.Settings["batch"], saved.Settings["data"] = strconv.Itoa(s.Batch), hex.EncodeToString(data.Digest[:])
	for _, q := range m.Parameters() {
		saved.Params = append(saved.Params, slices.Clone(p.Param(q.Name)))
	}
	return saved
}

// Param gives a parameter by name, nil for an unknown one; it makes a Saved a Params.
func (s *Saved) Param(name string) []float32 {
	i := slices.IndexFunc(s.Module.Parameters(), func(p nn.Parameter) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return s.Params[i]
}

// Save writes the model as a safetensors file: the module's parameters under its names, which are those of PyTorch's
// Sequential of the same layers, and in the metadata the module's configuration and the settings. The file is there
// whole or not at all.
func (s *Saved) Save(path string) error {
	metadata := map[string]string{"format": format, "module": string(nn.Config(s.Module)), "data": s.Data,
		"synthetic": strconv.FormatBool(s.Synthetic)}
	if s.Suspect != "" {
		metadata["suspect"] = s.Suspect
	}
	for name, value := range s.Settings {
		metadata["settings."+name] = value
	}
	var tensors []safetensors.Tensor
	for i, p := range s.Module.Parameters() {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, Shape: p.Shape, Values: s.Params[i]})
	}
	if err := safetensors.Save(path, metadata, tensors); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// LoadModel reads a file that Save wrote. It fails with ErrModel where it is something else, cut, of other shapes, or
// holds values that are not finite; and where it cannot be opened (fs.ErrNotExist).
func LoadModel(path string) (*Saved, error) {
	s, err := safetensors.Read(path, savedOf)
	var unfit *safetensors.ContentError
	switch {
	case err == nil:
		return s, nil
	case errors.As(err, &unfit):
		return nil, fmt.Errorf("load model %s: %w: %w", path, ErrModel, unfit.Err)
	case errors.Is(err, safetensors.ErrFormat):
		return nil, fmt.Errorf("load model: %w: %w", ErrModel, err)
	}
	return nil, fmt.Errorf("load model: %w", err)
}

func savedOf(metadata map[string]string, tensors map[string]safetensors.Tensor) (*Saved, error) {
	if got := metadata["format"]; got != format {
		return nil, fmt.Errorf("format %q in its metadata, want %q", got, format)
	}
	m, err := nn.Build([]byte(metadata["module"]))
	if err == nil {
		err = checkModel(m)
	}
	if err != nil {
		return nil, fmt.Errorf("its module: %w", err)
	}
	s := &Saved{Module: m, Data: metadata["data"], Synthetic: metadata["synthetic"] == "true",
		Suspect: metadata["suspect"], Settings: map[string]string{}}
	for name, value := range metadata {
		if setting, ok := strings.CutPrefix(name, "settings."); ok {
			s.Settings[setting] = value
		}
	}
	parameters := m.Parameters()
	for _, p := range parameters {
		values, err := safetensors.Values(tensors, p.Name, p.Shape)
		if err != nil {
			return nil, err
		}
		s.Params = append(s.Params, values)
	}
	if len(tensors) != len(parameters) {
		return nil, fmt.Errorf("%d tensors, want the module's %d alone", len(tensors), len(parameters))
	}
	return s, nil
}

// Prediction is a class and how probable the model holds it.
type Prediction struct {
	Class       int     `json:"class"`
	Name        string  `json:"name"` // the digit, or the piece of clothing
	Probability float64 `json:"probability"`
}

// names are what the classes of a data set are called.
func names(data string) [Classes]string {
	if data == dataFashion {
		return [Classes]string{"T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
			"ankle boot"}
	}
	return [Classes]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
}

// Predict gives all classes for an image of Pixels values, the most probable first and of equal ones in their order.
func (s *Saved) Predict(e nn.Env, image []byte) ([]Prediction, error) {
	if len(image) != Pixels {
		return nil, fmt.Errorf("predict: %w: an image of %d pixels, want %d", nn.ErrShape, len(image), Pixels)
	}
	net, err := nn.NewNet(s.Module, Input(), e)
	if err != nil {
		return nil, fmt.Errorf("predict: %w", err)
	}
	y, err := net.Forward(s.Params, appendImage(nil, image, normalized()), nn.Mode{})
	if err != nil {
		return nil, fmt.Errorf("predict: %w", err)
	}
	names := names(s.Data)
	all := make([]Prediction, Classes)
	for c, score := range y {
		all[c] = Prediction{c, names[c], math.Exp(float64(score))}
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
