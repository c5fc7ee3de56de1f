// Package module hosts whole modules beside the rounds of a shard: their parameters, the computation and the optimizer.
// Package ps gives it frames and sends what it answers.
//
//   - set.go: the modules of one shard of one job, their permissions, and how many requests compute at the same time.
//   - requests.go: assembling requests and answering each once; hosted.go: processing a request.
//   - saved.go: modules in checkpoints.
//   - contexts.go: the state of passes; versions.go: parameters that are not written while they have readers.
//   - memory.go: the bound of all memory.
//
// It knows no subject, no connection and no other shard. A kind of request is easily added: to hosted.answer, the check
// of its frame in package schema, and the table of refusals in module_test.go.
package module

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"gradbus/cuda"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
)

// Config has the parameters of New. Every field is required.
type Config struct {
	Shard shard.Config // the shard that they stand beside
	Dense *Dense
	Log   *slog.Logger
	Now   func() time.Time
	// Send publishes a frame to a trainer under a module's name. The frame may be sent again.
	Send func(to schema.Member, name string, frame []byte)
	// Note is called with the outcome of a request, and the reason if it was refused.
	Note func(from schema.Member, reason schema.Reason, text string)
	// Fail is called with the reason why the job must end.
	Fail func(error)
}

// refusalsPerSecond bounds the refusals that one shard's modules send.
const refusalsPerSecond = 100

// refusal is the reason why a request was refused.
type refusal = schema.FrameError

// Set is the modules that one shard of one job hosts. They share nothing with the shard's rounds but connections.
//
// The receiver assembles a request from its parts. Each trainer and module with a complete request has a goroutine that
// processes it; as many of them compute at the same time as there are processors. So trainers run in parallel, each on
// its own net, and only the steps of one module are sequential. Locks: a client slot's mu, then its module's; a
// module's step lock, then its mu. Only the step lock is held while a net computes. A Set is safe for concurrent use.
type Set struct {
	Config
	config    *shard.Config
	computing chan struct{} // a place for each request that computes
	limit     *rate.Limiter
	running   sync.WaitGroup     // goroutines that work requests
	ctx       context.Context    // ends with the shard
	cancel    context.CancelFunc // of ctx
	// by module of the manifest, nil where another shard hosts it; set once they are built
	hosted atomic.Pointer[[]*hosted]
	open   atomic.Bool // requests are taken
}

