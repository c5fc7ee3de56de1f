package schema

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"gradbus/lane"
)

// Limits of a manifest.
const (
	// ManifestBytesMax bounds a manifest's encoding, and so the number of parameters and tables of a job: files of
	// models and checkpoints can store all that such a manifest names. A message with a manifest has room for its other
	// fields.
	ManifestBytesMax = bodyBytesMax - 64<<10

	ChunkBytesMin        = 4 << 10
	ChunkBytesMax        = 4 << 20
	partitionsMax        = 1<<16 - 1 // of one table
	allPartitionsMax     = 1 << 20   // of all tables together
	shapeMax             = 8         // dimensions
	parameterElementsMax = 1<<31 - 1
	allElementsMax       = 1 << 34 // of all parameters together
	tableRowsMax         = 1 << 40
	tableElementsMax     = 1 << 44
	settingsMax          = 256
	settingBytesMax      = 4096
)

// FieldError reports one invalid field of a manifest.
type FieldError struct {
	Field string // JSON path, for example tables[0].dim
	Value string
	Want  string // a valid value
}

// Error implements error.
func (e FieldError) Error() string { return fmt.Sprintf("%s: %s: want %s", e.Field, e.Value, e.Want) }

// JobErrors lists every error that Validate found, in the order of the manifest.
type JobErrors []FieldError

// Error implements error. It lists the first eight errors.
func (e JobErrors) Error() string {
	const shown = 8
	texts := make([]string, 0, shown+1)
	for i, f := range e {
		if i == shown {
			texts = append(texts, fmt.Sprintf("and %d more", len(e)-shown))
			break
		}
		texts = append(texts, f.Error())
	}
	return "invalid job: " + strings.Join(texts, "; ")
}

// Validate returns everything that is wrong with the manifest, as JobErrors, or nil. A valid manifest has sizes whose
// products do not overflow; the server checks whether there is memory for them.
func (j *Job) Validate() error {
	c := &jobCheck{}
	c.stored(j)
	c.combinations(j)
	return c.err()
}

// ValidateStored is Validate for the manifest of a checkpoint or a model: it accepts combinations of modes that were
// legal once.
func (j *Job) ValidateStored() error {
	c := &jobCheck{}
	c.stored(j)
	return c.err()
}

func (c *jobCheck) err() error {
	if len(c.errors) == 0 {
		return nil
	}
	return c.errors
}

// stored checks everything except combinations.
func (c *jobCheck) stored(j *Job) {
	c.head(j)
	c.settings(j.Settings)
	c.optimizers(j)
	c.parameters(j)
	c.tables(j)
	c.tableConsistency(j.normal())
	c.modules(j)
	c.start(j)
	c.size(j)
	if len(j.Parameters)+len(j.Tables)+len(j.Modules) == 0 {
		c.add("parameters", 0, "at least one parameter, table or module")
	}
}

// combinations refuses modes that would work together, but that no job needs together.
func (c *jobCheck) combinations(j *Job) {
	if j.Apply == ApplyMean && j.Consistency == ConsistencyBounded {
		c.add("apply", j.Apply, "%q, or consistency %s: else trainers do not stay in step", ApplyUpdate, ConsistencySync)
	}
	if j.Apply == ApplyMean && j.Wire.DType() != DTypeFloat32 {
		c.add("wire.gradients", j.Wire.Gradients, "%s, or apply %s with it", GradientsFloat32, ApplyUpdate)
	}
	if j.TableConsistency == ConsistencyAsync && len(j.Tables) == 0 {
		c.add("table_consistency", j.TableConsistency, "tables with it")
	}
	for i, t := range j.Tables {
		if t.Replicated && t.Reduce == ReduceTrainers && j.Reduce != ReduceTrainers {
			c.add(fmt.Sprintf("tables[%d].reduce", i), t.Reduce, "%q, or reduce %s with it", ReduceShards, ReduceTrainers)
		}
	}
}

