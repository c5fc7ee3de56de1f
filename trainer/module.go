package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
)

// ErrActivation: a module's activation is gone: it was stepped or released, or the shard has ended it because it had
// not heard of this trainer for too long. The session goes on.
var ErrActivation = errors.New("context is gone")

// Module is a module that a shard of the job hosts, as a trainer sees it: parameters, activations, gradients and the
// optimizer are on the shard, and only inputs, outputs and gradients of outputs travel. Any number of trainers use it
// at once; each pass sees one version of the parameters, whoever steps meanwhile.
//
// Its methods are the session's: they are called from one goroutine at a time. Slices that they give are the Module's
// own and valid until its next call. All of them fail with Refused, which has the shard's reason, or with
// the session's error, or the cause of ctx; a refusal ends nothing but the call.
type Module struct{ *hostedModule }

// hostedModule is a module in one run of the job.
type hostedModule struct {
	session    *membership
	spec       *schema.ModuleSpec
	index      int
	link       *shardLink
	parameters []nn.Parameter
	out        int // values of a sample of the output

	number schema.Sequence // of the last request
	frames []*schema.Frame // that requests are written into
	sealed [][]byte
	answer moduleAnswer
}

// Tensor is a parameter of a module, or its gradient: row-major.
type Tensor struct {
	Name   string
	Shape  []int
	Values []float32
}

// Pass says which samples a forward pass is of: what is dropped follows from it, so a pass can be repeated. Versions of
// a job that has modules alone are numbered by Batch, so that goes on from Session.Version.
type Pass struct {
	Batch schema.Batch // by the trainer's own count
	Lane  lane.Lane    // one that it hosts
}

// Activation is a forward pass in training that the shard remembers: its activations, then its gradients, and the
// version of the parameters that it saw. It ends with a step or Release, with the session, or when the shard has not
// heard of the trainer for the job's deadline.
type Activation struct {
	module  *hostedModule
	id      uint64
	version schema.Version
	samples int
}

// Version is the version of the parameters that the pass has seen.
func (a *Activation) Version() schema.Version { return a.version }

// findModules makes what the session knows of the job's modules.
func (s *membership) findModules() error {
	for i := range s.job.Modules {
		spec := &s.job.Modules[i]
		module, err := nn.Build([]byte(spec.Module))
		if err != nil {
			return fmt.Errorf("module %q: %w", spec.Name, err)
		}
		shape, err := module.OutShape(spec.In)
		if err != nil {
			return fmt.Errorf("module %q: samples of shape %v: %w", spec.Name, spec.In, err)
		}
		m := &hostedModule{session: s, spec: spec, index: i, link: s.links[s.place.ShardOfModule(i)],
			parameters: module.Parameters(),
			out:        schema.Parameter{Shape: shape}.Elements()}
		s.modules = append(s.modules, m)
	}
	return nil
}

// module gives the module of a name.
func (s *membership) module(name string) (*hostedModule, error) {
	i := slices.IndexFunc(s.modules, func(m *hostedModule) bool { return m.spec.Name == name })
	if i < 0 {
		var names []string
		for _, m := range s.modules {
			names = append(names, m.spec.Name)
		}
		return nil, fmt.Errorf("module %q: job %s has %q", name, s.job.Name, names)
	}
	return s.modules[i], nil
}

// Parameters are the names, shapes and first values of the module's parameters.
func (m *hostedModule) Parameters() []nn.Parameter { return m.parameters }

// Forward runs a pass in training over x [n, In], n samples, and gives y [n, Out]. The activation remembers the pass.
func (m *hostedModule) Forward(ctx context.Context, x []float32, at Pass) (*Activation, []float32, error) {
	m.session.begins(at.Batch)
	y, err := m.forward(ctx, x, at, 0)
	if err != nil {
		return nil, nil, err
	}
	a := &m.answer
	if a.context == 0 {
		return nil, nil, fmt.Errorf("forward of module %q: the shard names no context", m.spec.Name)
	}
	return &Activation{module: m, id: a.context, version: a.version, samples: len(x) / m.spec.InElements()}, y, nil
}