// New returns a set without modules: Build makes them, Open admits requests, Close ends the set.
func New(c Config) *Set {
	m := &Set{Config: c, computing: make(chan struct{}, runtime.GOMAXPROCS(0)),
		limit: rate.NewLimiter(refusalsPerSecond, refusalsPerSecond)}
	m.config = &m.Shard
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Build makes the modules of this shard and draws their version 0.
func (m *Set) Build(ctx context.Context) error {
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

// Open admits requests. It fails if a module was restored in part.
func (m *Set) Open() error {
	for _, d := range m.all() {
		if err := d.restored(); err != nil {
			return err
		}
	}
	m.open.Store(true)
	return nil
}

// Close waits until no request computes and releases everything. Frames that are delivered during or after Close are
// released at once.
func (m *Set) Close() {
	m.cancel()
	for _, d := range m.all() {
		d.close()
	}
	m.running.Wait()
	for _, d := range m.all() {
		d.release()
	}
}

// all returns the modules that are hosted here; none before Build.
func (m *Set) all() (all []*hosted) {
	if p := m.hosted.Load(); p != nil {
		for _, d := range *p {
			if d != nil {
				all = append(all, d)
			}
		}
	}
	return all
}

// Frame is a verified frame from a trainer to a module, and its memory.
type Frame struct {
	From    schema.Member
	View    schema.View
	Payload shard.Payload
}

// Deliver accepts a frame for a module by name and releases its payload later. It does not wait for a computation.
func (m *Set) Deliver(f *Frame, name string) {
	h := f.View.Head()
	d, contributor, refused := m.admit(f, &h, name)
	if refused == nil {
		refused = d.take(contributor, f, &h)
	} else {
		round.Release(f.Payload)
	}
	if refused != nil {
		m.refuse(f.From, name, &h, refused)
	}
}

// admit checks the fields that every request has.
func (m *Set) admit(f *Frame, h *schema.Head, name string) (*hosted, int, *refusal) {
	if !h.Kind.IsModuleRequest() {
		return nil, 0, schema.Refuse(schema.ReasonUnknownKind, "a module takes no frames of kind %v", h.Kind)
	}
	if err := f.View.CheckJob(m.config.RunID, m.config.Generation); err != nil {
		return nil, 0, schema.Refusing(err)
	}
	contributor := slices.IndexFunc(m.config.Contributors, func(c shard.Contributor) bool { return c.Member == f.From })
	if contributor < 0 {
		return nil, 0, schema.Refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", f.From, m.config.Job.Name)
	}
	if err := m.config.Placement.CheckFrame(&f.View, m.config.Index); err != nil {
		return nil, 0, schema.Refusing(err)
	}
	if !m.open.Load() {
		return nil, 0, schema.Refuse(schema.ReasonEarlyBatch, "module %q is not built yet", name)
	}
	d := (*m.hosted.Load())[h.Bucket]
	if d.spec.Name != name {
		return nil, 0, schema.Refuse(schema.ReasonUnknownModule, "module %d is %q, and the subject says %q", h.Bucket,
			d.spec.Name, name)
	}
	own := m.config.Contributors[contributor]
	if n := h.Node; h.Kind == schema.KindForward &&
		(n.Count != 1 || n.First < own.First || int(n.First) >= int(own.First)+own.Count) {
		return nil, 0, schema.Refuse(schema.ReasonWrongSender, "lanes %v: want one of %s, which has [%d,%d)", n, own.Member,
			own.First, int(own.First)+own.Count)
	}
	return d, contributor, nil
}

// refuse sends the reason to the trainer, within the limit of refusals per second.
func (m *Set) refuse(to schema.Member, name string, h *schema.Head, r *refusal) {
	m.Note(to, r.Reason, r.Detail)
	if r.Reason != schema.ReasonDuplicate && m.limit.AllowN(m.Now(), 1) {
		m.Send(to, name, schema.EncodeRefusal(*h, r.Reason, r.Detail))
	}
}

// Expire ends the contexts of a trainer that has left or was lost.
func (m *Set) Expire(contributor int, cause string) {
	for _, d := range m.all() {
		if n := d.expire(contributor, cause); n > 0 {
			m.Log.Warn("contexts expired", "module", d.spec.Name, "member", m.config.Contributors[contributor].Member,
				"contexts", n, "cause", cause)
		}
	}
}

// Heard returns the time of a trainer's last request to a module here; zero if there was none.
func (m *Set) Heard(contributor int) (last time.Time) {
	for _, d := range m.all() {
		if at := d.slots[contributor].heard.Load(); at != nil && at.After(last) {
			last = *at
		}
	}
	return last
}

// compute runs f when a processor is free for it. A broken invariant ends the job, not the server. It returns false if
// f did not run or did not return.
func (m *Set) compute(d *hosted, f func()) (ok bool) {
	select {
	case m.computing <- struct{}{}:
	case <-m.ctx.Done():
		return false
	}
	defer func() { <-m.computing }()
	defer func() {
		if r := recover(); r != nil {
			m.Log.Error("module panicked", "module", d.spec.Name, "panic", r, "stack", string(debug.Stack()))
			m.Fail(fmt.Errorf("module %q on %s failed: internal error: %v", d.spec.Name,
				m.config.Placement.Owner(m.config.Index), r))
			ok = false
		}
	}()
	f()
	return true
}

// Dense is the dense library that modules compute with. It is opened with the first module: a server without modules
// needs none.
type Dense struct {
	mu   sync.Mutex
	open *cuda.Dense
}

// env is the environment that nets compute in.
func (l *Dense) env(backend cuda.Backend, log *slog.Logger) (nn.Env, error) {
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

// Close closes the library if it is open.
func (l *Dense) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != nil {
		l.open.Close()
		l.open = nil
	}
}

// buildModule returns the module of a configuration and the number of values in a sample of its output.
func buildModule(spec *schema.ModuleSpec) (nn.Module, int, error) {
	module, is := build(spec)
	out, err := is.outElements(spec)
	return module, out, err
}