// size checks the size of the encoded manifest. If it cannot be encoded, other checks report the numbers.
func (c *jobCheck) size(j *Job) {
	if text, err := j.Encode(); err == nil && len(text) > ManifestBytesMax {
		c.add("manifest", len(text), "at most %d bytes: fewer parameters, tables or settings, or shorter names",
			ManifestBytesMax)
	}
}

type jobCheck struct {
	errors JobErrors
	names  map[string]string // field by name of tensor
}

func (c *jobCheck) add(field string, value any, want string, args ...any) {
	text := fmt.Sprint(value)
	if s, ok := value.(string); ok {
		if len(s) > 80 {
			s = s[:80] + "..."
		}
		text = fmt.Sprintf("%q", s)
	}
	c.errors = append(c.errors, FieldError{field, text, fmt.Sprintf(want, args...)})
}

func (c *jobCheck) between(field string, value, low, high int) bool {
	if value < low || value > high {
		c.add(field, value, "%d to %d", low, high)
		return false
	}
	return true
}

func (c *jobCheck) oneOf(field, value string, words ...string) {
	if !slices.Contains(words, value) {
		c.add(field, value, "%s", strings.Join(words, " or "))
	}
}

func (c *jobCheck) head(j *Job) {
	for _, n := range []struct{ field, name string }{{"name", string(j.Name)}, {"workload", j.Workload}} {
		if !nameForm.MatchString(n.name) {
			c.add(n.field, n.name, "1 to 63 of a-z, 0-9 and -")
		}
	}
	if c.between("lanes", j.Lanes, 1, lane.LanesMax) {
		c.between("trainers", j.Trainers, 1, j.Lanes)
	}
	n := j.normal()
	c.consistency(n)
	c.oneOf("wire.gradients", n.Wire.Gradients, GradientsFloat32, GradientsBFloat16, GradientsFloat16)
	if j.Wire.ErrorFeedback && n.Wire.Gradients == GradientsFloat32 {
		c.add("wire.error_feedback", j.Wire.ErrorFeedback, "gradients of 16 bits with it")
	}
	c.oneOf("reduce", n.Reduce, ReduceShards, ReduceTrainers)
	c.routes(j)
	if j.Reduce == ReduceTrainers {
		c.oneOf("apply", j.Apply, ApplyMean) // no shard has parameters
	} else if j.Consistency != ConsistencyAsync && j.Consistency != ConsistencyGrouped {
		c.oneOf("apply", j.Apply, ApplyUpdate, ApplyMean)
	}
	switch {
	case j.TakesOver() || j.Rewinds():
		c.oneOf("policy", j.Policy, PolicyFail, PolicyWait, PolicyRecover)
	default:
		c.oneOf("policy", j.Policy, PolicyFail) // the state of a trainer is lost with it
	}
	if c.between("chunk_bytes", j.ChunkBytes, ChunkBytesMin, ChunkBytesMax) && j.ChunkBytes%valuesAlign != 0 {
		c.add("chunk_bytes", j.ChunkBytes, "a multiple of %d", valuesAlign)
	}
}

// consistency checks the fields that a consistency requires.
func (c *jobCheck) consistency(j *Job) {
	c.oneOf("consistency", j.Consistency, ConsistencySync, ConsistencyBounded, ConsistencyAsync, ConsistencyGrouped)
	least, most := 0, 0
	if j.Consistency == ConsistencyBounded {
		least, most = 1, AheadMax
	}
	c.between("ahead", j.Ahead, least, most)
	if j.Consistency == ConsistencyAsync && j.Apply != ApplyUpdate {
		c.add("apply", j.Apply, `"update": in async there is no average over all trainers`)
	}
	c.group(j)
	if j.Consistency != ConsistencySync && j.Reduce == ReduceTrainers {
		c.add("reduce", j.Reduce, `"shards": trainers reduce among themselves in sync only`)
	}
}

