package mnist

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"gradbus/internal/safetensors"
	"gradbus/internal/settings"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
	"gradbus/trainer/shuffle"
)

// Config is the model as configuration: two convolutions, two linear layers, 1,199,882 parameters, log-probabilities
// out.
//
// Source: pytorch/examples, mnist and distributed/rpc/parameter_server: the same layers with the same probabilities.
const Config = `[{"conv2d":{"in":1,"out":32,"kernel":3}},{"relu":{}},{"conv2d":{"in":32,"out":64,"kernel":3}},` +
	`{"max_pool2d":{"kernel":2}},{"dropout2d":{"p":0.25}},{"flatten":{}},{"linear":{"in":9216,"out":128}},{"relu":{}},` +
	`{"dropout":{"p":0.5}},{"linear":{"in":128,"out":10}},{"log_softmax":{}}]`

// Model is the module of Config; samples are Input().
func Model() nn.Module {
	m, err := nn.Build([]byte(Config))
	if err != nil {
		panic(fmt.Sprintf("mnist: %v", err)) // a constant
	}
	return m
}

// Input is the shape of a sample.
func Input() []int { return []int{1, Side, Side} }

// checkModel refuses a module that does not take images and give scores of classes.
func checkModel(m nn.Module) error {
	out, err := m.OutShape(Input())
	if err != nil {
		return err
	}
	if len(out) != 1 || out[0] != Classes {
		return fmt.Errorf("%w: the model gives %v for an image, want [%d]", nn.ErrShape, out, Classes)
	}
	return nil
}

// Name is the workload's name in manifests and on command lines.
const Name = "mnist"

// ErrSettings says that settings are not usable; the text lists every one of them.
var ErrSettings = errors.New("invalid settings")

// Settings are the user's choices. All trainers of a job must choose alike; Job puts them into the manifest.
type Settings struct {
	settings.Shared
	Batches uint64 // of the whole run; 0 stands for those of Epochs
	Batch   int    // most samples in a batch, from 1
}

// Defaults are the settings of the measured figures: the learning rate is the original's, with momentum, since a batch
// has more samples.
func Defaults() Settings {
	return Settings{Shared: settings.Shared{Job: Name, Trainers: 1, Epochs: 3, LR: 0.03, Momentum: 0.9, Seed: 1,
		Apply: schema.ApplyUpdate}, Batch: 64}
}

// Limits that keep a slip of the finger from asking for the moon.
const (
	batchMax   = 1 << 16
	batchesMax = 1 << 40
)

// Validate lists everything that is wrong, each with the field, its value and what would be right.
func (s Settings) Validate() error {
	var c settings.Check
	s.CheckPlace(&c)
	c.Between("batch", s.Batch, 1, batchMax)
	if s.Batches > batchesMax {
		c.Add("batches %d: want 0 to %d", s.Batches, uint64(batchesMax))
	}
	s.CheckTraining(&c)
	if s.TableOptimizer() != nil {
		c.Add("clip %s: want value or global, since %s has no rows", s.Clip, Name)
	}
	return c.Err(ErrSettings)
}

// BatchesPerEpoch is the number of batches that n training samples are cut into.
func (s Settings) BatchesPerEpoch(n int) int { return shuffle.PerEpoch(n, s.Batch) }

// Run is the number of batches of a whole run.
func (s Settings) Run(data *Data) uint64 {
	if s.Batches > 0 {
		return s.Batches
	}
	return uint64(s.Epochs) * uint64(s.BatchesPerEpoch(data.Train.Len()))
}

// modelSetting is the setting of the manifest that has the configuration of the model.
const modelSetting = "model"

// Job is the manifest that all trainers of the job must agree on: the settings, the model's parameters, the digest of
// the data, so that a trainer with other samples is refused, and library, the name of the dense library that computes
// (cuda.Dense.Name), since the gradients have its bits. s must be valid.
func Job(s Settings, data *Data, m nn.Module, library string) *schema.Job {
	job := s.Manifest(Name)
	job.Settings = map[string]string{
		"batch":      strconv.Itoa(s.Batch),
		"data":       hex.EncodeToString(data.Digest[:]),
		"epochs":     strconv.Itoa(s.Epochs),
		"library":    library,
		modelSetting: string(nn.Config(m)),
	}
	job.Parameters = parameters(m)
	return job.WithDefaults()
}

// parameters are those of a module as a job has them.
func parameters(m nn.Module) []schema.Parameter {
	var all []schema.Parameter
	for _, p := range m.Parameters() {
		all = append(all, schema.Parameter{Name: p.Name, Shape: p.Shape, Init: schema.Init{Kind: p.Kind, Scale: p.Scale}})
	}
	return all
}

// NewWorkload makes the workload of the training samples of data for the job of s and the memory of m. The whole model
// is computed here, with parameters that came from the shards. It fails where shuffle.New does, and with nn.ErrShape
// where m does not take images and give a score for each class. The workload is not safe for concurrent use.
func NewWorkload(s Settings, data *Data, m nn.Module, e nn.Env) (trainer.Workload, error) {
	if err := checkModel(m); err != nil {
		return nil, err
	}
	net, err := nn.NewNet(m, Input(), e)
	if err != nil {
		return nil, err
	}
	feed, err := NewFeed(s.Seed, &data.Train, s.Batch, s.LaneCount())
	if err != nil {
		return nil, err
	}
	var x []float32
	var targets []int32
	return &trainer.NetWorkload{Net: net, Seed: s.Seed,
		Samples: func(b schema.Batch, l lane.Lane) int { return len(feed.Samples(b, l)) },
		Input: func(step *trainer.LaneStep) ([]float32, error) {
			x, targets = feed.Fill(step.Batch, step.Lane, x[:0], targets[:0])
			return x, nil
		},
		Loss: func(_ *trainer.LaneStep, y, gradY []float32) (float64, error) {
			return nn.NLL(y, Classes, targets, gradY)
		},
	}, nil
}

