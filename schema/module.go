package schema

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Limits of hosted modules.
const (
	ModulesMax        = 64
	ModuleConfigBytes = 64 << 10 // of one module's configuration
	moduleSamplesMax  = 1 << 16  // in one request
	moduleContextsMax = 64       // of one trainer and module
	// ModuleTensorElementsMax bounds the number of values in one request's tensor, and in its answer's: 32 MiB.
	ModuleTensorElementsMax = 8 << 20
)

// ModuleSpec is a module that a shard hosts: the shard has the parameters and computes, and trainers send inputs and
// gradients of outputs. Its optimizer is the job's. Shards interpret the configuration; the manifest only carries it.
type ModuleSpec struct {
	Name     string `json:"name"`     // a token of subjects: 1 to 63 of a-z, 0-9 and -
	Shard    int    `json:"shard"`    // with S shards it is on shard Shard mod S
	Seed     uint64 `json:"seed"`     // of its initial values and dropout
	In       []int  `json:"in"`       // shape of one sample of its input
	Module   string `json:"module"`   // configuration, JSON, as package nn builds from it
	Samples  int    `json:"samples"`  // most samples in one request
	Contexts int    `json:"contexts"` // most contexts that one trainer may hold
}

// TensorName names a parameter of the module among all tensors of the job: no parameter of the job has such a name.
func (m *ModuleSpec) TensorName(parameter string) string { return m.Name + moduleSeparator + parameter }

// ModuleTensor returns the module and the parameter for a name that TensorName returned; ok is false for any other.
func (j *Job) ModuleTensor(name string) (module, parameter string, ok bool) {
	module, parameter, ok = strings.Cut(name, moduleSeparator)
	return module, parameter, ok && slices.ContainsFunc(j.Modules, func(m ModuleSpec) bool { return m.Name == module })
}

// StaysReadable reports whether a job in one process can still return its last version after a value that is not finite
// has ended its training. Hosted modules step by themselves before their batch is sent, and then have a later version
// than rows and parameters.
func (j *Job) StaysReadable() bool { return len(j.Modules) == 0 }

// moduleSeparator is in no name of a module. A parameter or table may have it, but not after the name of a module.
const moduleSeparator = ":"

// InElements returns the number of values of one sample of the input.
func (m *ModuleSpec) InElements() int { return Parameter{Shape: m.In}.Elements() }

// ShardOfModule returns the shard that hosts the i-th module of the manifest.
func (p *Placement) ShardOfModule(i int) int { return p.job.Modules[i].Shard % max(1, p.Shards) }

// TensorChunks returns the number of frames, at least one, of a tensor with a number of values.
func (p *Placement) TensorChunks(elements int) int {
	return max(1, (elements+p.chunkElements-1)/p.chunkElements)
}

// TensorRange returns the elements [offset, offset+count) of a tensor that one of its frames has.
func (p *Placement) TensorRange(elements, chunk int) (offset, count int) {
	offset = chunk * p.chunkElements
	return offset, min(p.chunkElements, elements-offset)
}

// IsModuleRequest reports whether frames of the kind are requests to a hosted module.
func (k Kind) IsModuleRequest() bool {
	return k == KindForward || k == KindBackward || k == KindStep || k == KindWeights
}