// group checks the fields that grouped requires, and that no other mode has them.
func (c *jobCheck) group(j *Job) {
	if j.Consistency != ConsistencyGrouped {
		c.between("group", j.Group, 0, 0)
		if j.GroupEvents {
			c.add("group_events", j.GroupEvents, "consistency %s with it", ConsistencyGrouped)
		}
		return
	}
	c.between("group", j.Group, 1, max(1, j.Trainers))
	if j.Apply != ApplyUpdate {
		c.add("apply", j.Apply, `"update": in grouped there is no average over all trainers`)
	}
	if len(j.Tables) > 0 {
		c.add("tables", len(j.Tables), "none: in grouped there are dense parameters only")
	}
}

var settingForm = regexp.MustCompile(`^[a-z0-9_.-]{1,63}$`)

func (c *jobCheck) settings(settings map[string]string) {
	if len(settings) > settingsMax {
		c.add("settings", len(settings), "at most %d", settingsMax)
		return
	}
	for _, key := range sortedKeys(settings) {
		value := settings[key]
		if !settingForm.MatchString(key) {
			c.add("settings", key, "names of 1 to 63 of a-z, 0-9, _, . and -")
		}
		if len(value) > settingBytesMax || strings.ContainsFunc(value, unprintable) {
			c.add(join("settings", key), value, "at most %d bytes of printable text", settingBytesMax)
		}
	}
}

