package trainer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// Module is a module that a shard of the job hosts, as a trainer sees it. Parameters, activations, gradients and the
// optimizer are on the shard; only inputs, outputs and gradients of outputs are sent. Any number of trainers use it
// concurrently. Each pass sees one version of the parameters, even while others step.
//
// Its methods belong to the session: they must be called from one goroutine at a time. The slices that they return
// belong to the Module and are valid until its next call. Errors: Refused with the shard's reason, which does not end
// the session; the session's error; and the cause of ctx.
type Module struct{ *hostedModule }

// hostedModule is a module in one run of the job.
type hostedModule struct {
	host       *hosting
	spec       *schema.ModuleSpec
	index      int
	link       *shardLink
	parameters []nn.Parameter
	out        int // values per sample of the output

	number schema.Sequence // number of the last request
	frames []*schema.Frame // reused for requests
	sealed [][]byte
	answer moduleAnswer
}

// Tensor is a named tensor, row-major. A float32 tensor has Values. A tensor of another type of safetensors has DType,
// such as "I64", and Data.
type Tensor struct {
	Name   string
	Shape  []int
	Values []float32 // of a float32 tensor; else nil

	DType string // type name of safetensors; "" is F32
	Data  []byte // little-endian bytes, instead of Values
}

// Activation is a forward pass in training that the shard stores, with its activations, its gradients, and the version
// of its parameters. It ends with a step or Release, with the session, or when the shard has not heard from the trainer
// for the job's deadline.
type Activation struct {
	module  *hostedModule
	id      uint64
	version schema.Version
	samples int
}

// Version returns the version of the parameters that the pass used.
func (a *Activation) Version() schema.Version { return a.version }

// hosting is the shared state of the hosted modules in one run.
type hosting struct {
	*connection
	exchange *exchanging
	stats    *statistics
	activity *activity
	passes   passClock
}

// modules are the hosted modules, in the order of the manifest.
type modules struct {
	*hosting
	all []*hostedModule
}

// newModules returns the trainer's state of the job's modules.
func newModules(c *connection, e *exchanging, stats *statistics, a *activity) (*modules, error) {
	h := &hosting{connection: c, exchange: e, stats: stats, activity: a}
	m := &modules{hosting: h}
	for i := range c.job.Modules {
		spec := &c.job.Modules[i]
		module, err := nn.Build([]byte(spec.Module))
		if err != nil {
			return nil, fmt.Errorf("module %q: %w", spec.Name, err)
		}
		shape, err := module.OutShape(spec.In)
		if err != nil {
			return nil, fmt.Errorf("module %q: samples of shape %v: %w", spec.Name, spec.In, err)
		}
		m.all = append(m.all, &hostedModule{host: h, spec: spec, index: i, link: c.links[c.place.ShardOfModule(i)],
			parameters: module.Parameters(), out: schema.Parameter{Shape: shape}.Elements()})
	}
	return m, nil
}

// module returns the module of a name.
func (m *modules) module(name string) (*hostedModule, error) {
	i := slices.IndexFunc(m.all, func(h *hostedModule) bool { return h.spec.Name == name })
	if i < 0 {
		var names []string
		for _, h := range m.all {
			names = append(names, h.spec.Name)
		}
		return nil, fmt.Errorf("module %q: job %s has %q", name, m.job.Name, names)
	}
	return m.all[i], nil
}

// weights reads the parameters of all modules.
func (m *modules) weights(ctx context.Context) (all []Tensor, err error) {
	for _, h := range m.all {
		of, _, err := h.Weights(ctx)
		if err != nil {
			return nil, err
		}
		for _, t := range of {
			t.Name = h.spec.TensorName(t.Name)
			all = append(all, t)
		}
	}
	return all, nil
}

// Parameters returns the names, shapes and initial values of the module's parameters.
func (m *hostedModule) Parameters() []nn.Parameter { return m.parameters }