// Evaluate runs a pass over x [n, In] in which nothing is dropped and of which nothing is remembered, and gives y [n,
// Out] and the version of the parameters that it saw. n may be any number: requests carry as many samples as the
// manifest allows.
func (m *hostedModule) Evaluate(ctx context.Context, x []float32) (y []float32, err error) {
	in := m.spec.InElements()
	if len(x) == 0 || len(x)%in != 0 {
		return nil, m.badInput(x)
	}
	if len(x) <= m.spec.Samples*in {
		return m.forward(ctx, x, Pass{Lane: m.session.joined.FirstLane}, schema.FlagEvaluate)
	}
	for part := range slices.Chunk(x, m.spec.Samples*in) {
		values, err := m.forward(ctx, part, Pass{Lane: m.session.joined.FirstLane}, schema.FlagEvaluate)
		if err != nil {
			return nil, err
		}
		y = append(y, values...)
	}
	return y, nil
}

func (m *hostedModule) badInput(x []float32) error {
	return fmt.Errorf("forward of module %q: %d values: want those of 1 to %d samples of shape %v", m.spec.Name, len(x),
		m.spec.Samples, m.spec.In)
}

func (m *hostedModule) forward(ctx context.Context, x []float32, at Pass, flags uint32) ([]float32, error) {
	in := m.spec.InElements()
	n := len(x) / in
	if n < 1 || n > m.spec.Samples || len(x)%in != 0 {
		return nil, m.badInput(x)
	}
	head := schema.Head{Kind: schema.KindForward, Batch: at.Batch, Node: lane.Node{First: at.Lane, Count: 1},
		Weight: float64(n), Flags: flags}
	y, err := m.ask(ctx, head, nil, x)
	if err == nil && len(y) != n*m.out {
		err = fmt.Errorf("the shard answers %d values: want %d", len(y), n*m.out)
	}
	if err != nil {
		return nil, fmt.Errorf("forward of module %q: %w", m.spec.Name, err)
	}
	return y, nil
}

// Backward goes back through the activation's pass, once: gradY [n, Out] is the gradient of the loss by y, a sum over
// the samples. The gradients of the parameters stay on the shard, in the activation, until a step.
func (a *Activation) Backward(ctx context.Context, gradY []float32) error {
	_, err := a.backward(ctx, gradY, 0, 0)
	return err
}

// BackwardInput is Backward, and gives the gradient by the input, [n, In].
func (a *Activation) BackwardInput(ctx context.Context, gradY []float32) (gradX []float32, err error) {
	return a.backward(ctx, gradY, schema.FlagInput, 0)
}

// BackwardStep is Backward and a step of this activation alone, in one request: the optimizer moves the newest version
// by the gradients divided by samples. It gives the version that this made, and ends the activation.
func (a *Activation) BackwardStep(ctx context.Context, gradY []float32, samples int) (schema.Version, error) {
	if _, err := a.backward(ctx, gradY, schema.FlagStep, samples); err != nil {
		return 0, err
	}
	a.module.ended(1, samples)
	return a.module.answer.version, nil
}

func (a *Activation) backward(ctx context.Context, gradY []float32, flags uint32, samples int) ([]float32, error) {
	m := a.module
	if want := a.samples * m.out; len(gradY) != want {
		return nil, fmt.Errorf("backward of module %q: a gradient of %d values: want %d, %d for each of %d samples",
			m.spec.Name, len(gradY), want, m.out, a.samples)
	}
	gradX, err := m.ask(ctx, schema.Head{Kind: schema.KindBackward, Weight: float64(samples), Flags: flags},
		[]uint64{a.id}, gradY)
	if want := a.samples * m.spec.InElements(); err == nil && flags&schema.FlagInput != 0 && len(gradX) != want {
		err = fmt.Errorf("the shard answers %d values: want %d", len(gradX), want)
	}
	if err != nil {
		return nil, fmt.Errorf("backward of context %d of module %q: %w", a.id, m.spec.Name, err)
	}
	return gradX, nil
}

// Step adds up the gradients of activations, divides once by samples, and moves the newest version by that. It gives
// the version that this made, and ends the activations.
func (m *hostedModule) Step(ctx context.Context, samples int, activations ...*Activation) (schema.Version, error) {
	if samples < 1 {
		return 0, fmt.Errorf("step of module %q: %d samples: want at least 1", m.spec.Name, samples)
	}
	return m.step(ctx, samples, activations)
}