func unprintable(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (c *jobCheck) initial(field string, i Init) {
	c.oneOf(field+".kind", i.Kind, InitZeros, InitUniform, InitNormal)
	c.number(field+".scale", i.Scale)
}

// tensorNameBytesMax bounds the name of a parameter or table.
const tensorNameBytesMax = 127

// tensorReserved is the name of the metadata of a safetensors file: a tensor with that name cannot be saved.
const tensorReserved = "__metadata__"

// tensor checks the name of a parameter or table: both share one space of names, by which the digest of weights is
// ordered. A program may choose names freely, as PyTorch does; code that derives names from them keeps these apart.
func (c *jobCheck) tensor(field, name string) {
	if n := len(name); n < 1 || n > tensorNameBytesMax || !utf8.ValidString(name) ||
		strings.ContainsFunc(name, unprintable) || name == tensorReserved {
		c.add(field, name, "1 to %d bytes of printable text, other than %s", tensorNameBytesMax, tensorReserved)
		return
	}
	if first, taken := c.names[name]; taken {
		c.add(field, name, "a name of its own: %s has it", first)
		return
	}
	if c.names == nil {
		c.names = map[string]string{}
	}
	c.names[name] = field
}

func (c *jobCheck) parameters(j *Job) {
	all := uint64(0)
	for i, p := range j.Parameters {
		field := fmt.Sprintf("parameters[%d]", i)
		c.tensor(field+".name", p.Name)
		if n := len(p.Shape); n < 1 || n > shapeMax {
			c.add(field+".shape", p.Shape, "1 to %d dimensions", shapeMax)
		} else if n, ok := elements(p.Shape); !ok {
			c.add(field+".shape", p.Shape, "dimensions of at least 1 and at most %d values", parameterElementsMax)
		} else {
			all += n
		}
		c.initial(field+".init", p.Init)
	}
	if all > allElementsMax {
		c.add("parameters", all, "at most %d values in all", uint64(allElementsMax))
	}
}

// elements returns the product of the dimensions, false if one is below 1 or the product is too large.
func elements(shape []int) (uint64, bool) {
	n := uint64(1)
	for _, d := range shape {
		if d < 1 || uint64(d) > parameterElementsMax {
			return 0, false
		}
		if n *= uint64(d); n > parameterElementsMax { // both factors are below 2^31
			return 0, false
		}
	}
	return n, true
}

func (c *jobCheck) tables(j *Job) {
	if len(j.Tables) > tablesMax {
		c.add("tables", len(j.Tables), "at most %d", tablesMax)
		return
	}
	all := 0
	for i, t := range j.Tables {
		field := fmt.Sprintf("tables[%d]", i)
		c.tensor(field+".name", t.Name)
		rowsFit := t.Rows >= 1 && t.Rows <= tableRowsMax
		if !rowsFit {
			c.add(field+".rows", t.Rows, "1 to %d", uint64(tableRowsMax))
		}
		if c.between(field+".dim", t.Dim, 1, DimMax) && rowsFit && t.Rows*uint64(t.Dim) > tableElementsMax {
			c.add(field+".rows", t.Rows, "at most %d rows of %d values", tableElementsMax/uint64(t.Dim), t.Dim)
		}
		if c.between(field+".partitions", t.Partitions, 1, partitionsMax) {
			all += t.Partitions
		}
		if t.Replicated && (j.Apply != ApplyMean || j.Consistency != ConsistencySync) {
			c.add(field+".replicated", t.Replicated, "apply %s and consistency %s with it", ApplyMean, ConsistencySync)
		}
		if t.Padding != nil && *t.Padding >= t.Rows {
			c.add(field+".padding", *t.Padding, "a key of the table: 0 to rows-1, or left out")
		}
		c.tableRoute(field, &t)
		c.initial(field+".init", t.Init)
		c.pooling(j, field, &t)
	}
	if all > allPartitionsMax {
		c.add("tables", all, "at most %d partitions in all", allPartitionsMax)
	}
}

var optimizerKinds = []string{OptimizerSGD, OptimizerAdagrad, OptimizerRowwiseAdagrad, OptimizerAdam, OptimizerAdamW,
	OptimizerFTRL}

// Validate returns what is wrong with an optimizer by itself. The job's Validate checks whether it suits the job.
func (o *Optimizer) Validate() JobErrors {
	c := &jobCheck{}
	c.optimizer("optimizer", o)
	return c.errors
}

// optimizers checks the job's optimizer and those of tensors, each by itself and with its tensor.
func (c *jobCheck) optimizers(j *Job) {
	c.optimizer("optimizer", &j.Optimizer)
	for i := range j.Parameters {
		if own := j.Parameters[i].Optimizer; own != nil {
			field := fmt.Sprintf("parameters[%d].optimizer", i)
			c.optimizer(field, own)
			if own.Exact {
				c.add(field+".exact", own.Exact, "false: every batch moves a parameter, so it has nothing to make up")
			}
		}
	}
	for i := range j.Tables {
		if own := j.Tables[i].Optimizer; own != nil {
			c.optimizer(fmt.Sprintf("tables[%d].optimizer", i), own)
		}
		c.tableOptimizer(j, i)
	}
	c.rowClip(j)
	c.globalClip(j)
}

// optimizer checks one optimizer by itself.
func (c *jobCheck) optimizer(field string, given *Optimizer) {
	o := given.WithDefaults()
	c.oneOf(field+".kind", given.Kind, optimizerKinds...)
	c.number(field+".lr", o.LR)
	kinds := func(k ...string) []string { return k }
	adams := kinds(OptimizerAdam, OptimizerAdamW)
	for _, f := range []struct {
		name  string
		value float32
		of    []string // kinds that have the field
	}{
		{"momentum", o.Momentum, kinds(OptimizerSGD)},
		{"dampening", o.Dampening, kinds(OptimizerSGD)},
		{"weight_decay", o.WeightDecay, optimizerKinds[:len(optimizerKinds)-1]},
		{"beta1", o.Beta1, adams},
		{"beta2", o.Beta2, adams},
		{"eps", o.Eps, append(kinds(OptimizerAdagrad, OptimizerRowwiseAdagrad), adams...)},
		{"initial_accumulator", o.InitialAccumulator, kinds(OptimizerAdagrad, OptimizerRowwiseAdagrad)},
		{"beta", o.Beta, kinds(OptimizerFTRL)},
		{"l1", o.L1, kinds(OptimizerFTRL)},
		{"l2", o.L2, kinds(OptimizerFTRL)},
	} {
		if f.value != 0 && slices.Contains(optimizerKinds, o.Kind) && !slices.Contains(f.of, o.Kind) {
			c.add(field+"."+f.name, f.value, "0: %s has no %s", o.Kind, f.name)
			continue
		}
		c.number(field+"."+f.name, f.value)
	}
	for _, f := range []struct {
		name  string
		value float32
	}{{"beta1", o.Beta1}, {"beta2", o.Beta2}} {
		if slices.Contains(adams, o.Kind) && f.value >= 1 {
			c.add(field+"."+f.name, f.value, "below 1")
		}
	}
	if o.Nesterov && (o.Momentum == 0 || o.Dampening != 0) {
		c.add(field+".nesterov", o.Nesterov, "a momentum above 0 and no dampening with it")
	}
	if o.Exact && (o.Kind != OptimizerSGD || o.Schedule.varies()) {
		c.add(field+".exact", o.Exact,
			"sgd at a constant rate with it: what a row sat out is made up by steps of the rate of now")
	}
	c.schedule(field+".schedule", o.Schedule)
	if o.Clip != nil {
		c.oneOf(field+".clip.kind", o.Clip.Kind, ClipValue, ClipRow, ClipGlobal)
		if c.number(field+".clip.max", o.Clip.Max); o.Clip.Max == 0 {
			c.add(field+".clip.max", o.Clip.Max, "above 0")
		}
	}
}

func (s *Schedule) varies() bool { return s != nil && (s.Kind != scheduleConstant || s.Warmup > 0) }

func (c *jobCheck) schedule(field string, s *Schedule) {
	if s == nil {
		return
	}
	c.oneOf(field+".kind", s.Kind, scheduleConstant, ScheduleLinear, ScheduleCosine, scheduleSteps)
	c.number(field+".final", s.Final)
	c.number(field+".gamma", s.Gamma)
	decays, steps := s.Kind == ScheduleLinear || s.Kind == ScheduleCosine, s.Kind == scheduleSteps
	switch {
	case decays && s.Total <= s.Warmup:
		c.add(field+".total", s.Total, "the version at which the rate is the final one, above warmup, %d", s.Warmup)
	case !decays && s.Total != 0:
		c.add(field+".total", s.Total, "0: only linear and cosine have it")
	}
	switch {
	case decays && s.Final > 1:
		c.add(field+".final", s.Final, "0 to 1: a share of lr")
	case !decays && s.Final != 0:
		c.add(field+".final", s.Final, "0: only linear and cosine have it")
	}
	switch {
	case steps && s.Gamma == 0:
		c.add(field+".gamma", s.Gamma, "above 0")
	case !steps && s.Gamma != 0:
		c.add(field+".gamma", s.Gamma, "0: only steps have it")
	}
	ascending := slices.IsSorted(s.Steps) && len(slices.Compact(slices.Clone(s.Steps))) == len(s.Steps)
	switch {
	case steps && (len(s.Steps) == 0 || len(s.Steps) > scheduleStepsMax || !ascending || s.Steps[0] == 0):
		c.add(field+".steps", s.Steps, "1 to %d versions from 1 on, ascending", scheduleStepsMax)
	case !steps && len(s.Steps) > 0:
		c.add(field+".steps", s.Steps, "none: only steps have them")
	}
}

// tableOptimizer checks what a table's optimizer and PerRow require of the table and of the job.
func (c *jobCheck) tableOptimizer(j *Job, i int) {
	t, field := &j.Tables[i], fmt.Sprintf("tables[%d]", i)
	o := j.OptimizerOf(Table(i))
	if t.Placement == PlacementColumns {
		if o.Kind == OptimizerRowwiseAdagrad {
			c.add(field+".placement", t.Placement, "rows or tables with %s, which needs whole rows", o.Kind)
		}
		if o.Clip != nil && o.Clip.Kind == ClipRow {
			c.add(field+".placement", t.Placement, "rows or tables where rows are clipped by their norm")
		}
	}
	if !t.PerRow {
		return
	}
	n := j.normal()
	switch {
	case n.Wire.Gradients != GradientsFloat32:
		c.add(field+".per_row", true, "false with gradients of %s: a row's count has no place in them", n.Wire.Gradients)
	case t.Dim >= DimMax:
		c.add(field+".dim", t.Dim, "at most %d with per_row: a row's count travels behind its gradient", DimMax-1)
	case t.Cut().PooledByShards():
		c.add(field+".per_row", true, "false with placement %s, of which gradients travel as bags", t.Placement)
	}
}

// rowClip refuses a clip by the norm of a row for tensors without rows.
func (c *jobCheck) rowClip(j *Job) {
	const want = `"value" or "global", or tables with an optimizer of their own: %s has no rows`
	byRow := func(o Optimizer) bool { return o.Clip != nil && o.Clip.Kind == ClipRow }
	for i := range j.Parameters {
		if byRow(j.OptimizerOfParameter(i)) {
			field := "optimizer"
			if j.Parameters[i].Optimizer != nil {
				field = fmt.Sprintf("parameters[%d].optimizer", i)
			}
			c.add(field+".clip.kind", ClipRow, want, fmt.Sprintf("parameters[%d]", i))
			return
		}
	}
	if len(j.Modules) > 0 && byRow(j.Optimizer) {
		c.add("optimizer.clip.kind", ClipRow, want, "modules[0]")
	}
}

// globalClip checks that all gradients with a common norm meet at one owner before any step, and have the same bound.
func (c *jobCheck) globalClip(j *Job) {
	clips := map[string]float32{}
	for i := range j.Parameters {
		if clip := j.OptimizerOfParameter(i).Clip; clip != nil && clip.Kind == ClipGlobal {
			clips[fmt.Sprintf("parameters[%d]", i)] = clip.Max
		}
	}
	for i := range j.Tables {
		clip := j.OptimizerOf(Table(i)).Clip
		if clip == nil || clip.Kind != ClipGlobal {
			continue
		}
		field := fmt.Sprintf("tables[%d]", i)
		if clips[field] = clip.Max; !j.Tables[i].Replicated {
			c.add(field+".optimizer.clip.kind", ClipGlobal,
				"%q or %q, or replicated: a shard steps its rows before others have closed the batch",
				ClipValue, ClipRow)
		}
	}
	if clip := j.Optimizer.Clip; len(j.Modules) > 0 && clip != nil && clip.Kind == ClipGlobal {
		c.add("optimizer.clip.kind", ClipGlobal, "%q: the modules of a shard step by themselves", ClipValue)
	}
	if len(clips) == 0 {
		return
	}
	if j.Apply != ApplyMean {
		c.add("optimizer.clip.kind", ClipGlobal,
			"apply %s with it: with %s each shard steps before the norm of all gradients is known",
			ApplyMean, j.Apply)
	}
	fields := sortedKeys(clips)
	for _, field := range fields[1:] {
		if clips[field] != clips[fields[0]] {
			c.add(field+".optimizer.clip.max", clips[field], "%v, as that of %s: there is one norm", clips[fields[0]], fields[0])
			return
		}
	}
}

// number checks that a value is finite and not negative.
func (c *jobCheck) number(field string, value float32) {
	if v := float64(value); math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		c.add(field, value, "a finite number, at least 0")
	}
}

