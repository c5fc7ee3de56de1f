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
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/internal/regular"
	"gradbus/schema"
)

// Config has the settings of a run. The zero value is not usable: begin with DefaultConfig.
type Config struct {
	Trainers int    `flag:"trainers" default:"2" range:"1 256" help:"N: trainers"`
	Servers  int    `flag:"servers" default:"1" range:"0 64" help:"N: servers, which share the buckets; 0 for the hooks allreduce and hybrid"`
	Server   string `flag:"server-kind" default:"average" words:"average average-batch" help:"KIND: average adds gradients as they arrive; average-batch when the last has arrived"`
	Hook     string `flag:"hook" default:"rpc" words:"allreduce hybrid rpc sparse-rpc" help:"NAME: what averages: allreduce, hybrid, rpc or sparse-rpc; hybrid is allreduce with a metric for rows"`

	Epochs    int    `flag:"epochs" default:"1" range:"1 1048576" help:"N: epochs"`
	BatchSize int    `flag:"trainer-batch" default:"32" range:"1 1048576" help:"N: samples in a batch; batches are dealt to the trainers in turn"`
	DataFile  string `flag:"input" help:"NAME: data configuration: DummyData, Small, a file, or FILE:ID of a file with several"`
	ModelFile string `flag:"model" help:"NAME: model configuration: DummyModel, DummyModelSparse, Small, a file, or FILE:ID of a file with several"`
	Sparse    *bool  `flag:"sparse" help:"send the embedding's gradient as rows, or whole with =false; default is what the model says"`

	FirstBucketBytes int           `flag:"first-bucket-bytes" help:"BYTES: size of the dense bucket that is ready first; 0 is 1 MiB"`
	BucketBytes      int           `flag:"bucket-bytes" help:"BYTES: size of the other dense buckets; 0 is 25 MiB"`
	LR               float64       `flag:"lr" default:"1e-4" range:"0 3.4e38" help:"RATE: learning rate of SGD"`
	Mean             string        `flag:"mean" default:"samples" words:"samples lanes" help:"NAME: a mean gives equal weight to: samples, or lanes (as DDP to trainers)"`
	Timeout          time.Duration `flag:"rpc-timeout" default:"30s" range:"1s 1h0m0s" unit:"s" help:"SECONDS: a member that is silent for this long ends the run"`

	Criterion     string `flag:"criterion" default:"cel" words:"cel nll" help:"NAME: loss: cel, or nll, which leaves out the second softmax"`
	Preprocess    string `flag:"preprocess" default:"preprocess_dummy_data" words:"preprocess_dummy_data sort_ids" help:"NAME: preprocessing of the data: preprocess_dummy_data or sort_ids"`
	IterationStep string `flag:"iteration-step" default:"basic_iteration_step" words:"basic_iteration_step sequential_iteration_step" help:"NAME: basic_iteration_step, or sequential_iteration_step, which sends after the backward pass"`

	Device       string `flag:"backend" default:"cpu" words:"cpu cuda" help:"NAME: arithmetic of the trainers: cpu or cuda"`
	ServerDevice string `flag:"server-backend" default:"cpu" words:"cpu cuda" help:"NAME: arithmetic of the servers: cpu or cuda"`
	CSV          string `flag:"csv" help:"DIR: write the tables of metrics to this folder"`
	Trace        string `flag:"trace" help:"PATH: write a timeline for chrome://tracing or Perfetto to this file"`
	harness.Flags
}

// DefaultConfig is the setting of the original: two trainers and a server, by the rpc hook.
func DefaultConfig() (c Config) {
	harness.SetDefaults(&c)
	c.Job = "average"
	return c
}

// Devices of trainers and servers.
const (
	deviceCPU  = "cpu"
	deviceCUDA = "cuda"
)