// Forward runs a pass in training over x [n, In], n samples of a lane that the trainer hosts, and returns the
// activation and y [n, Out]. Dropout depends only on batch and lane, so a pass can be repeated. The trainer counts
// batches from Session.Version on. In a job that has only modules, versions are numbered by these batches.
func (m *hostedModule) Forward(ctx context.Context, b schema.Batch, l lane.Lane, x []float32) (*Activation, []float32,
	error) {
	m.host.begins(b)
	y, err := m.forward(ctx, b, l, x, 0)
	if err != nil {
		return nil, nil, err
	}
	a := &m.answer
	if a.context == 0 {
		return nil, nil, fmt.Errorf("forward of module %q: the shard names no context", m.spec.Name)
	}
	return &Activation{module: m, id: a.context, version: a.version, samples: len(x) / m.spec.InElements()}, y, nil
}

// Evaluate runs a pass without dropout over x [n, In] and returns y [n, Out]. The shard stores nothing of it. n is
// unlimited: each request has as many samples as the manifest allows.
func (m *hostedModule) Evaluate(ctx context.Context, x []float32) (y []float32, err error) {
	in := m.spec.InElements()
	if len(x) == 0 || len(x)%in != 0 {
		return nil, m.badInput(x)
	}
	if len(x) <= m.spec.Samples*in {
		return m.forward(ctx, 0, m.host.joined.FirstLane, x, schema.FlagEvaluate)
	}
	for part := range slices.Chunk(x, m.spec.Samples*in) {
		values, err := m.forward(ctx, 0, m.host.joined.FirstLane, part, schema.FlagEvaluate)
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

func (m *hostedModule) forward(ctx context.Context, b schema.Batch, l lane.Lane, x []float32, flags uint32) ([]float32,
	error) {
	in := m.spec.InElements()
	n := len(x) / in
	if n < 1 || n > m.spec.Samples || len(x)%in != 0 {
		return nil, m.badInput(x)
	}
	head := schema.Head{Kind: schema.KindForward, Batch: b, Node: lane.Node{First: l, Count: 1},
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

// Backward runs the backward pass of the activation, once. gradY [n, Out] is the gradient of the loss, a sum over the
// samples. The parameters' gradients stay on the shard until a step.
func (a *Activation) Backward(ctx context.Context, gradY []float32) error {
	_, err := a.backward(ctx, gradY, 0, 0)
	return err
}

// BackwardInput is Backward, and returns the gradient of the input, [n, In].
func (a *Activation) BackwardInput(ctx context.Context, gradY []float32) (gradX []float32, err error) {
	return a.backward(ctx, gradY, schema.FlagInput, 0)
}

// BackwardStep is Backward and a Step of this activation alone, in one request. It returns the new version of the
// parameters and ends the activation.
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

// Step sums the gradients of activations, divides the sum once by samples, and applies it to the newest version with
// the optimizer. It returns the new version and ends the activations.
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

// Gradients returns the parameters' gradients of an activation after its Backward, sums over its samples, in new
// memory.
func (a *Activation) Gradients(ctx context.Context) ([]Tensor, error) {
	return a.module.read(ctx, a, schema.FlagGradients)
}

// Weights returns the newest parameters, all of one version, in new memory, and the version.
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

// unpinWithin bounds the time for a shard to confirm that a version is no longer pinned. The request is repeated until
// then.
const unpinWithin = 2 * time.Second

// unpin releases a pinned version. It continues after ctx has ended, since a pin takes the place of a pass until the
// session ends.
func (m *hostedModule) unpin(ctx context.Context, pin *Activation) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), unpinWithin)
	defer stop()
	if _, err := m.ask(ctx, schema.Head{Kind: schema.KindStep}, []uint64{pin.id}, nil); err != nil {
		return fmt.Errorf("release the parameters of version %d of module %q: %w", pin.version, m.spec.Name, err)
	}
	return nil
}

// Digest returns the SHA-256 of the module's newest parameters, as schema.WeightsDigest defines it for a job that has
// them as parameters.
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

// digestOf returns the digest of a job that has these tensors as its parameters.
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

// read reads all chunks of the parameters of the version that c pins, or of c's gradients. If c has no id, the first
// answer sets it.
func (m *hostedModule) read(ctx context.Context, c *Activation, flags uint32) ([]Tensor, error) {
	elements := 0
	for _, p := range m.parameters {
		elements += p.Elements()
	}
	all := make([]float32, elements)
	for chunk := range m.host.place.TensorChunks(elements) {
		var ids []uint64
		if c.id != 0 {
			ids = []uint64{c.id}
		}
		values, err := m.ask(ctx, schema.Head{Kind: schema.KindWeights, Chunk: schema.Chunk(chunk), Flags: flags}, ids, nil)
		offset, count := m.host.place.TensorRange(elements, chunk)
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
		tensors[i] = Tensor{Name: p.Name, Shape: p.Shape, Values: all[:p.Elements():p.Elements()]}
		all = all[p.Elements():]
	}
	return tensors, nil
}

// subject returns the subject of requests.
func (m *hostedModule) subject() fabric.Subject {
	return m.host.subject("", m.link.member).OfModule(m.spec.Name)
}

// moduleAnswer collects the answer to a module's request. Receivers write it while the request is open, afterwards the
// caller reads it.
type moduleAnswer struct {
	refused error       // guarded by the lock of the exchange
	weights atomic.Bool // one chunk is the whole answer

	mu      sync.Mutex // guards the fields below while the request is open
	begun   bool       // a chunk has arrived
	version schema.Version
	context uint64
	values  []float32
}

// ask sends a request under the next number, repeats it while no answer arrives, and returns the values of the answer.
// A new request replaces one that was given up.
func (m *hostedModule) ask(ctx context.Context, head schema.Head, contexts []uint64, tensor []float32) ([]float32, error) {
	if err := m.host.Err(); err != nil {
		return nil, err
	}
	ctx, stop := m.host.running(ctx)
	defer stop()
	who := m.asker()
	m.host.exchange.close(who)
	m.number = m.host.exchange.number(1)
	if err := m.write(head, contexts, tensor); err != nil {
		return nil, err
	}
	a := &m.answer
	a.weights.Store(head.Kind == schema.KindWeights)
	a.refused, a.begun, a.context, a.version, a.values = nil, false, 0, 0, a.values[:0]
	m.host.exchange.ask(who, m, m.number, []int{m.host.place.ShardOfModule(m.index)}, m.host.since(), true)
	answered := m.asking(head.Kind, head.Flags&schema.FlagEvaluate == 0 && head.Kind != schema.KindWeights)
	whole := false
	defer func() { answered(whole) }()
	if err := m.send(nil, 0); err != nil {
		return nil, err
	}
	if err := m.host.exchange.awaitAnswers(ctx, who); err != nil {
		m.host.exchange.close(who)
		return nil, err
	}
	if a.refused != nil {
		return nil, a.refused
	}
	whole = true
	return a.values, nil
}

// write writes a request into frames.
func (m *hostedModule) write(head schema.Head, contexts []uint64, tensor []float32) error {
	chunks := m.host.place.TensorChunks(len(tensor))
	for len(m.frames) < chunks {
		m.frames = append(m.frames, new(schema.Frame))
	}
	h := m.host.head(head.Batch)
	h.Bucket, h.Sequence, h.Node, h.Weight, h.Flags, h.Chunk = schema.Bucket(m.index), m.number, head.Node, head.Weight,
		head.Flags, head.Chunk
	if head.Kind != schema.KindWeights {
		h.Chunks = schema.Chunk(chunks)
	}
	m.sealed = m.sealed[:0]
	for c := range chunks {
		f := m.frames[c]
		offset, count := m.host.place.TensorRange(len(tensor), c)
		if err := f.Reset(schema.Layout{Kind: head.Kind, Values: 4 * count, Keys: len(contexts)}); err != nil {
			return fmt.Errorf("request to module %q: %w", m.spec.Name, err)
		}
		if head.Kind != schema.KindWeights {
			h.Chunk, h.Offset = schema.Chunk(c), uint64(offset)
		}
		f.SetHead(h)
		copy(f.Keys(), contexts)
		copy(f.Float32s(), tensor[offset:offset+count])
		m.sealed = append(m.sealed, f.Seal())
	}
	return nil
}

// asker returns the module's id in the exchange.
func (m *hostedModule) asker() exchange.Asker { return askers + exchange.Asker(m.index) }

// send sends the request.
func (m *hostedModule) send(*connection, int) error {
	for _, frame := range m.sealed {
		if err := m.link.publish(m.subject(), frame); err != nil {
			return err
		}
	}
	return nil
}

// takeModule handles a shard's answer or refusal. Late answers, to no open request, are ignored.
func (m *modules) takeModule(owner int, subject *fabric.Subject, v *schema.View) error {
	h := v.Head()
	if int64(h.Bucket) >= int64(len(m.all)) || m.all[h.Bucket].spec.Name != subject.Name ||
		m.owners[string(m.all[h.Bucket].link.member)] != owner {
		return nil // of no module of this job
	}
	asked := m.all[h.Bucket]
	switch h.Kind {
	case schema.KindRefusal:
		r, err := schema.DecodeRefusal(v)
		if err != nil {
			return fmt.Errorf("refusal of module %q: %w", asked.spec.Name, err)
		}
		asked.refuse(h.Sequence, r)
		return nil
	case schema.KindOutput:
		if err := m.place.CheckFrame(v, owner); err != nil {
			return fmt.Errorf("answer of module %q: %w", asked.spec.Name, err)
		}
		part, of := int(h.Chunk), int(h.Chunks)
		if asked.answer.weights.Load() {
			part, of = 0, 1
		}
		_, err := m.exchange.take(asked.asker(), owner, v, part, of)
		return err
	}
	return nil
}

func (m *hostedModule) refuse(number schema.Sequence, r schema.Refusal) {
	e := m.host.exchange
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.x.Refuse(m.asker(), number) {
		return
	}
	m.answer.refused = refusedFrame("module "+m.spec.Name, r.Reason, r.Text)
	if r.Reason == schema.ReasonUnknownContext.String() {
		m.answer.refused = fmt.Errorf("%w: %w", errActivation, m.answer.refused)
	}
	e.wakeWaiter()
}

// take stores one chunk of an answer.
func (m *hostedModule) take(_ int, v *schema.View) (retained bool, err error) {
	h, values, a := v.Head(), v.Float32s(), &m.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.begun {
		a.begun, a.version = true, h.Batch
		if keys := v.Keys(); len(keys) > 0 {
			a.context = keys[0]
		}
	}
	if a.weights.Load() || h.Chunks == 1 {
		a.values = append(a.values[:0], values...)
		return false, nil
	}
	if len(a.values) == 0 {
		a.values = grown(a.values, int(h.Chunks)*m.host.job.ChunkBytes/4)
	}
	copy(a.values[h.Offset:], values)
	if h.Chunk+1 == h.Chunks {
		a.values = a.values[:int(h.Offset)+len(values)]
	}
	return false, nil
}

// hostedLately is the time after its last step for which a session counts as training with hosted modules.
const hostedLately = 5 * time.Second

// passClock measures a program that trains with hosted modules outside of Run. Waiting for outputs is DoingLookup; the
// time until the backward pass is DoingCompute; waiting for the shard after that is DoingResult; the time between a
// step and the next pass is DoingOther. Within Run, the phases of Run count instead.
type passClock struct {
	mu    sync.Mutex // guards the fields below
	open  int        // passes that were not stepped or released
	since time.Time  // time of the last answer
}

// asking records that the trainer waits for an answer. The returned function records that it has arrived, or failed.
func (m *hostedModule) asking(kind schema.Kind, training bool) (answered func(ok bool)) {
	c, began, now := &m.host.passes, m.host.activity.word.Load(), time.Now()
	alone := m.host.planned.Load() == 0
	doing := lookingUp
	if kind != schema.KindForward {
		doing = awaitingResults
	}
	m.host.activity.beginAt(doing, now)
	if alone && training {
		c.mu.Lock()
		if c.open > 0 {
			lap := now.Sub(c.since)
			m.host.stats.count(func(t *counters) { t.computeTime += lap })
		}
		c.mu.Unlock()
	}
	return func(ok bool) {
		if !alone {
			m.host.activity.word.Store(began)
			return
		}
		done := time.Now()
		c.mu.Lock()
		defer c.mu.Unlock()
		if training {
			m.host.stats.count(func(t *counters) {
				if doing == lookingUp {
					t.lookupTime += done.Sub(now)
				} else {
					t.resultTime += done.Sub(now)
				}
			})
			if ok && kind == schema.KindForward {
				c.open++
			}
			c.since = done
		}
		m.host.between(done)
	}
}

// between records the activity between two requests. The caller holds c.mu.
func (h *hosting) between(now time.Time) {
	if h.passes.open > 0 {
		h.activity.beginAt(computing, now)
	} else {
		h.activity.beginAt(elsewhere, now)
	}
}

// begins records that a pass of batch b begins. In a job without rounds, this tells how far the session is: earlier
// batches are done.
func (h *hosting) begins(b schema.Batch) {
	if h.place.Plan.Roundless && h.planned.Load() == 0 {
		h.batch.Store(max(h.batch.Load(), uint64(b)))
	}
}

// ended records that passes were stepped, which completes a batch of samples samples, or released (samples 0).
func (m *hostedModule) ended(passes, samples int) {
	if m.host.planned.Load() != 0 {
		return
	}
	c := &m.host.passes
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = max(0, c.open-passes)
	if samples > 0 {
		m.host.stats.count(func(t *counters) { t.batches, t.samples = t.batches+1, t.samples+uint64(samples) })
	}
	m.host.between(c.since)
}

// training reports whether passes are under way, or were a short time ago.
func (c *passClock) training(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open > 0 || !c.since.IsZero() && now.Sub(c.since) < hostedLately
}

// Step makes Commit step the module of a pass together with the batch. Commit sums the gradients of all passes that
// this trainer's lanes passed to Step, divides once by the samples of these passes, and steps the module; the job's
// parameters take part as usual. Backward must have run. The pass ends with the batch. Passes not given to Step must be
// stepped or released by the caller.
//
//	pass, y, err := head.Forward(ctx, b.Number(), step.Lane, features)
//	lossSum, err := loss.Loss(y, classes, gradY)
//	gradFeatures, err := pass.BackwardInput(ctx, gradY)
//	step.Step(pass)
//	copy(step.Grad("weight"), ...)  // from gradFeatures; then step.Done, step.End, b.Commit
func (s *LaneStep) Step(pass *Activation) { s.batch.passes = append(s.batch.passes, pass) }

// stepModules steps the modules of the batch's passes, in the order of each module's first pass.
func (b *Batch) stepModules(ctx context.Context) error {
	for len(b.passes) > 0 {
		module, samples := b.passes[0].module, 0
		var of, rest []*Activation
		for _, p := range b.passes {
			if p.module != module {
				rest = append(rest, p)
				continue
			}
			of, samples = append(of, p), samples+p.samples
		}
		if _, err := module.Step(ctx, samples, of...); err != nil {
			return fmt.Errorf("the batch's %w", err)
		}
		b.passes = rest
	}
	return nil
}