// Bounds of Job.FirstBucketBytes and BucketBytes, where they are given.
const (
	BucketBytesMin = 4 << 10
	BucketBytesMax = 1 << 30
)

// pooling checks placement and pooling of a table together, and with the job.
func (c *jobCheck) pooling(j *Job, field string, t *TableSpec) {
	if t.Placement != "" {
		c.oneOf(field+".placement", t.Placement, PlacementRows, PlacementColumns, PlacementTables)
	}
	if t.Pooling != "" || t.Cut().PooledByShards() {
		c.oneOf(field+".pooling", t.Pooling, PoolingSum, PoolingMean)
	}
	if t.Replicated && t.Cut().PooledByShards() {
		c.add(field+".placement", t.Placement, "%s where every trainer keeps the table", PlacementRows)
	}
	if t.Replicated && j.TableConsistency == ConsistencyAsync {
		c.add(field+".replicated", t.Replicated, "false where table_consistency is %s", ConsistencyAsync)
	}
	if t.Cut().PooledByShards() && j.Consistency != ConsistencySync {
		c.add(field+".placement", t.Placement, "consistency %s with it", ConsistencySync)
	}
}

// tableConsistency checks a consistency of tables that differs from that of dense parameters.
func (c *jobCheck) tableConsistency(j *Job) {
	if j.TableConsistency == "" {
		return
	}
	c.oneOf("table_consistency", j.TableConsistency, ConsistencySync, ConsistencyAsync)
	if j.TableConsistency == ConsistencyAsync && (j.Consistency != ConsistencySync || j.Reduce != ReduceTrainers) {
		c.add("table_consistency", j.TableConsistency, "consistency %s and reduce %s with it", ConsistencySync,
			ReduceTrainers)
	}
	if j.TableConsistency != ConsistencyAsync && j.Consistency != ConsistencySync {
		c.add("table_consistency", j.TableConsistency, "left out: it is that of the job, %s", j.Consistency)
	}
}

