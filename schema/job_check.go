package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"gradbus/lane"
)

// Limits of a manifest.
const (
	// ManifestBytesMax is the limit of a manifest's encoding, and the one limit of how many parameters and tables a job
	// has: files of models and checkpoints take all that such a manifest names. A message with a manifest has room for
	// what else is in it.
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

// FieldError is what is wrong with one field of a manifest.
type FieldError struct {
	Field string // JSON path, for example tables[0].dim
	Value string
	Want  string // what would be right
}

func (e FieldError) Error() string { return fmt.Sprintf("%s: %s: want %s", e.Field, e.Value, e.Want) }

// JobErrors is all that Validate found, in the order of the manifest.
type JobErrors []FieldError

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

// Validate reports everything that is wrong with the manifest, as JobErrors, or nil. A manifest that passes has sizes
// whose products do not overflow; whether there is memory for them is for the server to say.
func (j *Job) Validate() error {
	c := &jobCheck{}
	c.stored(j)
	c.combinations(j)
	return c.err()
}

// ValidateStored is Validate for the manifest of a checkpoint or a model: of modes that were once legal together it
// says nothing.
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

// stored checks everything but combinations.
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

// combinations refuses modes that work together, but that no job needs together.
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

// size checks what the manifest takes, where it can be encoded: other checks say what is wrong with numbers.
func (c *jobCheck) size(j *Job) {
	if text, err := j.Encode(); err == nil && len(text) > ManifestBytesMax {
		c.add("manifest", len(text), "at most %d bytes: fewer parameters, tables or settings, or shorter names",
			ManifestBytesMax)
	}
}

type jobCheck struct {
	errors JobErrors
	names  map[string]string // of tensors, to the field that has them
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
		c.oneOf("policy", j.Policy, PolicyFail) // what a trainer has is lost with it
	}
	if c.between("chunk_bytes", j.ChunkBytes, ChunkBytesMin, ChunkBytesMax) && j.ChunkBytes%valuesAlign != 0 {
		c.add("chunk_bytes", j.ChunkBytes, "a multiple of %d", valuesAlign)
	}
}

// consistency checks what a mode of consistency asks of other fields.
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

// group checks what grouped asks of other fields, and that nothing else speaks of groups.
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

// tensorReserved is what the metadata of a safetensors file are called: a tensor of that name cannot be saved.
const tensorReserved = "__metadata__"

// tensor checks the name of a parameter or table: they share one space of names, by which the digest of weights orders.
// A program may call them as it likes, as PyTorch does; what derives names of them keeps these apart.
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

// elements is the product of the dimensions, false where one is below 1 or the product too large.
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
