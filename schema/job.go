package schema

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"math"
	"reflect"
	"slices"
	"sort"
	"strings"
	"unsafe"

	"gradbus/lane"
	"gradbus/schema/crc32c"
)

// Job is the manifest of a job: everything that its trainers must agree on. The first trainer registers it; the others'
// must be equal field by field. It is sent as JSON within a control frame, with all of its fields; a program may omit
// those that WithDefaults sets.
type Job struct {
	Name     JobName           `json:"name"`
	Workload string            `json:"workload"` // program that the trainers run, for example "packages"
	Settings map[string]string `json:"settings"` // the workload's own settings and the digest of its data
	Seed     uint64            `json:"seed"`     // of all random numbers
	Trainers int               `json:"trainers"` // number of trainers
	Lanes    int               `json:"lanes"`    // >= Trainers, at most lane.LanesMax
	// ConsistencySync, ConsistencyBounded, ConsistencyAsync or ConsistencyGrouped
	Consistency string `json:"consistency"`
	// Batches that a trainer may run ahead in ConsistencyBounded; else 0.
	Ahead int `json:"ahead"`
	// Trainers whose contributions make one update in ConsistencyGrouped; else 0.
	Group  int    `json:"group,omitempty"`
	Wire   Wire   `json:"wire"`   // types of gradients in frames
	Reduce string `json:"reduce"` // party that aggregates: ReduceShards (also "") or ReduceTrainers
	Apply  string `json:"apply"`  // ApplyUpdate or ApplyMean
	// Policy is the reaction to the loss of a trainer: PolicyRecover, which is the default if it changes no bit
	// (Job.TakesOver, Job.rewindsAlike), PolicyWait or PolicyFail.
	Policy     string `json:"policy"`
	ChunkBytes int    `json:"chunk_bytes"` // values in one wire frame: 4 KiB to 4 MiB, default 256 KiB
	// Optimizer of all parameters and tables without one of their own, and of modules.
	Optimizer  Optimizer    `json:"optimizer"`
	Parameters []Parameter  `json:"parameters"` // dense tensors, in the order of the forward pass
	Tables     []TableSpec  `json:"tables"`
	Modules    []ModuleSpec `json:"modules,omitempty"` // hosted by shards; omitted if there are none

	// The fields below are omitted from the encoding if they have their default.

	// Sum is the time at which contributions are added up: SumFused (also ""), or SumClose, which is for comparison and
	// only legal in sync, if shards aggregate parameters, or a replicated table, that trainers own. The bits are the
	// same.
	Sum string `json:"sum,omitempty"`
	// OnNonfinite is the treatment of a lane whose gradient has a value that is not finite: NonfiniteFail (also ""),
	// which ends the job, or NonfiniteSkip, which treats the lane as one without samples. With NonfiniteSkip a lane's
	// gradients are sent only when its backward pass has ended.
	OnNonfinite string `json:"on_nonfinite,omitempty"`
	// FirstBucketBytes and BucketBytes are the sizes of buckets. The first bucket is small so that its gradient is sent
	// early. 0: 1 MiB and 25 MiB. Else 4 KiB to 1 GiB, multiples of 4.
	FirstBucketBytes int `json:"first_bucket_bytes,omitempty"`
	BucketBytes      int `json:"bucket_bytes,omitempty"`
	// TableConsistency is "" or ConsistencySync if tables follow Consistency. With ConsistencyAsync, each trainer's
	// contribution to tables is applied alone when it arrives, while dense gradients stay in step.
	TableConsistency string `json:"table_consistency,omitempty"`
	// GroupEvents makes shards send the events of groups to all trainers (Control.Group), if Consistency is grouped.
	GroupEvents bool `json:"group_events,omitempty"`
	// Start is the model whose values the job begins with; nil if Init draws them.
	Start *StartModel `json:"start,omitempty"`
}

