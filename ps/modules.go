package ps

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/nn"
	"gradbus/round"
	"gradbus/schema"
)

// modules are what one shard of one job hosts: whole modules, with their parameters, the computation and the optimizer. They
// stand beside the shard's rounds and share nothing with them but connections.
//
// Who receives a request puts its parts together; a goroutine for each trainer and module that has a whole one works it, and as many of them
// compute at once as there are processors. So several trainers run in parallel, each on a net of its own, and only steps of one module follow
// each other. Locks: a seat's mu, then its module's; a module's turn, then its mu. None is held while a net computes but turn.
type modules struct {
	worker  *worker
	config  ShardConfig
	slots   chan struct{}             // computing now
	running sync.WaitGroup            // goroutines that work requests
	ctx     context.Context           // ends with the shard
	cancel  context.CancelFunc        // of ctx
	hosted  atomic.Pointer[[]*hosted] // by module of the manifest, nil where another shard hosts it; set once they are built
	fail    func(error)               // tells why the job must end
	log     *slog.Logger
}

func newModules(w *worker, fail func(error)) *modules {
	m := &modules{worker: w, config: w.config, slots: make(chan struct{}, runtime.GOMAXPROCS(0)), fail: fail, log: w.log}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// build makes the modules of this shard and draws their version 0.
func (m *modules) build(ctx context.Context) error {
	all := make([]*hosted, len(m.config.Job.Modules))
	for i := range all {
		if m.config.Placement.ShardOfModule(i) != m.config.Index {
			continue
		}
		var err error
		if all[i], err = newHosted(ctx, m, i); err != nil {
			return fmt.Errorf("module %q: %w", m.config.Job.Modules[i].Name, err)
		}
	}
	m.hosted.Store(&all)
	return nil
}

// close waits until nothing is computed any more, and lets go of everything.
func (m *modules) close() {
	m.cancel()
	for _, d := range m.all() {
		d.close()
	}
	m.running.Wait()
	for _, d := range m.all() {
		d.letGo()
	}
}

// all are the modules that are hosted here; none before they are built.
func (m *modules) all() (all []*hosted) {
	if p := m.hosted.Load(); p != nil {
		for _, d := range *p {
			if d != nil {
				all = append(all, d)
			}
		}
	}
	return all
}

// deliverModule takes a verified frame that was sent to a module.
func (w *worker) deliverModule(it *item, name string) {
	if w.modules != nil {
		w.modules.deliver(it, name)
		return
	}
	h := it.view.Head()
	subject := fabric.At(w.name, string(it.from), "", "")
	w.server.refuse(w, w.config.Index, &subject, h, schema.Refuse(schema.ReasonUnknownModule, "job %s has no modules", w.name))
	round.Release(it.payload)
}

// deliver takes a verified frame that was sent to a module by name. It does not wait for what is computed.
func (m *modules) deliver(it *item, name string) {
	h := it.view.Head()
	d, host, refused := m.admit(it, &h, name)
	if refused == nil {
		refused = d.take(host, it, &h)
	} else {
		round.Release(it.payload)
	}
	if refused != nil {
		m.refuse(it.from, name, &h, refused)
	}
}

// admit checks what every request must have right.
func (m *modules) admit(it *item, h *schema.Head, name string) (*hosted, int, *refusal) {
	if !h.Kind.IsModuleRequest() {
		return nil, 0, schema.Refuse(schema.ReasonUnknownKind, "a module takes no frames of kind %v", h.Kind)
	}
	if err := it.view.CheckJob(m.config.RunID, m.config.Generation); err != nil {
		return nil, 0, schema.Refusing(err)
	}
	host := m.worker.hostOf(it.from)
	if host < 0 {
		return nil, 0, schema.Refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", it.from, m.config.Job.Name)
	}
	if err := m.config.Placement.CheckFrame(&it.view, m.config.Index); err != nil {
		return nil, 0, schema.Refusing(err)
	}
	all := m.hosted.Load()
	if all == nil {
		return nil, 0, schema.Refuse(schema.ReasonEarlyBatch, "module %q is not built yet", name)
	}
	d := (*all)[h.Bucket]
	if d.spec.Name != name {
		return nil, 0, schema.Refuse(schema.ReasonUnknownModule, "module %d is %q, and the subject says %q", h.Bucket, d.spec.Name, name)
	}
	own := m.config.Hosts[host]
	if n := h.Node; h.Kind == schema.KindForward && (n.Count != 1 || n.First < own.First || int(n.First) >= int(own.First)+own.Count) {
		return nil, 0, schema.Refuse(schema.ReasonWrongSender, "lanes %v: want one of %s, which has [%d,%d)", n, own.Member, own.First, int(own.First)+own.Count)
	}
	return d, host, nil
}

// refuse counts a refusal and tells the sender on the module's subject.
func (m *modules) refuse(to schema.Member, name string, h *schema.Head, r *refusal) {
	m.worker.server.counters.count(r.Reason)
	if r.Reason == schema.ReasonDuplicate {
		return
	}
	m.worker.server.logRefusal(m.worker.name, string(to), r.Reason, r.Detail)
	if m.worker.moduleLimit.Allow(time.Now()) {
		m.send(to, name, encodeRefusal(h, r))
	}
}

func encodeRefusal(h *schema.Head, r *refusal) []byte {
	frame, err := schema.EncodeRefusal(*h, r.Reason, r.Detail)
	if err != nil {
		panic(fmt.Sprintf("ps: encode refusal %v: %v", r.Reason, err)) // a clipped text always fits
	}
	return frame
}

func (m *modules) send(to schema.Member, name string, frame []byte) {
	m.worker.send(to, fabric.At(m.worker.name, string(m.worker.member), "", string(to)).OfModule(name), frame)
}

// expire ends the contexts of a trainer that has left or was lost.
func (m *modules) expire(host int, cause string) {
	for _, d := range m.all() {
		if n := d.expire(host, cause); n > 0 {
			m.log.Warn("contexts expired", "module", d.spec.Name, "member", m.config.Hosts[host].Member, "contexts", n, "cause", cause)
		}
	}
}

// heard is when a trainer last asked something of a module here; zero where it never did.
func (m *modules) heard(host int) (last time.Time) {
	for _, d := range m.all() {
		if at := d.seats[host].heard.get(); at.After(last) {
			last = at
		}
	}
	return last
}

// compute runs f where a processor is free for it. A broken invariant ends the job, not the server; false says that f was not run, or
// did not end.
func (m *modules) compute(d *hosted, f func()) (ok bool) {
	select {
	case m.slots <- struct{}{}:
	case <-m.ctx.Done():
		return false
	}
	defer func() { <-m.slots }()
	defer func() {
		if r := recover(); r != nil {
			m.log.Error("module panicked", "module", d.spec.Name, "panic", r, "stack", string(debug.Stack()))
			m.fail(fmt.Errorf("module %q on %s failed: internal error: %v", d.spec.Name, m.worker.member, r))
			ok = false
		}
	}()
	f()
	return true
}

// lazyDense is the dense library that modules compute with: it is opened when the first one is hosted, since a server without modules
// needs none.
type lazyDense struct {
	mu   sync.Mutex
	open *cuda.Dense
}

// env is what nets compute with.
func (l *lazyDense) env(backend cuda.Backend, log *slog.Logger) (nn.Env, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		dense, err := cuda.OpenDense(backend, cuda.DenseOptions{Log: log})
		if err != nil {
			return nn.Env{}, err
		}
		l.open = dense
	}
	return nn.Env{Backend: backend, Dense: l.open}, nil
}

