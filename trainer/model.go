package trainer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"gradbus/internal/safetensors"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
)

// ErrModel reports a file that is no model written by Save, a model whose weights differ from the saved ones, or values
// with which a job cannot begin. The text has the details.
var ErrModel = errors.New("unusable model")

// Keys of the metadata of a saved model, besides those of the program that saved it.
const (
	modelFormat   = "gradbus model 1"
	formatEntry   = "format"
	manifestEntry = "gradbus.manifest"
	digestEntry   = "gradbus.digest"
	versionEntry  = "gradbus.version"
	modulesEntry  = "gradbus.modules" // digest of the modules' parameters, if there are any
	extraEntry    = "gradbus.extra"   // digest of the tensors of an Extra, if there are any
	modelRowsMax  = 1<<32 - 1         // rows of one table in memory
)

// weighedEntries are the metadata that OpenModel checks and removes.
var weighedEntries = []string{manifestEntry, digestEntry, versionEntry, modulesEntry, extraEntry}

// Model is a trained model at one version, completely in memory: the weights of all parameters and tables, the
// parameters of hosted modules, and the manifest of the job. It comes from a session (Weights) or a file (OpenModel),
// and needs no server. It is safe for concurrent reads.
type Model struct {
	Version  schema.Version    // version of the weights
	Metadata map[string]string // metadata of the program that saved it

	job    *schema.Job
	digest [32]byte
	params [][]float32            // of each parameter, in the manifest's order
	tables [][]float32            // [table] [Rows, Dim] in the order of the keys
	hosted []Tensor               // parameters of modules, named by schema.ModuleSpec.TensorName, in the manifest's order
	dense  bool                   // it has no tables, and the job that begins with it draws them
	extra  []safetensors.Tensor   // sorted by name
	open   func() (*Model, error) // reads its file again; nil if it has no file
}

// Extra is a program's addition to the file of a model, such as tensors that it trains itself. OpenModel preserves it.
type Extra struct {
	Metadata map[string]string // entries besides those of Save
	Tensors  []Tensor          // names differ from those of the weights
}

// holdable returns an error if the weights of a job do not fit into one Model, or nil.
func holdable(job *schema.Job) error {
	for _, t := range job.Tables {
		if t.Rows > modelRowsMax {
			return fmt.Errorf("table %q has %d rows: want at most %d in a model; Table reads it in pieces", t.Name, t.Rows,
				uint64(modelRowsMax))
		}
	}
	return nil
}