// Values of the mode fields of a manifest.
const (
	ConsistencySync    = "sync"     // every batch is computed on the version that the batch before it made
	ConsistencyBounded = "bounded"  // a trainer may be up to Ahead batches ahead of the version that it computes on
	ConsistencyAsync   = "async"    // every contribution is applied when it arrives
	ConsistencyGrouped = "grouped"  // the next Group contributions from any trainers make one update
	ReduceShards       = "shards"   // contributions go to shards, which compute the sums
	ReduceTrainers     = "trainers" // every trainer owns some chunks and sums them for all
	// Two children of a lane-tree node are added as soon as both have arrived; the last sum is one pass with the
	// division.
	SumFused          = "fused"
	SumClose          = "close" // a round keeps all contributions and adds them up when the last has arrived
	GradientsFloat32  = "float32"
	GradientsBFloat16 = "bfloat16" // summed in float32; a contribution is rounded once, when it is sent
	GradientsFloat16  = "float16"
	ApplyUpdate       = "update"  // shards own dense parameters and their optimizer, and publish new parameters
	ApplyMean         = "mean"    // shards average, and every trainer has dense parameters and their optimizer
	PolicyFail        = "fail"    // a lost trainer ends the job
	PolicyWait        = "wait"    // a new process has to take its slot
	PolicyRecover     = "recover" // others compute its lanes, unless a new process takes its slot
	NonfiniteFail     = "fail"    // a gradient that is not finite ends the job
	NonfiniteSkip     = "skip"    // its lane is absent from the batch
	InitZeros         = "zeros"
	InitUniform       = "uniform"
	InitNormal        = "normal"
	AheadMax          = 16        // of Job.Ahead
	ChunkBytes        = 256 << 10 // the default of Job.ChunkBytes
	Partitions        = 64        // the default of TableSpec.Partitions
)

// Wire is the type of gradients in frames. The zero value is float32.
//
// With float32, results have equal bits at any number of trainers. With 16 bits, a trainer rounds the sum over each
// node of the lane tree that it hosts, and the nodes depend on its lanes: so bits depend on the number of trainers, and
// are equal in all runs with the same number. ErrorFeedback keeps a remainder for each of these nodes.
type Wire struct {
	Gradients string `json:"gradients"` // GradientsFloat32 (also ""), GradientsBFloat16 or GradientsFloat16
	// Adds the rounding error of a 16-bit gradient to the next batch's gradient.
	ErrorFeedback bool `json:"error_feedback"`
}

// Init is the distribution of a tensor's initial values. Kind is InitZeros, InitUniform (in [-Scale, Scale)) or
// InitNormal (mean 0, standard deviation Scale). Values are a pure function of (seed, tensor name, element) or (seed,
// table name, key).
type Init struct {
	Kind  string  `json:"kind"`
	Scale float32 `json:"scale"`
}

// Parameter is a named dense tensor, float32.
type Parameter struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
	Init  Init   `json:"init"`

	Optimizer *Optimizer `json:"optimizer,omitempty"` // replaces the job's optimizer
}

// Elements returns the number of values of the parameter.
func (p Parameter) Elements() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// TableSpec is an embedding table: an array of Rows rows of Dim float32 values, keys [0, Rows), cut into Partitions.
type TableSpec struct {
	Name       string `json:"name"`
	Rows       uint64 `json:"rows"`
	Dim        int    `json:"dim"`
	Partitions int    `json:"partitions"`
	// Every trainer has the whole table with its optimizer, and receives mean gradients.
	Replicated bool   `json:"replicated"`
	Init       Init   `json:"init"`
	Placement  string `json:"placement,omitempty"` // PlacementRows (also ""), PlacementColumns or PlacementTables
	Pooling    string `json:"pooling,omitempty"`   // of bags: PoolingSum or PoolingMean; "" if the table has none

	// Reduce is the party that aggregates a replicated table's gradients: "" as for the job, ReduceShards or
	// ReduceTrainers.
	Reduce string `json:"reduce,omitempty"`

	Optimizer *Optimizer `json:"optimizer,omitempty"` // replaces the job's optimizer
	// Divides a row's sum by the number of times that the contributing lanes name its key.
	PerRow bool `json:"per_row,omitempty"`
	// Key whose row begins as zeros, whatever Init says, for samples that a program pads and does not train.
	Padding *uint64 `json:"padding,omitempty"`
	// Salts with which programs hash ids to keys (docs/ids.md), null for an input whose ids are keys. A reader of the
	// model hashes ids with the same salts, and trainers that differ are refused.
	Salts []*int64 `json:"salts,omitempty"`
}