// routes checks Reduce, Sum and the sizes of buckets.
func (c *jobCheck) routes(j *Job) {
	c.sum(j)
	if j.OnNonfinite != "" {
		c.oneOf("on_nonfinite", j.OnNonfinite, NonfiniteFail, NonfiniteSkip)
	}
	for _, b := range []struct {
		field string
		value int
	}{{"first_bucket_bytes", j.FirstBucketBytes}, {"bucket_bytes", j.BucketBytes}} {
		if b.value != 0 && c.between(b.field, b.value, BucketBytesMin, BucketBytesMax) && b.value%valueBytes != 0 {
			c.add(b.field, b.value, "a multiple of %d", valueBytes)
		}
	}
}

// sum checks the time at which contributions are added up.
func (c *jobCheck) sum(j *Job) {
	if j.Sum == "" {
		return
	}
	c.oneOf("sum", j.Sum, SumFused, SumClose)
	byShards := func(t TableSpec) bool {
		return t.Replicated && (t.Reduce == ReduceShards || t.Reduce == "" && j.Reduce != ReduceTrainers)
	}
	if j.Sum == SumClose && (j.Apply != ApplyMean || j.Consistency != ConsistencySync ||
		!(len(j.Parameters) > 0 && j.Reduce != ReduceTrainers) && !slices.ContainsFunc(j.Tables, byShards)) {
		c.add("sum", j.Sum, "%s, or parameters or a replicated table that shards add up, in consistency %s with apply %s",
			SumFused, ConsistencySync, ApplyMean)
	}
}