// What the words of settings stand for: the declarations of Config say which there are. These are never written to.
var (
	devices = map[string]string{deviceCPU: "auto", deviceCUDA: "cuda"}                        // backends
	servers = map[string]string{"average": schema.SumFused, "average-batch": schema.SumClose} // schema.Job.Sum
	hooks   = map[string]hook{
		"allreduce":  {schema.ReduceTrainers, schema.ReduceTrainers},
		"hybrid":     {schema.ReduceTrainers, schema.ReduceTrainers},
		"rpc":        {schema.ReduceShards, schema.ReduceShards},
		"sparse-rpc": {schema.ReduceTrainers, schema.ReduceShards},
	}
)

// hook says who averages what.
type hook struct {
	dense  string // schema.Job.Reduce
	sparse string // schema.TableSpec.Reduce
}

// Validate returns an error for the first wrong setting: the flag, its value and what would be right.
func (c *Config) Validate() error {
	if kind := config.Meant(strings.TrimPrefix(c.Way.Server, "nats://"), slices.Sorted(maps.Keys(servers))); kind != "" {
		return fmt.Errorf("server %q: want the address of a ps that runs (did you mean --server-kind %s?)", c.Way.Server,
			kind)
	}
	if err := c.Flags.Validate(c, c.Trainers); err != nil {
		return err
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"first-bucket-bytes", c.FirstBucketBytes}, {"bucket-bytes", c.BucketBytes}} {
		if n.value != 0 && (n.value < schema.BucketBytesMin || n.value > schema.BucketBytesMax || n.value%4 != 0) {
			return fmt.Errorf("%s %d: want %d to %d, a multiple of 4, or 0", n.name, n.value, schema.BucketBytesMin,
				schema.BucketBytesMax)
		}
	}
	if c.Servers == 0 && c.reduce(schema.ByShards) {
		return fmt.Errorf("servers 0: want 1 to 64 with hook %s, by which servers average; 0 is for allreduce and hybrid",
			c.Hook)
	}
	return nil
}

// aboutServers are the flags that say what is started beside the trainers.
var aboutServers = []string{"servers", "server-backend"}

// Idle are the flags that change nothing as these are.
func (c *Config) Idle() []config.Idle {
	return append(c.Flags.Idle(c.reduce(schema.ByTrainers)),
		config.Idle{When: !c.reduce(schema.ByShards), Flags: []string{"server-kind"},
			Why: "with hook " + c.Hook + " no server adds anything up: want --hook rpc or sparse-rpc with it"},
		config.Idle{When: c.Joined() && len(c.Hosts) == 0, Flags: aboutServers,
			Why: "the ps at --server run already, as they were started: leave it out"})
}

// reduce tells whether a party adds anything up. Of a job that cannot be, which its run says, both do.
func (c *Config) reduce(by schema.Party) bool {
	s, err := c.system()
	if err != nil {
		return true
	}
	j, err := s.job(c.Job, "")
	return err != nil || j.Plan().Reduces(by)
}

// Layout returns the processes of the benchmark, for spreading it over hosts.
func (c *Config) Layout() harness.Layout {
	l := harness.Layout{Trainers: c.Trainers, Shards: max(1, c.Servers), Reduces: c.reduce(schema.ByTrainers),
		Server: []string{"--deadline", c.Timeout.String()}, Serving: aboutServers}
	if c.ServerDevice != deviceCPU {
		l.Server = append(l.Server, "--backend", c.ServerDevice)
	}
	return l
}

// checkDevices opens each device once, so that one that is not there is one clear error, before anything is started.
func (c *Config) checkDevices() error {
	for _, d := range []struct{ flag, name string }{{"backend", c.Device}, {"server-backend", c.ServerDevice}} {
		if d.name == deviceCPU {
			continue
		}
		b, err := cuda.Open(cuda.Options{Name: d.name})
		if err != nil {
			return fmt.Errorf("%s %s: %w", d.flag, d.name, err)
		}
		if err := b.Close(); err != nil {
			return fmt.Errorf("%s %s: %w", d.flag, d.name, err)
		}
	}
	return nil
}