// checkModule checks a request to a module, or its answer: the module exists on that shard, and chunk and lengths fit
// each other. Only the module knows the length of the whole tensor.
func (p *Placement) checkModule(v *View, owner int) *FrameError {
	h := &v.head
	switch {
	case uint64(h.Bucket) >= uint64(len(p.job.Modules)):
		return Refuse(ReasonUnknownModule, "module %d: the job has %d", h.Bucket, len(p.job.Modules))
	case p.ShardOfModule(int(h.Bucket)) != owner:
		return Refuse(ReasonUnknownModule, "module %q is on %s, not on %s", p.job.Modules[h.Bucket].Name,
			ShardMember(p.ShardOfModule(int(h.Bucket))), ShardMember(owner))
	case h.Sequence == 0:
		return Refuse(ReasonMalformed, "%v frame without a request's number", h.Kind)
	}
	if h.Kind == KindWeights || h.Kind == KindStep {
		return nil
	}
	have, offset := uint64(v.values.bytes()/4), uint64(h.Chunk)*uint64(p.chunkElements)
	switch {
	case h.Offset != offset:
		return Refuse(ReasonWrongShape, "chunk %d of a tensor at element %d: want %d", h.Chunk, h.Offset, offset)
	case h.Chunk+1 < h.Chunks && have != uint64(p.chunkElements), have > uint64(p.chunkElements):
		return Refuse(ReasonWrongShape, "chunk %d of %d of a tensor with %d values: want %d, or less in the last", h.Chunk,
			h.Chunks, have, p.chunkElements)
	case offset+have > ModuleTensorElementsMax:
		return Refuse(ReasonOversized, "a tensor of %d values or more: want at most %d", offset+have, ModuleTensorElementsMax)
	}
	if h.Kind != KindForward {
		return nil
	}
	spec := &p.job.Modules[h.Bucket]
	if n := h.Weight; n < 1 || n > float64(spec.Samples) || n != math.Trunc(n) {
		return Refuse(ReasonWrongWeight, "%v samples for module %q: want 1 to %d", n, spec.Name, spec.Samples)
	}
	if want := p.TensorChunks(int(h.Weight) * spec.InElements()); int(h.Chunks) != want {
		return Refuse(ReasonWrongChunk, "%d chunks of %v samples for module %q: want %d", h.Chunks, h.Weight, spec.Name, want)
	}
	if _, want := p.TensorRange(int(h.Weight)*spec.InElements(), int(h.Chunk)); have != uint64(want) {
		return Refuse(ReasonWrongShape, "chunk %d of %v samples for module %q with %d values: want %d", h.Chunk, h.Weight,
			spec.Name, have, want)
	}
	return nil
}

// checkContexts checks that a frame's keys are as many ascending contexts as its kind requires.
func (v *View) checkContexts(r *rule) *FrameError {
	keys := v.Keys()
	if n := len(keys); n < r.contexts.least || n > r.contexts.most {
		return Refuse(ReasonWrongShape, "%d contexts in a %v frame: want %s", n, v.head.Kind, r.contexts)
	}
	for i, k := range keys {
		if k == 0 || i > 0 && k <= keys[i-1] {
			return Refuse(ReasonUnsortedKeys, "context %d at position %d of a %v frame: want contexts from 1, ascending", k, i,
				v.head.Kind)
		}
	}
	return nil
}

// contexts is the number of contexts in a kind's frames.
type contexts struct{ least, most int }

func (c contexts) String() string {
	switch {
	case c.most == 0:
		return "-"
	case c.least == c.most:
		return fmt.Sprint(c.least)
	}
	return fmt.Sprintf("%d to %d", c.least, c.most)
}

// modules checks the manifest's modules.
func (c *jobCheck) modules(j *Job) {
	if len(j.Modules) > ModulesMax {
		c.add("modules", len(j.Modules), "at most %d", ModulesMax)
		return
	}
	names := map[string]int{}
	for i := range j.Modules {
		m, field := &j.Modules[i], fmt.Sprintf("modules[%d]", i)
		if !nameForm.MatchString(m.Name) {
			c.add(field+".name", m.Name, "1 to 63 of a-z, 0-9 and -")
		} else if first, taken := names[m.Name]; taken {
			c.add(field+".name", m.Name, "a name of its own: modules[%d].name has it", first)
		} else {
			names[m.Name] = i
		}
		for _, name := range sortedKeys(c.names) {
			if strings.HasPrefix(name, m.TensorName("")) {
				c.add(c.names[name], name, "a name that does not begin with %q, as those of parameters of %s do",
					m.TensorName(""), field)
			}
		}
		if m.Shard < 0 {
			c.add(field+".shard", m.Shard, "0 or more")
		}
		samplesFit := c.between(field+".samples", m.Samples, 1, moduleSamplesMax)
		if n := len(m.In); n < 1 || n > shapeMax {
			c.add(field+".in", m.In, "1 to %d dimensions", shapeMax)
		} else if n, ok := elements(m.In); !ok || n > ModuleTensorElementsMax {
			c.add(field+".in", m.In, "dimensions of at least 1 and at most %d values", ModuleTensorElementsMax)
		} else if samplesFit && n*uint64(m.Samples) > ModuleTensorElementsMax {
			c.add(field+".samples", m.Samples, "at most %d of %d values each", ModuleTensorElementsMax/n, n)
		}
		if n := len(m.Module); n < 1 || n > ModuleConfigBytes {
			c.add(field+".module", n, "a configuration of 1 to %d bytes", ModuleConfigBytes)
		}
		c.between(field+".contexts", m.Contexts, 1, moduleContextsMax)
	}
}