// Pads reports whether key is the table's padding key.
func (t *TableSpec) Pads(key uint64) bool { return t.Padding != nil && *t.Padding == key }

// SumDim returns the number of values of a row's gradient in frames: those of the row, and, with PerRow, its own count.
func (t *TableSpec) SumDim() int {
	if t.PerRow {
		return t.Dim + 1
	}
	return t.Dim
}

// Values returns the number of values in all parameters and tables.
func (j *Job) Values() int64 {
	total := 0.0
	for _, p := range j.Parameters {
		total += float64(p.Elements())
	}
	for _, t := range j.Tables {
		total += float64(t.Rows) * float64(t.Dim)
	}
	return int64(min(total, math.MaxInt64/8)) // so that the number of bytes fits, too
}

// Digest returns the SHA-256 of the manifest's canonical encoding.
func (j *Job) Digest() ([32]byte, error) {
	b, err := j.Encode()
	if err != nil {
		return [32]byte{}, err
	}
	return sha256.Sum256(b), nil
}

// Encode returns the canonical encoding: compact JSON as encoding/json writes it, fields in the order of the type, map
// keys sorted, and empty lists and maps instead of null. It fails for a number that is NaN or infinite.
func (j *Job) Encode() ([]byte, error) {
	b, err := json.Marshal(j.normal())
	if err != nil {
		return nil, fmt.Errorf("encode job %q: %w", j.Name, err)
	}
	return b, nil
}

// normal returns j with defaults, and empty lists and maps for absent ones, so that Encode and Diff treat them alike.
func (j *Job) normal() *Job {
	n := *j
	for _, d := range []struct {
		field *string
		value string
	}{{&n.Reduce, ReduceShards}, {&n.Wire.Gradients, GradientsFloat32}} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	if n.Settings == nil {
		n.Settings = map[string]string{}
	}
	n.Tables = append([]TableSpec{}, n.Tables...)
	for i := range n.Tables {
		if n.Tables[i].Placement == PlacementRows {
			n.Tables[i].Placement = "" // the default is omitted
		}
	}
	n.Parameters = append([]Parameter{}, n.Parameters...)
	n.normalRoutes()
	n.normalOptimizers()
	if n.TableConsistency == ConsistencySync && n.Consistency == ConsistencySync {
		n.TableConsistency = ""
	}
	for i := range n.Parameters {
		if n.Parameters[i].Shape == nil {
			n.Parameters[i].Shape = []int{}
		}
	}
	return &n
}

// normalRoutes omits defaults; j must own its tables. Fields that were added later are absent if they have their
// default, so that the encoding of older manifests stays the same.
func (j *Job) normalRoutes() {
	if j.Sum == SumFused {
		j.Sum = ""
	}
	if j.OnNonfinite == NonfiniteFail {
		j.OnNonfinite = ""
	}
	if j.FirstBucketBytes == firstBucketBytesMax {
		j.FirstBucketBytes = 0
	}
	if j.BucketBytes == bucketBytesMax {
		j.BucketBytes = 0
	}
	for i := range j.Tables {
		if t := &j.Tables[i]; t.Reduce == j.Reduce || t.Reduce == ReduceShards && !t.Replicated {
			t.Reduce = ""
		}
	}
}

// DecodeJob reads a manifest of at most bodyBytesMax bytes. Unknown fields are refused, because both sides cannot agree
// on a field that one does not know. Validate checks the manifest itself.
func DecodeJob(b []byte) (*Job, error) {
	j, sparse, err := decodeJob(b)
	if err == nil && sparse != nil {
		err = FieldError{"wire.sparse", string(sparse), "it left out: a table's gradients travel as rows or as bags, " +
			"whichever is smaller"}
	}
	if err != nil {
		return nil, fmt.Errorf("decode job: %w", err)
	}
	return j, nil
}