// system is the configuration of trainers and servers: the parts of a Config that follow from files, loaded and
// checked.
type system struct {
	Trainers      int         `json:"trainers"`
	Server        string      `json:"server"`
	Hook          string      `json:"hook"`
	Epochs        int         `json:"epochs"`
	BatchSize     int         `json:"batch_size"`
	Data          dataConfig  `json:"data"`
	Model         modelConfig `json:"model"`
	Seed          uint64      `json:"seed"`
	LR            float32     `json:"lr"`
	Mean          string      `json:"mean"`
	FirstBucket   int         `json:"first_bucket_bytes"`
	Bucket        int         `json:"bucket_bytes"`
	Criterion     string      `json:"criterion"`
	Preprocess    string      `json:"preprocess"`
	IterationStep string      `json:"iteration_step"`
}

// system loads the configurations.
func (c *Config) system() (s system, err error) {
	s = system{Trainers: c.Trainers, Server: c.Server, Hook: c.Hook, Epochs: c.Epochs, BatchSize: c.BatchSize,
		Seed: c.Seed, LR: float32(c.LR), Mean: c.Mean, FirstBucket: c.FirstBucketBytes, Bucket: c.BucketBytes,
		Criterion: c.Criterion, Preprocess: c.Preprocess, IterationStep: c.IterationStep}
	if s.Model, err = loadModel(c.ModelFile); err != nil {
		return s, err
	}
	if c.Sparse != nil {
		s.Model.Sparse = *c.Sparse
	}
	if s.Data, err = loadData(c.DataFile); err != nil {
		return s, err
	}
	return s, s.Data.fits(s.Model)
}

func (s *system) dealt() dealt { return dealt{s.Data.SampleCount, s.BatchSize, s.Trainers} }

// steps returns the number of batches in a run of the job.
func (s *system) steps() uint64 { return uint64(s.dealt().steps()) * uint64(s.Epochs) }

// chunkBytes is the size of values in a frame: with its head it is what the NATS server reads at once, which is what
// goes fastest.
const chunkBytes = 65024

// job is the manifest of one run. Each trainer has one lane: its batches. dense names the library of their matrix
// products, on which bits depend.
func (s *system) job(name, dense string) (*schema.Job, error) {
	model, err := json.Marshal(s.Model)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(s.Data)
	if err != nil {
		return nil, err
	}
	by := hooks[s.Hook]
	j := &schema.Job{Name: schema.JobName(name), Workload: "average", Seed: s.Seed, Trainers: s.Trainers,
		Lanes: s.Trainers,
		Settings: map[string]string{"model": string(model), "data": string(data), "hook": s.Hook, "criterion": s.Criterion,
			"preprocess": s.Preprocess, "mean": s.Mean, "dense": dense,
			"batch_size": fmt.Sprint(s.BatchSize), "epochs": fmt.Sprint(s.Epochs)},
		Consistency: schema.ConsistencySync, Reduce: by.dense, Sum: servers[s.Server], Apply: schema.ApplyMean, Policy: schema.PolicyFail,
		ChunkBytes:       chunkBytes,
		FirstBucketBytes: s.FirstBucket, BucketBytes: s.Bucket,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: s.LR}}
	j.Parameters, j.Tables = s.Model.tensors()
	for i := range j.Tables {
		j.Tables[i].Reduce = by.sparse
	}
	if !j.NeedsShards() { // no server adds anything up
		j.Sum = ""
	}
	if err := j.Validate(); err != nil {
		return nil, err
	}
	return j, nil
}

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

// ids returns the number of different ids from which samples are drawn.
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

// reason returns what is wrong with a file, without its name.
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

// negativeLogarithm is -log y[target], summed up over the samples in their order, for probabilities y: what remains of
// cross-entropy where the softmax is not taken twice. A target's probability below the smallest normal number counts as
// that, so that the gradient is finite.
//
//	y = {{0.25, 0.75}}, targets = {1}   ->   0.2876821, grad = {{0, -1.3333334}}
func negativeLogarithm(m *model, y []float32, targets []int32, grad []float32) (float64, error) {
	const least = 0x1p-126
	sum := 0.0
	clear(grad)
	for i, t := range targets {
		at := i*m.classes + int(t)
		p := max(y[at], least)
		sum -= math.Log(float64(p))
		grad[at] = -1 / p
	}
	return sum, nil
}