// tableRoute checks which party aggregates a table.
func (c *jobCheck) tableRoute(field string, t *TableSpec) {
	if t.Reduce == "" {
		return
	}
	c.oneOf(field+".reduce", t.Reduce, ReduceShards, ReduceTrainers)
	if !t.Replicated && t.Reduce == ReduceTrainers {
		c.add(field+".reduce", t.Reduce, "%q, or replicated with it: shards add up what they keep", ReduceShards)
	}
}

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// start checks that assigned values arrive with equal bits, at one version of all owners.
func (c *jobCheck) start(j *Job) {
	if j.Start == nil {
		return
	}
	n := j.normal()
	if !digestForm.MatchString(j.Start.Digest) {
		c.add("start.digest", j.Start.Digest, "64 hexadecimal digits")
	}
	c.between("start.batches", j.Start.Batches, 1, startBatchesMax)
	if n.Consistency == ConsistencyAsync {
		c.add("start", n.Consistency, "consistency %s, %s or %s: else no batch is one of all trainers", ConsistencySync,
			ConsistencyBounded, ConsistencyGrouped)
	}
	if n.TableConsistency == ConsistencyAsync {
		c.add("start", n.TableConsistency, "table_consistency %s: else no batch is one of all trainers", ConsistencySync)
	}
	if n.Wire.Gradients != GradientsFloat32 {
		c.add("start", n.Wire.Gradients, "wire.gradients %s: 16 bits would round the values", GradientsFloat32)
	}
	if len(j.Modules) > 0 {
		c.add("start", len(j.Modules), "no modules: theirs begin as their seeds say")
	}
}
