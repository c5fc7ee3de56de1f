package module

import (
	"fmt"
	"slices"
	"sync"

	"gradbus/cuda"
	"gradbus/nn"
	"gradbus/schema"
)

// sizesBytesMax bounds the configurations in a Sizes: those of the two largest manifests.
const sizesBytesMax = 2 << 20

// Sizes caches the sizes of modules by configuration: to build one of 1,000 layers takes 10 ms, and each step of a
// job's registration needs its size. It is emptied when it has reached sizesBytesMax. The zero value is ready, nil
// caches nothing; it is safe for concurrent use.
type Sizes struct {
	mu    sync.Mutex // a leaf
	all   map[sizeKey]size
	bytes int
	// builds is the number of configurations that were built.
	builds int
}

// sizeKey identifies everything that the size of a module depends on.
type sizeKey struct {
	config string
	in     string // shape of a sample
}

// size is the memory of a module.
type size struct {
	values int     // of its parameters, each aligned
	out    []int   // shape of a sample of its output
	net    float64 // bytes of a net for one sample
	err    error   // why it cannot be built; all else is zero then
}

// of returns the size of a module.
func (s *Sizes) of(spec *schema.ModuleSpec) size {
	if s == nil {
		return measure(spec)
	}
	key := sizeKey{spec.Module, fmt.Sprint(spec.In)}
	s.mu.Lock()
	is, known := s.all[key]
	s.mu.Unlock()
	if known {
		return is
	}
	is = measure(spec)
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes := len(key.config) + len(key.in); s.all == nil || s.bytes+bytes > sizesBytesMax {
		s.all, s.bytes = map[sizeKey]size{}, 0
	}
	s.all[key] = is
	s.bytes += len(key.config) + len(key.in)
	s.builds++
	return is
}

// measure builds a module and a net of it, and returns their sizes.
func measure(spec *schema.ModuleSpec) size {
	module, is := build(spec)
	if is.err != nil {
		return is
	}
	for _, p := range module.Parameters() {
		is.values += aligned(p.Elements())
	}
	is.net = netBytes(module, spec.In)
	return is
}

// build builds a module and returns its size without values and net.
func build(spec *schema.ModuleSpec) (module nn.Module, is size) {
	if module, is.err = nn.Build([]byte(spec.Module)); is.err != nil {
		return nil, is
	}
	if is.out, is.err = module.OutShape(spec.In); is.err != nil {
		is.err = fmt.Errorf("samples of shape %v: %w", spec.In, is.err)
	}
	return module, is
}

// netBytes returns the memory of a net for one sample.
func netBytes(module nn.Module, in []int) float64 {
	backend, err := cuda.Open(cuda.Options{Name: "go"}) // always there; it only has to be one
	if err != nil {
		return bytesLimit
	}
	defer func() { _ = backend.Close() }()
	net, err := nn.NewNet(module, slices.Clone(in), nn.Env{Backend: backend})
	if err != nil {
		return bytesLimit
	}
	return float64(net.Bytes(1))
}

// outElements returns the number of values in a sample of the output; it fails if all samples have too many.
func (is *size) outElements(spec *schema.ModuleSpec) (int, error) {
	if is.err != nil {
		return 0, is.err
	}
	out := 1
	for _, n := range is.out {
		if out *= n; n < 1 || out*spec.Samples > schema.ModuleTensorElementsMax {
			return 0, fmt.Errorf("%d samples give outputs of shape %v: want at most %d values in all", spec.Samples, is.out,
				schema.ModuleTensorElementsMax)
		}
	}
	return out, nil
}

// Check refuses modules that cannot be built or cannot take the samples that the manifest says.
func (s *Sizes) Check(job *schema.Job) *schema.Refused {
	for i := range job.Modules {
		spec := &job.Modules[i]
		is := s.of(spec)
		if _, err := is.outElements(spec); err != nil {
			return &schema.Refused{Reason: "invalid_job", Field: fmt.Sprintf("modules[%d].module", i),
				Want: spec.Module[:min(len(spec.Module), 200)],
				Text: schema.Clip(fmt.Sprintf("module %q: %v", spec.Name, err))}
		}
	}
	return nil
}