// DecodeStoredJob is DecodeJob for the manifest of a checkpoint or a model, which an older program may have written: it
// ignores a field that manifests no longer have, and a sum that is no longer legal. Neither changes what was stored.
func DecodeStoredJob(b []byte) (*Job, error) {
	j, _, err := decodeJob(b)
	if err != nil {
		return nil, fmt.Errorf("decode job: %w", err)
	}
	c := &jobCheck{}
	if c.sum(j); len(c.errors) > 0 {
		j.Sum = ""
	}
	return j, nil
}

// decodeJob reads a manifest, and wire.sparse beside it, which is nil if the manifest does not have it.
func decodeJob(b []byte) (j *Job, sparse json.RawMessage, err error) {
	var text struct {
		Job
		Wire struct {
			Wire
			Sparse json.RawMessage `json:"sparse"`
		} `json:"wire"`
	}
	if err := decodeJSON(b, &text); err != nil {
		return nil, nil, err
	}
	text.Job.Wire = text.Wire.Wire
	return &text.Job, text.Wire.Sparse, nil
}

// WithDefaults returns a copy of the manifest in which every zero field with an obvious value has that value: one
// trainer, lane.Default lanes, ConsistencySync, ApplyUpdate, PolicyRecover or PolicyFail, ChunkBytes, SGD, the defaults
// of an optimizer (Optimizer.WithDefaults), Partitions for each table, and the job's name as its Workload. What remains
// are the name, the tensors and their Init, and the learning rate.
//
//	job := (&Job{Name: "clicks", Optimizer: Optimizer{LR: 0.1}, Tables: tables}).WithDefaults()
func (j *Job) WithDefaults() *Job {
	n := *j
	setDefault(&n.Workload, string(n.Name))
	setDefault(&n.Trainers, 1)
	if n.Trainers <= lane.LanesMax { // Validate reports more than that
		setDefault(&n.Lanes, lane.Default(n.Trainers))
	}
	setDefault(&n.Consistency, ConsistencySync)
	setDefault(&n.Apply, ApplyUpdate)
	if n.Reduce == ReduceTrainers && j.Apply == "" {
		n.Apply = ApplyMean // no shard has parameters
	}
	setDefault(&n.ChunkBytes, ChunkBytes)
	n.Tables = append([]TableSpec(nil), j.Tables...)
	n.Parameters = append([]Parameter(nil), j.Parameters...)
	for i := range n.Tables {
		setDefault(&n.Tables[i].Partitions, Partitions)
	}
	n.resolveOptimizers()
	if n.TakesOver() || n.rewindsAlike() {
		setDefault(&n.Policy, PolicyRecover)
	}
	setDefault(&n.Policy, PolicyFail)
	return &n
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Zeros returns the Init of zeros.
func Zeros() Init { return Init{Kind: InitZeros} }

// Uniform returns the Init of values that are uniform in [-scale, scale).
func Uniform(scale float32) Init { return Init{Kind: InitUniform, Scale: scale} }

// Normal returns the Init of normal values with mean 0 and standard deviation scale.
func Normal(scale float32) Init { return Init{Kind: InitNormal, Scale: scale} }

// absent represents an entry that one side does not have.
const absent = "absent"

// Diff finds the first field, in the manifest's order, in which other differs from j. It returns its JSON path
// (optimizer.lr, settings.batch_size, tables[0].rows), j's value and other's as compact JSON, or "absent".
//
//	if field, have, want, differs := registered.Diff(offered); differs { ... }
func (j *Job) Diff(other *Job) (field, have, want string, differs bool) {
	d := diff("", reflect.ValueOf(*j.normal()), reflect.ValueOf(*other.normal()))
	if d == nil {
		return "", "", "", false
	}
	return d.field, d.have, d.want, true
}

type difference struct{ field, have, want string }

func diff(path string, a, b reflect.Value) *difference {
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			if d := diff(join(path, jsonName(a.Type().Field(i))), a.Field(i), b.Field(i)); d != nil {
				return d
			}
		}
		return nil
	case reflect.Pointer:
		switch {
		case a.IsNil() && b.IsNil():
			return nil
		case a.IsNil():
			return &difference{path, absent, encoded(b)}
		case b.IsNil():
			return &difference{path, encoded(a), absent}
		}
		return diff(path, a.Elem(), b.Elem())
	case reflect.Slice:
		for i := range max(a.Len(), b.Len()) {
			at := fmt.Sprintf("%s[%d]", path, i)
			switch {
			case i >= a.Len():
				return &difference{at, absent, encoded(b.Index(i))}
			case i >= b.Len():
				return &difference{at, encoded(a.Index(i)), absent}
			}
			if d := diff(at, a.Index(i), b.Index(i)); d != nil {
				return d
			}
		}
		return nil
	case reflect.Map:
		return diffMaps(path, a, b)
	}
	if !a.Equal(b) {
		return &difference{path, encoded(a), encoded(b)}
	}
	return nil
}

