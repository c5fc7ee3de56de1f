package trainer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"gradbus/internal/safetensors"
	"gradbus/nn"
	"gradbus/schema"
)

// ErrModel: a file is no model that Save wrote, or its weights are not those that were saved; the text says what is
// wrong with it.
var ErrModel = errors.New("not a saved model")

// What the metadata of a saved model hold, beside those of whoever saved it.
const (
	modelFormat   = "gradbus model 1"
	formatEntry   = "format"
	manifestEntry = "gradbus.manifest"
	digestEntry   = "gradbus.digest"
	versionEntry  = "gradbus.version"
	modulesEntry  = "gradbus.modules" // digest of the parameters of modules, where there are any
	extraEntry    = "gradbus.extra"   // digest of the tensors of an Extra, where there are any
	modelRowsMax  = 1<<32 - 1         // of one table, held whole in memory
)

// weighedEntries are those of the metadata that a file of a model is checked by.
var weighedEntries = []string{manifestEntry, digestEntry, versionEntry, modulesEntry, extraEntry}

// Model is what was trained, at one version: the weights of all parameters and tables, and of hosted modules as they
// are then, whole in memory, with the manifest of the job. It is read from a session (Weights) or a file (OpenModel),
// and needs no server. It may be read from several goroutines.
type Model struct {
	Version  schema.Version
	Metadata map[string]string // of whoever saved it

	job    *schema.Job
	digest [32]byte
	params [][]float32            // of each parameter of the manifest
	tables [][]float32            // of each table, [Rows, Dim] in the order of the keys
	hosted []Tensor               // parameters of modules, by schema.ModuleSpec.TensorName, in the manifest's order
	dense  bool                   // it has no tables, and the job that begins with it draws them
	extra  []safetensors.Tensor   // by name
	open   func() (*Model, error) // reads its file once more; nil where it is of none
}

// Extra is what a program adds to the file of a model: what it trains or keeps itself. OpenModel passes it through.
type Extra struct {
	Metadata map[string]string
	Tensors  []ExtraTensor
}

// ExtraTensor is a tensor of any type that safetensors and PyTorch have in common, row-major, such as an "I64" counter.
type ExtraTensor struct {
	Name, DType string
	Shape       []int
	Data        []byte // little-endian
}