// Save writes the model as a safetensors file: the tensors under their names, and Metadata with the job's manifest,
// version and digest. It replaces the file atomically.
func (m *Model) Save(path string) error {
	metadata, err := m.metadata()
	if err != nil {
		return err
	}
	if err := safetensors.Save(path, metadata, m.tensors()); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// metadata returns the metadata of the model's file.
func (m *Model) metadata() (map[string]string, error) {
	manifest, err := m.job.Encode()
	if err != nil {
		return nil, fmt.Errorf("save model: %w", err)
	}
	metadata := map[string]string{formatEntry: modelFormat}
	maps.Copy(metadata, m.Metadata)
	metadata[manifestEntry], metadata[digestEntry] = string(manifest), hex.EncodeToString(m.digest[:])
	metadata[versionEntry] = strconv.FormatUint(uint64(m.Version), 10)
	if len(m.hosted) > 0 {
		digest, err := digestOf(m.hosted)
		if err != nil {
			return nil, fmt.Errorf("save model: %w", err)
		}
		metadata[modulesEntry] = hex.EncodeToString(digest[:])
	}
	if len(m.extra) > 0 {
		metadata[extraEntry] = m.extraDigest()
	}
	return metadata, nil
}

// tensors returns the tensors of the model's file. Values that the model does not have in memory are nil.
func (m *Model) tensors() (all []safetensors.Tensor) {
	for i, p := range m.job.Parameters {
		t := safetensors.Tensor{Name: p.Name, Shape: p.Shape}
		if m.params != nil {
			t.Values = m.params[i]
		}
		all = append(all, t)
	}
	for i, spec := range m.job.Tables {
		t := safetensors.Tensor{Name: spec.Name, Shape: []int{int(spec.Rows), spec.Dim}}
		if m.tables != nil {
			t.Values = m.tables[i]
		}
		all = append(all, t)
	}
	for _, t := range m.hosted {
		all = append(all, safetensors.Tensor{Name: t.Name, Shape: t.Shape, Values: t.Values})
	}
	return append(all, m.extra...)
}

// byName orders the tensors of an Extra, so every writer writes the same file.
func byName(a, b safetensors.Tensor) int { return cmp.Compare(a.Name, b.Name) }

// extraDigest returns the SHA-256 of the tensors of an Extra, in the order of their names: for each its header as JSON
// ["name","I64",[2,3]], a newline, and its bytes.
func (m *Model) extraDigest() string {
	sum := sha256.New()
	for _, t := range m.extra {
		json.NewEncoder(sum).Encode([]any{t.Name, cmp.Or(t.DType, "F32"), append([]int{}, t.Shape...)}) // ends with a newline
		sum.Write(t.Bytes())
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// OpenModel reads a file that Save wrote. Errors: ErrModel if the file is something else, truncated or changed, and the
// error of opening it (fs.ErrNotExist).
//
//	m, err := trainer.OpenModel("mf.safetensors")
//	row := m.Row("users", 7)
func OpenModel(path string) (*Model, error) {
	m, unfit, err := readModel(path, unweighed)
	switch {
	case unfit != nil:
		return nil, fmt.Errorf("open model %s: %w: %w", path, ErrModel, unfit)
	case errors.Is(err, safetensors.ErrFormat):
		return nil, fmt.Errorf("open model: %w: %w", ErrModel, err)
	case err != nil:
		return nil, fmt.Errorf("open model: %w", err)
	}
	m.open = func() (*Model, error) { return OpenModel(path) }
	return m, nil
}

// readModel reads a model and checks its digests. unfit describes invalid content; err, which may be
// safetensors.ErrFormat, describes why the file was not read.
func readModel(path string, of func(map[string]string, map[string]safetensors.Tensor) (*Model, error)) (m *Model,
	unfit, err error) {
	m, err = safetensors.Read(path, of)
	if err == nil {
		return m, m.checkDigests(), nil
	}
	var content *safetensors.ContentError
	if errors.As(err, &content) {
		return nil, content.Err, nil
	}
	return nil, nil, err
}

// unweighed returns the model of a file's tensors after checking names and shapes. The values may be missing.
func unweighed(metadata map[string]string, tensors map[string]safetensors.Tensor) (*Model, error) {
	text, ok := metadata[manifestEntry]
	if !ok {
		return nil, fmt.Errorf("no manifest of a job in its metadata")
	}
	m := &Model{Metadata: metadata}
	var err error
	if m.job, err = schema.DecodeStoredJob([]byte(text)); err != nil {
		return nil, err
	}
	if err := m.job.ValidateStored(); err != nil {
		return nil, err
	}
	version, err := strconv.ParseUint(metadata[versionEntry], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("version %q of its metadata: %w", metadata[versionEntry], err)
	}
	m.Version = schema.Version(version)
	for _, p := range m.job.Parameters {
		values, err := safetensors.Values(tensors, p.Name, p.Shape)
		if err != nil {
			return nil, err
		}
		m.params = append(m.params, values)
	}
	for _, t := range m.job.Tables {
		values, err := safetensors.Values(tensors, t.Name, []int{int(t.Rows), t.Dim})
		if err != nil {
			return nil, err
		}
		m.tables = append(m.tables, values)
	}
	if m.hosted, err = hostedOf(m.job, tensors); err != nil {
		return nil, err
	}
	if want := len(m.params) + len(m.tables) + len(m.hosted); len(tensors) != want && metadata[extraEntry] == "" {
		return nil, fmt.Errorf("%d tensors, want the manifest's %d alone", len(tensors), want)
	}
	for _, t := range m.tensors() {
		delete(tensors, t.Name)
	}
	m.extra = slices.SortedFunc(maps.Values(tensors), byName)
	return m, nil
}

// checkDigests computes the model's digest, and compares it with the file's if Save wrote the file.
func (m *Model) checkDigests() (err error) {
	if m.digest, err = m.weigh(); err != nil {
		return err
	}
	if _, saved := m.Metadata[manifestEntry]; !saved {
		return nil
	}
	if got := hex.EncodeToString(m.digest[:]); got != m.Metadata[digestEntry] &&
		m.hashedDigest() != m.Metadata[digestEntry] {
		return fmt.Errorf("its weights have the digest %s, and were saved with %q", got, m.Metadata[digestEntry])
	}
	if digest, err := digestOf(m.hosted); len(m.hosted) > 0 && (err != nil ||
		hex.EncodeToString(digest[:]) != m.Metadata[modulesEntry]) {
		return fmt.Errorf("its modules have the digest %x, and were saved with %q", digest, m.Metadata[modulesEntry])
	}
	want, had := m.Metadata[extraEntry]
	if got := m.extraDigest(); got != want && (had || len(m.extra) > 0) {
		return fmt.Errorf("its further tensors have the digest %s, and were saved with %q", got, want)
	}
	for _, entry := range weighedEntries {
		delete(m.Metadata, entry)
	}
	return nil
}

// hostedOf returns the parameters of the job's modules. Files of old versions have none.
func hostedOf(job *schema.Job, tensors map[string]safetensors.Tensor) (all []Tensor, err error) {
	for i := range job.Modules {
		spec := &job.Modules[i]
		module, err := nn.Build([]byte(spec.Module))
		if err != nil {
			return nil, fmt.Errorf("module %q: %w", spec.Name, err)
		}
		for _, p := range module.Parameters() {
			name := spec.TensorName(p.Name)
			if _, there := tensors[name]; !there && len(all) == 0 {
				return nil, nil
			}
			values, err := safetensors.Values(tensors, name, p.Shape)
			if err != nil {
				return nil, err
			}
			all = append(all, Tensor{Name: name, Shape: p.Shape, Values: values})
		}
	}
	return all, nil
}

// weigh returns the digest of the weights, without those of modules.
func (m *Model) weigh() ([32]byte, error) {
	d := schema.NewWeightsDigest(m.job)
	for t, ok := d.Next(); ok; t, ok = d.Next() {
		var err error
		if t.IsTable {
			err = d.Table(m.tables[t.Index])
		} else {
			err = d.Values(m.params[t.Index])
		}
		if err != nil {
			return [32]byte{}, err
		}
	}
	return d.Sum()
}

// Job returns the manifest of the job that trained the model. The caller must not change it.
func (m *Model) Job() *schema.Job { return m.job }

// Digest returns the SHA-256 of all weights, without those of hosted modules, as Session.Digest does.
func (m *Model) Digest() [32]byte { return m.digest }

// Row returns a row of a table; nil if the model has no such table, or the table no such key.
func (m *Model) Row(table string, key uint64) []float32 {
	i := slices.IndexFunc(m.job.Tables, func(t schema.TableSpec) bool { return t.Name == table })
	if i < 0 || key >= m.job.Tables[i].Rows {
		return nil
	}
	dim := m.job.Tables[i].Dim
	return m.tables[i][int(key)*dim : (int(key)+1)*dim : (int(key)+1)*dim]
}

// Table returns all rows of a table, [Rows, Dim] in the order of the keys; nil if the model has no such table.
func (m *Model) Table(name string) []float32 {
	i := slices.IndexFunc(m.job.Tables, func(t schema.TableSpec) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return m.tables[i]
}

// Param returns a dense parameter, row-major; nil if the model has none of that name. The name of a hosted module's
// parameter is MODULE:PARAMETER.
func (m *Model) Param(name string) []float32 {
	if h := slices.IndexFunc(m.hosted, func(t Tensor) bool { return t.Name == name }); h >= 0 {
		return m.hosted[h].Values
	}
	i := slices.IndexFunc(m.job.Parameters, func(p schema.Parameter) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return m.params[i]
}

// Lookup returns rows as Session.Lookup does, so the same evaluation works for both.
func (m *Model) Lookup(_ context.Context, queries []Query) ([][]float32, error) {
	out := make([][]float32, len(queries))
	for i, query := range queries {
		if int(query.Table) >= len(m.job.Tables) {
			return nil, fmt.Errorf("lookup: table %d: the job has %d", query.Table, len(m.job.Tables))
		}
		spec := &m.job.Tables[query.Table]
		out[i] = make([]float32, 0, len(query.Keys)*spec.Dim)
		for _, key := range query.Keys {
			if key >= spec.Rows {
				return nil, fmt.Errorf("lookup: %w", outside(spec, key))
			}
			out[i] = append(out[i], m.tables[query.Table][int(key)*spec.Dim:(int(key)+1)*spec.Dim]...)
		}
	}
	return out, nil
}

// hashedDigest returns the digest in files of gradbus 0.1.0, where a key's partition was a hash of the key, so rows had
// another order.
func (m *Model) hashedDigest() string {
	hash, buffer := sha256.New(), []byte(nil)
	add := func(values []float32) {
		buffer = buffer[:0]
		for _, v := range values {
			buffer = binary.LittleEndian.AppendUint32(buffer, math.Float32bits(v))
		}
		hash.Write(buffer)
	}
	for _, t := range m.job.Tensors() {
		if !t.IsTable {
			add(m.params[t.Index])
			continue
		}
		spec, rows := &m.job.Tables[t.Index], m.tables[t.Index]
		partitions := make([][]uint32, spec.Partitions)
		for key := range spec.Rows {
			p := mix(key) % uint64(spec.Partitions)
			partitions[p] = append(partitions[p], uint32(key))
		}
		for _, keys := range partitions {
			for _, key := range keys {
				add(rows[int(key)*spec.Dim : (int(key)+1)*spec.Dim])
			}
		}
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// OpenWeights reads the values that a job begins with (Job.From, Config.From) from a safetensors file of any origin: a
// state_dict of PyTorch, an export of a checkpoint, or a model that Save wrote. The file must have exactly the tensors
// of the job, as float32, with the same names and shapes, a table as [rows, dim]. If Save wrote the file, its digest is
// checked. Errors: ErrModel, which lists all tensors that do not fit, and the error of opening the file.
//
//	m, err := trainer.OpenWeights("begin.safetensors", job)
func OpenWeights(path string, job *schema.Job) (*Model, error) {
	of := func(metadata map[string]string, tensors map[string]safetensors.Tensor) (m *Model, err error) {
		if _, saved := metadata[manifestEntry]; saved {
			m, err = unweighed(metadata, tensors)
		} else {
			m, err = weightsOf(metadata, tensors, job)
		}
		if err == nil {
			err = errors.Join(m.fits(job)...)
		}
		return m, err
	}
	m, unfit, err := readModel(path, of)
	switch {
	case unfit != nil:
		return nil, fmt.Errorf("%w: no weights for job %q: %s: %w", ErrModel, job.Name, path, jobErrors{unfit})
	case errors.Is(err, safetensors.ErrFormat):
		return nil, fmt.Errorf("%w: no weights for job %q: %w", ErrModel, job.Name, err)
	case err != nil:
		return nil, fmt.Errorf("open weights: %w", err)
	}
	m.open = func() (*Model, error) { return OpenWeights(path, job) }
	return m, nil
}

// weightsOf makes a model of tensors, whose values may be missing. Tensors with the name of a table of the job become
// tables.
func weightsOf(metadata map[string]string, tensors map[string]safetensors.Tensor, job *schema.Job) (*Model, error) {
	has := *job
	has.Parameters, has.Tables, has.Start = nil, nil, nil
	m := &Model{Metadata: metadata, job: &has}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		if t := tensors[name]; t.DType != "" {
			return nil, fmt.Errorf("%s has dtype %q, want F32", name, t.DType)
		}
	}
	take := func(name string) (t safetensors.Tensor, ok bool) {
		t, ok = tensors[name]
		delete(tensors, name)
		return t, ok
	}
	for _, spec := range job.Tables {
		if t, ok := take(spec.Name); ok && len(t.Shape) == 2 {
			spec.Rows, spec.Dim = uint64(t.Shape[0]), t.Shape[1]
			has.Tables, m.tables = append(has.Tables, spec), append(m.tables, t.Values)
		} else if ok {
			return nil, fmt.Errorf("tensor %q has the shape %v: want the [%d %d] of the table", spec.Name, t.Shape, spec.Rows,
				spec.Dim)
		}
	}
	for _, p := range job.Parameters {
		if t, ok := take(p.Name); ok {
			p.Shape = t.Shape
			has.Parameters, m.params = append(has.Parameters, p), append(m.params, t.Values)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tensors)) { // tensors that the job does not have
		has.Parameters = append(has.Parameters, schema.Parameter{Name: name, Shape: tensors[name].Shape})
		m.params = append(m.params, tensors[name].Values)
	}
	return m, nil
}

// begin records in the manifest that the job begins with the values of the model, or compares them with the recorded
// ones. A nil Model does nothing.
func (m *Model) begin(job *schema.Job) error {
	if m == nil {
		return nil
	}
	digest := hex.EncodeToString(m.digest[:])
	if job.Start != nil && job.Start.Digest != digest {
		return fmt.Errorf("%w: job %q begins with a model whose digest is %s: the model given has %s", ErrConfig, job.Name,
			job.Start.Digest, digest)
	}
	if err := errors.Join(m.fits(job)...); err != nil {
		return fmt.Errorf("%w: job %q cannot begin with the model: %w", ErrConfig, job.Name, jobErrors{err})
	}
	if job.Start == nil {
		job.Start = job.NewStart(digest)
		if m.dense {
			job.Start = &schema.StartModel{Digest: digest, Batches: 1, Dense: true}
		}
	}
	if job.Start.Dense != m.dense {
		return fmt.Errorf("%w: job %q begins with dense values alone: %v, and the model given has them alone: %v", ErrConfig,
			job.Name, job.Start.Dense, m.dense)
	}
	return nil
}

// denseModel returns a model of dense values only, for a job whose tables are drawn.
func denseModel(job *schema.Job, values map[string][]float32) (*Model, error) {
	parameters := *job
	parameters.Tables = nil
	m := &Model{job: &parameters, dense: true}
	for _, p := range job.Parameters {
		v, ok := values[p.Name]
		if !ok || len(v) != p.Elements() {
			return nil, fmt.Errorf("%w: job %q: Dense has %d values of parameter %q: want %d", ErrConfig, job.Name, len(v),
				p.Name, p.Elements())
		}
		m.params = append(m.params, slices.Clone(v))
	}
	if len(values) > len(m.params) {
		return nil, fmt.Errorf("%w: job %q: Dense has %d parameters: want the %d of the manifest alone", ErrConfig, job.Name,
			len(values), len(m.params))
	}
	var err error
	m.digest, err = m.weigh()
	return m, err
}

// fits returns the differences between the tensors of the model and those of a job, and values that are not finite.
func (m *Model) fits(job *schema.Job) (wrong []error) {
	has := map[string][]int{}
	for i, p := range m.job.Parameters {
		has["parameter "+p.Name] = p.Shape
		wrong = append(wrong, finite("parameter", p.Name, m.params[i]))
	}
	for i, t := range m.job.Tables {
		has["table "+t.Name] = []int{int(t.Rows), t.Dim}
		wrong = append(wrong, finite("table", t.Name, m.tables[i]))
	}
	wants := func(kind, name string, shape []int) {
		saved, ok := has[kind+" "+name]
		switch delete(has, kind+" "+name); {
		case !ok:
			wrong = append(wrong, fmt.Errorf("%s %q: the model has none of that name: want one of shape %v", kind, name, shape))
		case !slices.Equal(saved, shape):
			wrong = append(wrong, fmt.Errorf("%s %q: the model's has the shape %v: want %v", kind, name, saved, shape))
		}
	}
	for _, p := range job.Parameters {
		wants("parameter", p.Name, p.Shape)
	}
	for _, t := range job.Tables {
		if m.dense {
			break
		}
		wants("table", t.Name, []int{int(t.Rows), t.Dim})
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		wrong = append(wrong, fmt.Errorf("the model has a %s of shape %v: the job has none", name, has[name]))
	}
	return wrong
}

func finite(kind, name string, values []float32) error {
	for i, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("%s %q of the model: value %d is %v: want finite values", kind, name, i, v)
		}
	}
	return nil
}

// assigning is the workload that stores the initial values of a model. Lane 0 has one sample per batch. The sample uses
// a range of the rows of every table, and sets values instead of gradients. Parameters are set in every batch, since a
// missing gradient is zero.
type assigning struct {
	model *Model
	job   *schema.Job
}

// stretch returns the rows of a table in a batch.
func (w *assigning) stretch(t int, b schema.Batch) (lo, hi int) {
	if w.job.Start.Dense {
		return 0, 0
	}
	rows, batches := int(w.job.Tables[t].Rows), w.job.Start.Batches
	return rows/batches*int(b) + min(int(b), rows%batches), rows/batches*(int(b)+1) + min(int(b)+1, rows%batches)
}

// Keys implements Workload.
func (w *assigning) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	if l != 0 {
		return 0, keys
	}
	for t := range keys {
		lo, hi := w.stretch(t, b)
		for key := lo; key < hi; key++ {
			keys[t] = append(keys[t], uint64(key))
		}
	}
	return 1, keys
}

// Bags implements Bagged: each key is a bag of its own.
func (w *assigning) Bags(b schema.Batch, _ lane.Lane, offsets [][]int64) [][]int64 {
	for t := range offsets {
		if w.job.Tables[t].Pooling == "" {
			continue
		}
		lo, hi := w.stretch(t, b)
		for at := range hi - lo + 1 {
			offsets[t] = append(offsets[t], int64(at))
		}
	}
	return offsets
}

// Lane implements Workload.
func (w *assigning) Lane(step *LaneStep) (float64, error) {
	for i := len(w.job.Parameters) - 1; i >= 0; i-- { // the order in which they are sent
		name := w.job.Parameters[i].Name
		copy(step.Grad(name), w.model.Param(name))
		step.Done(name)
	}
	for t := range w.job.Tables {
		spec := &w.job.Tables[t]
		lo, hi := w.stretch(t, step.Batch)
		if lo == hi {
			continue
		}
		values := w.model.Table(spec.Name)[lo*spec.Dim : hi*spec.Dim]
		if p := spec.Padding; p != nil && uint64(lo) <= *p && *p < uint64(hi) {
			values = slices.Clone(values)
			clear(values[(int(*p)-lo)*spec.Dim:][:spec.Dim])
		}
		switch table := schema.Table(t); {
		case pooledByShards(*spec):
			step.PooledGrad(table, values)
		default:
			step.RowGrad(table, slices.Clone(step.IDs(table)), values) // keys ascend: each is the next row
		}
	}
	return 0, nil
}