func (l *lazyDense) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != nil {
		l.open.Close()
		l.open = nil
	}
}

// checkModules refuses modules that cannot be built or cannot take the samples that the manifest says.
func checkModules(job *schema.Job) *schema.Refused {
	for i := range job.Modules {
		spec := &job.Modules[i]
		if _, _, err := buildModule(spec); err != nil {
			return &schema.Refused{Reason: "invalid_job", Field: fmt.Sprintf("modules[%d].module", i), Want: spec.Module[:min(len(spec.Module), 200)],
				Text: schema.Clip(fmt.Sprintf("module %q: %v", spec.Name, err))}
		}
	}
	return nil
}

// buildModule makes a module of its configuration, and says how many values a sample of its output has.
func buildModule(spec *schema.ModuleSpec) (nn.Module, int, error) {
	module, err := nn.Build([]byte(spec.Module))
	if err != nil {
		return nil, 0, err
	}
	shape, err := module.OutShape(spec.In)
	if err != nil {
		return nil, 0, fmt.Errorf("samples of shape %v: %w", spec.In, err)
	}
	out := 1
	for _, n := range shape {
		if out *= n; n < 1 || out*spec.Samples > schema.ModuleTensorElementsMax {
			return nil, 0, fmt.Errorf("%d samples give outputs of shape %v: want at most %d values in all", spec.Samples, shape, schema.ModuleTensorElementsMax)
		}
	}
	return module, out, nil
}