func (m *hostedModule) step(ctx context.Context, samples int, activations []*Activation) (schema.Version, error) {
	ids := make([]uint64, len(activations))
	for i, c := range activations {
		ids[i] = c.id
	}
	slices.Sort(ids)
	_, err := m.ask(ctx, schema.Head{Kind: schema.KindStep, Weight: float64(samples)}, ids, nil)
	if err != nil {
		return 0, fmt.Errorf("step of module %q: %w", m.spec.Name, err)
	}
	m.ended(len(activations), samples)
	return m.answer.version, nil
}

// Release ends an activation without a step.
func (a *Activation) Release(ctx context.Context) error {
	_, err := a.module.step(ctx, 0, []*Activation{a})
	return err
}

// Gradients gives the gradients that an activation has after its Backward, sums over its samples, in new memory.
func (a *Activation) Gradients(ctx context.Context) ([]Tensor, error) {
	return a.module.read(ctx, a, schema.FlagGradients)
}

// Weights gives the newest parameters, all of one version, in new memory.
func (m *hostedModule) Weights(ctx context.Context) ([]Tensor, schema.Version, error) {
	pin := &Activation{module: m}
	all, err := m.read(ctx, pin, 0)
	if pin.id != 0 {
		if ending := m.unpin(ctx, pin); err == nil {
			err = ending
		}
	}
	return all, pin.version, err
}

// unpinWithin is how long a shard may take to say that a version is pinned no more; the request is repeated meanwhile.
const unpinWithin = 2 * time.Second

// unpin ends the pin of a version, which is no pass. Where ctx has ended the shard is to hear of it all the same: a pin
// that stays takes the place of a pass until the session ends.
func (m *hostedModule) unpin(ctx context.Context, pin *Activation) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), unpinWithin)
	defer stop()
	if _, err := m.ask(ctx, schema.Head{Kind: schema.KindStep}, []uint64{pin.id}, nil); err != nil {
		return fmt.Errorf("release the parameters of version %d of module %q: %w", pin.version, m.spec.Name, err)
	}
	return nil
}

// Digest is the SHA-256 over the module's newest parameters, as schema.WeightsDigest defines it for a job that has them
// as its own.
func (m *hostedModule) Digest(ctx context.Context) ([32]byte, error) {
	all, _, err := m.Weights(ctx)
	if err != nil {
		return [32]byte{}, err
	}
	digest, err := digestOf(all)
	if err != nil {
		return [32]byte{}, fmt.Errorf("digest of module %q: %w", m.spec.Name, err)
	}
	return digest, nil
}

// digestOf is the digest of a job that has these tensors as its parameters.
func digestOf(all []Tensor) ([32]byte, error) {
	job := &schema.Job{}
	for _, t := range all {
		job.Parameters = append(job.Parameters, schema.Parameter{Name: t.Name, Shape: t.Shape})
	}
	d := schema.NewWeightsDigest(job)
	for t, ok := d.Next(); ok; t, ok = d.Next() {
		if err := d.Values(all[t.Index].Values); err != nil {
			return [32]byte{}, err
		}
	}
	return d.Sum()
}

// read asks for all chunks of the parameters of the version that c pins, or of its gradients. Where c has no id yet the
// first answer gives it one.
func (m *hostedModule) read(ctx context.Context, c *Activation, flags uint32) ([]Tensor, error) {
	elements := 0
	for _, p := range m.parameters {
		elements += p.Elements()
	}
	all := make([]float32, elements)
	for chunk := range m.session.place.TensorChunks(elements) {
		var ids []uint64
		if c.id != 0 {
			ids = []uint64{c.id}
		}
		values, err := m.ask(ctx, schema.Head{Kind: schema.KindWeights, Chunk: schema.Chunk(chunk), Flags: flags}, ids, nil)
		offset, count := m.session.place.TensorRange(elements, chunk)
		if err == nil && (len(values) != count || m.answer.context == 0) {
			err = fmt.Errorf("the shard answers %d values: want %d", len(values), count)
		}
		if err != nil {
			return nil, fmt.Errorf("chunk %d of the parameters of module %q: %w", chunk, m.spec.Name, err)
		}
		c.id, c.version = m.answer.context, m.answer.version
		copy(all[offset:], values)
	}
	tensors := make([]Tensor, len(m.parameters))
	for i, p := range m.parameters {
		tensors[i] = Tensor{p.Name, p.Shape, all[:p.Elements():p.Elements()]}
		all = all[p.Elements():]
	}
	return tensors, nil
}

// subject is where requests go.
func (m *hostedModule) subject() fabric.Subject {
	return m.session.subject("", m.link.member).OfModule(m.spec.Name)
}