// Weights is Session.Weights in this run.
func (s *membership) Weights(ctx context.Context) (*Model, error) {
	if err := holdable(s.job); err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	version, err := s.Wait(ctx)
	if err != nil {
		return nil, err
	}
	m := &Model{Version: version, Metadata: map[string]string{}, job: s.job}
	for _, p := range s.job.Parameters {
		m.params = append(m.params, slices.Clone(s.Param(p.Name)))
	}
	for i, spec := range s.job.Tables {
		values := make([]float32, int(spec.Rows)*spec.Dim)
		err := s.Table(ctx, schema.Table(i), func(_ schema.Partition, keys []uint64, rows []float32) error {
			for k, key := range keys {
				copy(values[int(key)*spec.Dim:][:spec.Dim], rows[k*spec.Dim:])
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("weights: %w", err)
		}
		m.tables = append(m.tables, values)
	}
	if m.hosted, err = s.hosted(ctx); err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	m.digest, err = m.weigh()
	return m, err
}

// hosted reads the parameters of all modules.
func (s *membership) hosted(ctx context.Context) (all []Tensor, err error) {
	for _, m := range s.modules {
		of, _, err := m.Weights(ctx)
		if err != nil {
			return nil, err
		}
		for _, t := range of {
			t.Name = m.spec.TensorName(t.Name)
			all = append(all, t)
		}
	}
	return all, nil
}

// holdable says why the weights of a job cannot be held whole, or nil.
func holdable(job *schema.Job) error {
	for _, t := range job.Tables {
		if t.Rows > modelRowsMax {
			return fmt.Errorf("table %q has %d rows: want at most %d in a model; Table reads it in pieces", t.Name, t.Rows,
				uint64(modelRowsMax))
		}
	}
	return nil
}

// SaveExtra is Session.SaveExtra in this run.
func (s *membership) SaveExtra(ctx context.Context, path string, extra Extra) error {
	for _, entry := range append([]string{formatEntry}, weighedEntries...) {
		if _, there := extra.Metadata[entry]; there {
			return fmt.Errorf("save model: entry %q of the metadata is the file's own: want another name", entry)
		}
	}
	version, err := s.Wait(ctx)
	if err != nil {
		return err
	}
	m := &Model{Version: version, Metadata: extra.Metadata, job: s.job}
	for _, t := range extra.Tensors {
		m.extra = append(m.extra, safetensors.Tensor{Name: t.Name, Shape: t.Shape, DType: t.DType, Data: t.Data})
	}
	slices.SortFunc(m.extra, byName)
	if m.hosted, err = s.hosted(ctx); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	metadata, err := m.metadata()
	if err != nil {
		return err
	}
	file, err := safetensors.Create(path, metadata, m.tensors())
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	defer file.Discard()
	for _, t := range m.hosted {
		if err := file.Put(t.Name, 0, t.Values); err != nil {
			return fmt.Errorf("save model: %w", err)
		}
	}
	for _, t := range m.extra {
		if err := file.PutBytes(t.Name, t.Data); err != nil {
			return fmt.Errorf("save model: %w", err)
		}
	}
	if m.digest, err = s.stream(ctx, file.Put); err == nil {
		metadata[digestEntry] = hex.EncodeToString(m.digest[:])
		err = file.Commit(metadata)
	}
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// saveWhileRunning saves the model at a version that has just become the current one, if Config.SaveEvery says so. A
// disk that fails stops no training.
func (s *membership) saveWhileRunning(v schema.Version) {
	every, counted, path := s.config.SaveEvery, uint64(s.job.Counted(v)), s.config.SavePath
	if every == 0 || counted%every != 0 || s.joined.FirstLane != 0 {
		return
	}
	log := s.config.Log.With("job", s.job.Name, "member", s.joined.Member, "version", counted, "path", path)
	if err := s.SaveExtra(s.ctx, path, Extra{}); err != nil {
		log.Error("model is not saved", "err", err)
		return
	}
	s.savedAt.Store(counted)
	log.Info("model is saved")
}

// stream puts all weights of the current version somewhere, and gives their digest. values are put's until it returns.
func (s *membership) stream(ctx context.Context, put func(tensor string, first int64, values []float32) error) ([32]byte,
	error) {
	d := schema.NewWeightsDigest(s.job)
	for t, ok := d.Next(); ok; t, ok = d.Next() {
		var err error
		if t.IsTable {
			dim := s.job.Tables[t.Index].Dim
			err = s.Table(ctx, schema.Table(t.Index), func(p schema.Partition, keys []uint64, rows []float32) error {
				for from, to := 0, 0; from < len(keys); from = to {
					for to = from + 1; to < len(keys) && keys[to] == keys[to-1]+1; {
						to++
					}
					if err := put(t.Name, int64(keys[from])*int64(dim), rows[from*dim:to*dim]); err != nil {
						return err
					}
				}
				return d.Rows(p, keys, rows)
			})
		} else if err = put(t.Name, 0, s.Param(t.Name)); err == nil {
			err = d.Values(s.Param(t.Name))
		}
		if err != nil {
			return [32]byte{}, err
		}
	}
	return d.Sum()
}

// Save writes the model as a safetensors file: the tensors under their names, and in the metadata Metadata, the
// manifest of the job, version and digest. The file is there whole or not at all.
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

// metadata are those of the model's file.
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

// tensors are those of the model's file, with the values that the model has.
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

// byName orders the tensors of an Extra, so that a file is the same whoever writes it.
func byName(a, b safetensors.Tensor) int { return cmp.Compare(a.Name, b.Name) }

// extraDigest is the SHA-256 of the tensors of an Extra, in the order of their names: of each its header as JSON
// ["name","I64",[2,3]], a newline, and its bytes.
func (m *Model) extraDigest() string {
	sum := sha256.New()
	for _, t := range m.extra {
		json.NewEncoder(sum).Encode([]any{t.Name, cmp.Or(t.DType, "F32"), append([]int{}, t.Shape...)}) // ends with a newline
		sum.Write(t.Bytes())
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// OpenModel reads a file that Save wrote. It fails with ErrModel where it is something else, cut or changed, and where
// it cannot be opened (fs.ErrNotExist).
//
//	m, err := trainer.OpenModel("mf.safetensors")
//	row := m.Row("users", 7)
func OpenModel(path string) (*Model, error) {
	m, err := safetensors.ReadAny(path, unweighed)
	var unfit *safetensors.ContentError
	switch {
	case err == nil:
		err = m.checkDigests()
	case errors.As(err, &unfit):
		err = unfit.Err
	case errors.Is(err, safetensors.ErrFormat):
		return nil, fmt.Errorf("open model: %w: %w", ErrModel, err)
	default:
		return nil, fmt.Errorf("open model: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open model %s: %w: %w", path, ErrModel, err)
	}
	m.open = func() (*Model, error) { return OpenModel(path) }
	return m, nil
}

// unweighed is the model of a file's tensors, whose values may be missing: only names and shapes are compared.
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

// checkDigests weighs the model, and compares that with what its file says, where the file is of Save.
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

// hostedOf is the parameters of the job's modules, which files of before do not have.
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

// weigh is the digest of the weights, without those of modules.
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

// Job is the manifest of the job that trained the model. It is not to be changed.
func (m *Model) Job() *schema.Job { return m.job }

// Digest is the SHA-256 over all weights, as that of a session.
func (m *Model) Digest() [32]byte { return m.digest }

// Row is a row of a table; nil where the model has no such table, or the table no such key.
func (m *Model) Row(table string, key uint64) []float32 {
	i := slices.IndexFunc(m.job.Tables, func(t schema.TableSpec) bool { return t.Name == table })
	if i < 0 || key >= m.job.Tables[i].Rows {
		return nil
	}
	dim := m.job.Tables[i].Dim
	return m.tables[i][int(key)*dim : (int(key)+1)*dim : (int(key)+1)*dim]
}

// Table is all rows of a table, [Rows, Dim] in the order of the keys; nil where the model has no such table.
func (m *Model) Table(name string) []float32 {
	i := slices.IndexFunc(m.job.Tables, func(t schema.TableSpec) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return m.tables[i]
}

// Param is a dense parameter, row-major; nil where the model has none of that name. A hosted module's has the name
// MODULE:PARAMETER.
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

// Lookup gives rows as a session does, so that one evaluation does for both.
func (m *Model) Lookup(_ context.Context, asks []TableKeys) ([][]float32, error) {
	out := make([][]float32, len(asks))
	for i, ask := range asks {
		if int(ask.Table) >= len(m.job.Tables) {
			return nil, fmt.Errorf("lookup: table %d: the job has %d", ask.Table, len(m.job.Tables))
		}
		spec := &m.job.Tables[ask.Table]
		out[i] = make([]float32, 0, len(ask.Keys)*spec.Dim)
		for _, key := range ask.Keys {
			if key >= spec.Rows {
				return nil, fmt.Errorf("lookup: %w", outside(spec, key))
			}
			out[i] = append(out[i], m.tables[ask.Table][int(key)*spec.Dim:(int(key)+1)*spec.Dim]...)
		}
	}
	return out, nil
}
