package module

import (
	"context"
	"fmt"
	"sync"

	"gradbus/cuda"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// hosted is one module with its parameters, version by version, and the contexts that trainers have open.
//
// A context is one pass: it pins the version that it was computed on, and holds the net with the activations, then the
// gradients. Versions are never written; a step makes the next one in memory without readers.
type hosted struct {
	set           *Set
	spec          *schema.ModuleSpec
	place         *schema.Placement
	chunkElements int
	module        nn.Module
	parameters    []nn.Parameter
	out           int // values of a sample of the output
	elements      int // of all parameters
	env           nn.Env
	backend       cuda.Backend
	slots         []clientSlot // by trainer

	stepLock sync.Mutex   // held by who steps; guards state and next
	state    *state.Dense // of one chunk, all parameters as they lie in tensors
	next     *tensors     // where the step under way puts its outcome

	restoring *state.DenseRestore // before Open: what is put in place; nil for nothing

	mu       sync.Mutex // guards what follows; a leaf
	newest   *version
	idle     []*tensors // unused parameters and gradients
	nets     []*nn.Net  // unused
	contexts map[uint64]*pass
	last     uint64         // number of the newest context
	held     []int          // contexts, by trainer
	why      []string       // by trainer: why its contexts were ended last; empty where they never were
	taken    *captured      // not written yet; nil: none
	want     schema.Version // of the job, that the module is to be taken at; 0: none
	first    schema.Batch   // before the first pass of this one, or of a later one
	missed   schema.Version // this one, and those before it, will not be taken any more
	reached  schema.Batch   // the furthest of which a pass in training was asked for
}

// pass is the state of a trainer's pass on the shard.
type pass struct {
	id          uint64
	contributor int
	version     *version      // pinned until the backward pass is done
	net         *nn.Net       // with the activations; nil after the backward pass, and where only a version is pinned
	payload     shard.Payload // that the input lies in
	input       []float32
	samples     int
	sum         *tensors       // gradients; nil before the backward pass
	number      schema.Version // of version
	busy        bool           // a request works with it
	over        bool           // it was ended while busy
}

// answer is the result of a request. Its values are valid until finish.
type answer struct {
	version schema.Version
	context uint64 // that it names; 0 for none
	opened  bool   // the request has opened it
	values  []float32
	chunk   schema.Chunk // of a longer tensor, of so many chunks; of is 0 where the values are a whole one
	of      schema.Chunk
	free    func() // gives back what the values lie in; may be nil
}

func (a *answer) finish() {
	if a != nil && a.free != nil {
		a.free()
	}
}

// newHosted builds a module and draws its version 0.
func newHosted(ctx context.Context, m *Set, i int) (*hosted, error) {
	c := m.config
	d := &hosted{
		set: m, spec: &c.Job.Modules[i], place: c.Placement, backend: c.Backend,
		chunkElements: c.Job.ChunkBytes / valueBytes, contexts: map[uint64]*pass{},
		slots: make([]clientSlot, len(c.Contributors)), held: make([]int, len(c.Contributors)),
		why: make([]string, len(c.Contributors)),
	}
	var err error
	if d.module, d.out, err = buildModule(d.spec); err != nil {
		return nil, err
	}
	if d.env, err = m.Dense.env(c.Backend, m.Log); err != nil {
		return nil, err
	}
	d.parameters = d.module.Parameters()
	for _, p := range d.parameters {
		d.elements += p.Elements()
	}
	d.newest = &version{tensors: newTensors(d.parameters), readers: 1}
	return d, d.makeState(ctx, &c.Job.Optimizer)
}

// makeState draws version 0 as nn.Initial does; it cannot be interrupted.
func (d *hosted) makeState(ctx context.Context, optimizer *schema.Optimizer) (err error) {
	all := state.Chunk{Elements: len(d.newest.flat), Optimizer: optimizer}
	at := 0
	for _, p := range d.parameters {
		n := p.Elements()
		all.Pieces = append(all.Pieces, state.Piece{Name: p.Name, Init: schema.Init{Kind: p.Kind, Scale: p.Scale},
			Seed: d.spec.Seed, Offset: at, Elements: n})
		at += aligned(n)
	}
	if d.state, err = state.NewDense(state.DenseConfig{Backend: d.backend, Values: d.valuesOf, Chunks: []state.Chunk{all},
		InPlace:   true,
		NonFinite: cuda.Refuse}); err != nil {
		return err
	}
	if err = d.state.Draw(ctx); err != nil {
		d.state.Close()
		return fmt.Errorf("initial values: %w", err)
	}
	return nil
}

// valuesOf returns the values of a version: the newest, or the one that a step makes. The step lock is held.
func (d *hosted) valuesOf(_ int, v schema.Version) []float32 {
	if v == d.newest.number {
		return d.newest.flat
	}
	return d.next.flat
}

// answer processes a request. It returns nil, nil if the job ends first. It releases the request's tensor unless a
// context keeps it.
func (d *hosted) answer(contributor int, r *request) (a *answer, refused *refusal) {
	defer r.drop()
	if i := d.backend.FirstNonFinite(cuda.Float32s(r.tensor)); i >= 0 {
		value, help := round.NonFinite(d.backend, cuda.Float32s(r.tensor), i)
		return nil, schema.Refuse(schema.ReasonNonFinite, "value %d of request %d to module %q is %v%s", i, r.head.Sequence,
			d.spec.Name, value, help)
	}
	var err error
	if !d.set.compute(d, func() {
		switch r.head.Kind {
		case schema.KindForward:
			a, refused, err = d.forward(contributor, r)
		case schema.KindBackward:
			a, refused, err = d.backward(contributor, r)
		case schema.KindStep:
			a, refused, err = d.stepContexts(contributor, r)
		case schema.KindWeights:
			a, refused = d.weights(contributor, r)
		}
	}) {
		return nil, nil
	}
	if err == nil {
		return a, refused
	}
	if refused = refusedBy(err); refused == nil {
		d.set.Fail(fmt.Errorf("%v request %d of %s to module %q: %w", r.head.Kind, r.head.Sequence,
			d.set.config.Contributors[contributor].Member, d.spec.Name, err))
	}
	return nil, refused
}

// forward runs a pass. In training it opens a context, which keeps net, version and input.
func (d *hosted) forward(contributor int, r *request) (*answer, *refusal, error) {
	h := &r.head
	var c *pass
	if h.Flags&schema.FlagEvaluate == 0 {
		d.begin(h.Batch)
		var refused *refusal
		if c, refused = d.open(contributor, false); refused != nil {
			return nil, refused, nil
		}
	}
	net, err := d.net()
	if err != nil {
		d.end(c)
		return nil, nil, err
	}
	v := d.pin()
	mode := nn.Mode{Train: c != nil,
		Random: nn.Random{Seed: d.spec.Seed, Batch: uint64(h.Batch), Lane: uint64(h.Node.First)}}
	y, err := net.Forward(v.parts, r.tensor, mode)
	if err != nil {
		d.unpin(v)
		d.giveNet(net)
		d.end(c)
		return nil, nil, err
	}
	a := &answer{version: v.number, values: y}
	if c == nil {
		d.unpin(v)
		a.free = func() { d.giveNet(net) }
		return a, nil, nil
	}
	c.version, c.number, c.net, c.samples = v, v.number, net, int(h.Weight)
	c.payload, c.input, r.payload, r.tensor = r.payload, r.tensor, nil, nil
	a.context, a.opened, a.free = c.id, true, func() { d.free(c) } // until then the net stays with this pass
	return a, nil, nil
}

// backward runs the backward pass of a context, and steps if the request says so.
func (d *hosted) backward(contributor int, r *request) (*answer, *refusal, error) {
	cs, refused := d.use(contributor, r.contexts)
	if refused != nil {
		return nil, refused, nil
	}
	c := cs[0]
	switch want := c.samples * d.out; {
	case c.net == nil:
		refused = schema.Refuse(schema.ReasonUnknownContext, "context %d of module %q has no pass to go back through", c.id,
			d.spec.Name)
	case len(r.tensor) != want:
		refused = schema.Refuse(schema.ReasonWrongShape,
			"a gradient of %d values for context %d of module %q: want %d, %d for each of %d samples",
			len(r.tensor), c.id, d.spec.Name, want, d.out, c.samples)
	case r.head.Flags&schema.FlagStep != 0 && !round.IsWeight(r.head.Weight):
		refused = schema.Refuse(schema.ReasonWrongWeight, "weight %v of a step: want a number of samples", r.head.Weight)
	}
	if refused != nil {
		d.free(c)
		return nil, refused, nil
	}
	net, sum := c.net, d.room()
	net.GradX = r.head.Flags&schema.FlagInput != 0
	gradX, err := net.Backward(c.version.parts, r.tensor, func(i int) []float32 { return sum.parts[i] }, nil)
	d.passDone(c, sum)
	a := &answer{version: c.number, context: c.id, values: gradX, free: func() { d.giveNet(net) }}
	if err == nil && r.head.Flags&schema.FlagStep != 0 {
		a.context = 0
		a.version, err = d.step(sum, r.head.Weight)
	}
	if err != nil || a.context == 0 {
		d.end(c)
	} else {
		d.free(c)
	}
	if err != nil {
		a.finish()
		return nil, nil, err
	}
	return a, nil, nil
}

// stepContexts adds up the gradients of contexts and steps, or, with weight 0, gives them back.
func (d *hosted) stepContexts(contributor int, r *request) (*answer, *refusal, error) {
	cs, refused := d.use(contributor, r.contexts)
	if refused != nil {
		return nil, refused, nil
	}
	weight := r.head.Weight
	for _, c := range cs {
		if weight != 0 && c.sum == nil {
			refused = schema.Refuse(schema.ReasonUnknownContext,
				"context %d of module %q has no gradients: no backward pass was done in it", c.id, d.spec.Name)
		}
	}
	if weight != 0 && !round.IsWeight(weight) {
		refused = schema.Refuse(schema.ReasonWrongWeight, "weight %v of a step: want a number of samples", weight)
	}
	if refused != nil {
		d.free(cs...)
		return nil, refused, nil
	}
	defer d.end(cs...)
	a := &answer{}
	if weight == 0 {
		a.version = d.newestNumber()
		return a, nil, nil
	}
	for _, c := range cs[1:] {
		for i, v := range c.sum.flat {
			cs[0].sum.flat[i] += v
		}
	}
	var err error
	a.version, err = d.step(cs[0].sum, weight)
	return a, nil, err
}

// weights gives one chunk of the parameters of a version, which it pins by a context of its own, or of a context's
// gradients.
func (d *hosted) weights(contributor int, r *request) (*answer, *refusal) {
	of := d.place.TensorChunks(d.elements)
	gradients := r.head.Flags&schema.FlagGradients != 0
	switch {
	case int64(r.head.Chunk) >= int64(of):
		return nil, schema.Refuse(schema.ReasonWrongChunk, "chunk %d of the parameters of module %q: they have %d",
			r.head.Chunk, d.spec.Name, of)
	case gradients && r.contexts == nil:
		return nil, schema.Refuse(schema.ReasonUnknownContext, "gradients of no context: want the one that they are in")
	}
	a := &answer{chunk: r.head.Chunk, of: schema.Chunk(of)}
	var c *pass
	if r.contexts == nil {
		var refused *refusal
		if c, refused = d.open(contributor, true); refused != nil {
			return nil, refused
		}
		c.version, a.opened = d.pin(), true
		c.number = c.version.number
	} else {
		cs, refused := d.use(contributor, r.contexts)
		if refused != nil {
			return nil, refused
		}
		c = cs[0]
	}
	defer d.free(c)
	from := c.sum
	if !gradients && c.version != nil {
		from = c.version.tensors
	}
	if from == nil || !gradients && c.version == nil {
		return nil, schema.Refuse(schema.ReasonUnknownContext,
			"context %d of module %q has no gradients, or pins no version any more", c.id, d.spec.Name)
	}
	offset, count := d.place.TensorRange(d.elements, int(r.head.Chunk))
	a.version, a.context, a.values = c.number, c.id, make([]float32, count)
	from.read(offset, a.values)
	return a, nil
}

func (d *hosted) newestNumber() schema.Version {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.newest.number
}

// close admits no further request. When it returns, every goroutine that processes requests is counted as running.
func (d *hosted) close() {
	for i := range d.slots {
		s := &d.slots[i]
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
}

// release releases the memory of requests and contexts. No request is being processed: a busy context is one whose
// request has panicked.
func (d *hosted) release() {
	for i := range d.slots {
		s := &d.slots[i]
		s.mu.Lock()
		s.request.drop()
		s.request, s.sealed, s.frames = nil, nil, nil
		s.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.contexts {
		d.endLocked(c)
	}
	d.dropTaken()
	d.state.Close()
}