// diffMaps compares maps by string, keys ascending.
func diffMaps(path string, a, b reflect.Value) *difference {
	var keys []string
	for _, k := range append(a.MapKeys(), b.MapKeys()...) {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		at, key := join(path, k), reflect.ValueOf(k)
		inA, inB := a.MapIndex(key), b.MapIndex(key)
		switch {
		case !inA.IsValid():
			return &difference{at, absent, encoded(inB)}
		case !inB.IsValid():
			return &difference{at, encoded(inA), absent}
		}
		if d := diff(at, inA, inB); d != nil {
			return d
		}
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func encoded(v reflect.Value) string {
	b, err := json.Marshal(v.Interface())
	if err != nil { // a number that JSON cannot represent
		return fmt.Sprint(v.Interface())
	}
	return string(b)
}

// WeightsDigest computes the digest of a job's weights: the SHA-256 over the values of all parameters and tables, and
// over nothing else. Tensors (parameters and tables together) come in ascending order of their names' bytes. A
// parameter's values come in their own order; a table's rows by partition ascending, and by key ascending within a
// partition, every key of [0, Rows) once. A value is its four bytes, little-endian, so -0 and NaN payloads count. The
// digest is the same for any placement, and for any number of trainers and shards.
//
// Values may be added in pieces, but only in that order, which Next returns. The first mistake is kept and returned by
// Sum. Not safe for concurrent use.
//
//	d := NewWeightsDigest(job)
//	for t, ok := d.Next(); ok; t, ok = d.Next() {
//		if t.IsTable { d.Rows(partition, keys, rows) ... } else { d.Values(parameters[t.Index]) }
//	}
//	sum, err := d.Sum()
type WeightsDigest struct {
	job     *Job
	tensors []Tensor
	hash    hash.Hash
	err     error

	at        int // in tensors
	done      uint64
	partition Partition // of the last row
	key       uint64    // of the last row
}

// Tensor is a parameter or a table of a job.
type Tensor struct {
	Name    string
	IsTable bool
	Index   int // in the manifest's Parameters or Tables
}

// Tensors returns a job's parameters and tables in ascending order of their names' bytes.
func (j *Job) Tensors() []Tensor {
	all := make([]Tensor, 0, len(j.Parameters)+len(j.Tables))
	for i, p := range j.Parameters {
		all = append(all, Tensor{p.Name, false, i})
	}
	for i, t := range j.Tables {
		all = append(all, Tensor{t.Name, true, i})
	}
	sort.Slice(all, func(a, b int) bool { return all[a].Name < all[b].Name })
	return all
}

// NewWeightsDigest begins the digest of a validated job.
func NewWeightsDigest(job *Job) *WeightsDigest {
	return &WeightsDigest{job: job, tensors: job.Tensors(), hash: sha256.New()}
}

// Next returns the tensor whose values come next; false at the end, or after a mistake.
func (d *WeightsDigest) Next() (Tensor, bool) {
	if d.err != nil || d.at == len(d.tensors) {
		return Tensor{}, false
	}
	return d.tensors[d.at], true
}

// Values adds values of the parameter that Next returned, in order, in one or several calls.
func (d *WeightsDigest) Values(values []float32) error {
	t, ok := d.Next()
	if !ok || t.IsTable {
		return d.fail("values where Next does not name a parameter")
	}
	want := uint64(d.job.Parameters[t.Index].Elements())
	if uint64(len(values)) > want-d.done {
		return d.fail("parameter %q: %d values more than its %d", t.Name, uint64(len(values))-(want-d.done), want)
	}
	d.add(values)
	d.advance(uint64(len(values)), want)
	return nil
}

// Rows adds rows [len(keys), Dim] of one partition of the table that Next returned: keys ascending, within the call and
// from call to call of a partition, partitions ascending. Partitions without keys may be omitted.
func (d *WeightsDigest) Rows(p Partition, keys []uint64, rows []float32) error {
	t, ok := d.Next()
	if !ok || !t.IsTable {
		return d.fail("rows where Next does not name a table")
	}
	spec := &d.job.Tables[t.Index]
	if len(rows) != len(keys)*spec.Dim {
		return d.fail("table %q: %d values for %d keys of dim %d", t.Name, len(rows), len(keys), spec.Dim)
	}
	first := d.done == 0
	for _, key := range keys {
		switch {
		case key >= spec.Rows || PartitionOf(key, spec.Partitions) != p:
			return d.fail("table %q: key %d is not in partition %d", t.Name, key, p)
		case !first && (p < d.partition || p == d.partition && key <= d.key):
			return d.fail("table %q: key %d of partition %d after key %d of partition %d", t.Name, key, p, d.key, d.partition)
		}
		d.partition, d.key, first = p, key, false
	}
	d.add(rows)
	d.advance(uint64(len(keys)), spec.Rows)
	return nil
}

// Table adds all rows [Rows, Dim] of the table that Next returned, in order of the key.
func (d *WeightsDigest) Table(rows []float32) error {
	t, ok := d.Next()
	if !ok || !t.IsTable || d.done != 0 {
		return d.fail("a whole table where Next does not name one, or after some of its rows")
	}
	spec := &d.job.Tables[t.Index]
	if uint64(len(rows)) != spec.Rows*uint64(spec.Dim) {
		return d.fail("table %q: %d values, want %d rows of %d", t.Name, len(rows), spec.Rows, spec.Dim)
	}
	keys := spec.Partitioning()
	for p := range Partition(spec.Partitions) {
		for at := range keys.Rows(p) {
			key := int(keys.Key(p, at))
			d.add(rows[key*spec.Dim : (key+1)*spec.Dim])
		}
	}
	d.advance(spec.Rows, spec.Rows)
	return nil
}

// Sum returns the digest. It fails if an earlier call failed, or if values are missing.
func (d *WeightsDigest) Sum() ([sha256.Size]byte, error) {
	var sum [sha256.Size]byte
	if t, missing := d.Next(); missing {
		return sum, fmt.Errorf("digest of weights: %q is not complete", t.Name)
	}
	if d.err != nil {
		return sum, d.err
	}
	d.hash.Sum(sum[:0])
	return sum, nil
}

func (d *WeightsDigest) add(values []float32) { d.hash.Write(bytesOf(values)) }

func (d *WeightsDigest) advance(n, of uint64) {
	if d.done += n; d.done == of {
		d.at, d.done = d.at+1, 0
	}
}

func (d *WeightsDigest) fail(format string, args ...any) error {
	if d.err == nil {
		d.err = errors.New("digest of weights: " + fmt.Sprintf(format, args...))
	}
	return d.err
}

// bytesOf views values as bytes in the wire's order.
func bytesOf(values []float32) []byte {
	if len(values) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*valueBytes)
}

// AddReplica adds values, as their little-endian bytes, to the CRC-32C of a replica of the dense parameters, which
// ReplicaDigest reports. The first sum is 0, and parameters come in the manifest's order. -0 and NaN payloads count.
//
//	sum := AddReplica(AddReplica(0, first), second)
func AddReplica(sum uint32, values []float32) uint32 {
	if len(values) == 0 {
		return sum
	}
	return crc32c.Update(sum, unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), valueBytes*len(values)))
}