// Params gives dense parameters by name, nil for an unknown one; a *trainer.Session does.
type Params interface {
	Param(name string) []float32
}

var _ Params = (*trainer.Session)(nil)

// params are the values of a net's parameters, in its order.
func params(p Params, net *nn.Net) (all [][]float32) {
	for _, q := range net.Parameters() {
		all = append(all, p.Param(q.Name))
	}
	return all
}

// evaluationSamples is the number of samples that are evaluated at once: it bounds the memory, 300 KB per sample.
const evaluationSamples = 100

// Evaluate is the share of a set's images whose highest score is that of their label (of equal scores the first
// counts), and the mean loss, without dropout. It fails with nn.ErrShape where p has not the model's parameters, and
// where the set is empty.
//
//	accuracy, loss, err := mnist.Evaluate(session, mnist.Model(), env, &data.Test)
func Evaluate(p Params, m nn.Module, e nn.Env, set *Set) (accuracy, loss float64, err error) {
	if set.Len() == 0 {
		return 0, 0, fmt.Errorf("evaluate: no samples")
	}
	if err := checkModel(m); err != nil {
		return 0, 0, err
	}
	net, err := nn.NewNet(m, Input(), e)
	if err != nil {
		return 0, 0, err
	}
	values, right, unused := params(p, net), 0, make([]float32, evaluationSamples*Classes)
	err = Scan(set, evaluationSamples, func(x []float32, targets []int32) error {
		y, err := net.Forward(values, x, nn.Mode{})
		if err != nil {
			return err
		}
		for i, t := range targets {
			if Highest(y[i*Classes:][:Classes]) == int(t) {
				right++
			}
		}
		sum, err := nn.NLL(y, Classes, targets, unused[:len(y)])
		loss += sum
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("evaluate: %w", err)
	}
	n := float64(set.Len())
	return float64(right) / n, loss / n, nil
}

// Highest is the place of the highest score, the first of equal ones.
func Highest(scores []float32) int {
	best := 0
	for i, s := range scores {
		if s > scores[best] {
			best = i
		}
	}
	return best
}

// ErrModel says that a file is no model of this workload; the text says what is wrong with it.
var ErrModel = errors.New("not a model of the workload mnist")

// earlierFormat names the files that this workload had before they had a manifest.
const earlierFormat = "gradbus mnist 1"

// dataEntry is the entry of a saved model's metadata that has the name of the data set.
const dataEntry = "data"

// Saved is a trained model with what is needed to use it.
type Saved struct {
	Params
	Module nn.Module
	Data   string         // name of the data set it was trained on
	File   *trainer.Model // that it was loaded from
}

// Metadata returns the text in the file of a model besides its weights and its manifest: see trainer.Session.Save.
// name is that of the data set.
func Metadata(name string) map[string]string { return map[string]string{dataEntry: name} }

// LoadModel reads a file that was saved with Metadata. It fails with ErrModel where it is something else, cut or changed,
// and where it cannot be opened (fs.ErrNotExist).
func LoadModel(path string) (*Saved, error) {
	file, err := trainer.OpenModel(path)
	if errors.Is(err, trainer.ErrModel) {
		file, err = openEarlier(path, err)
	}
	if errors.Is(err, trainer.ErrModel) {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	} else if err != nil {
		return nil, err
	}
	s := &Saved{Params: file, Data: file.Metadata[dataEntry], File: file}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModel, path, err)
	}
	return s, nil
}

// openEarlier opens a file of an earlier version, which has no manifest, or returns otherwise, the error of any other file.
func openEarlier(path string, otherwise error) (*trainer.Model, error) {
	metadata, _, err := safetensors.Load(path, func(map[string]string, map[string]safetensors.Tensor) error { return nil })
	if err != nil || metadata["format"] != earlierFormat {
		return nil, otherwise
	}
	m, err := nn.Build([]byte(metadata["module"]))
	if err != nil {
		return nil, otherwise
	}
	return trainer.OpenWeights(path, Job(Defaults(), &Data{}, m, ""))
}

// check takes what the manifest says.
func (s *Saved) check() (err error) {
	job := s.File.Job()
	if job.Workload != Name {
		return fmt.Errorf("it is of workload %q: want %s", job.Workload, Name)
	}
	if s.Module, err = nn.Build([]byte(job.Settings[modelSetting])); err == nil {
		err = checkModel(s.Module)
	}
	if err != nil {
		return fmt.Errorf("its module: %w", err)
	}
	for _, p := range s.Module.Parameters() {
		if len(s.Param(p.Name)) != p.Elements() {
			return fmt.Errorf("its parameters are not those of its module: %s", p.Name)
		}
	}
	return nil
}

// Prediction is a class and how probable the model holds it.
type Prediction struct {
	Class       int     `json:"class"`
	Name        string  `json:"name"` // the digit, or the piece of clothing
	Probability float64 `json:"probability"`
}

// names returns the names of the classes of a data set.
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
	y, err := net.Forward(params(s.Params, net), appendImage(nil, image, normalized()), nn.Mode{})
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
