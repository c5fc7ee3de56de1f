package faults

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/fabric/chaos"
	"gradbus/fabric/fabrictest"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of what the proxy does; 0 draws one and prints it")
	fullFlag = flag.Bool("full", false, "run the whole volume: 100,000 chunks and more")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *childFlag != "" {
		os.Exit(runChild(*childFlag))
	}
	fabrictest.Main(m)
}

// guard bounds every run; it is reached only by what never comes.
const guard = 4 * time.Minute

func guarded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), guard, errors.New("the test has taken too long"))
	t.Cleanup(cancel)
	return ctx
}

// volume is n batches, or full of them with -full.
func volume(n, full uint64) uint64 {
	if *fullFlag {
		return full
	}
	return n
}

// plan is what a rig is made of.
type plan struct {
	name     string
	server   ps.Config
	trainers int
	chunk    int   // bytes
	elements []int // of each parameter
	table    bool
	apply    string
	config   func(*trainer.Config) // changes a trainer's configuration; nil for nothing
	change   func(*schema.Job)     // changes the manifest; nil for nothing
}

// rig is a server, a proxy and the trainers of one job behind it.
type rig struct {
	t        *testing.T
	plan     plan
	job      *schema.Job
	server   *ps.Server
	proxy    *chaos.Proxy
	sessions []*trainer.Session
	books    []*ledger
}

func (p *plan) job() *schema.Job {
	if p.apply == "" {
		p.apply = schema.ApplyUpdate
	}
	job := &schema.Job{
		Name: schema.JobName(p.name), Workload: "ledger", Seed: 1, Trainers: p.trainers, Lanes: lanes,
		Consistency: schema.ConsistencySync, Apply: p.apply, Policy: schema.PolicyFail, ChunkBytes: p.chunk,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1},
	}
	for i, n := range p.elements {
		job.Parameters = append(job.Parameters, schema.Parameter{Name: fmt.Sprintf("p%d", i), Shape: []int{n},
			Init: schema.Init{Kind: schema.InitZeros}})
	}
	if p.table {
		job.Tables = []schema.TableSpec{{Name: "rows", Rows: tableRows, Dim: tableDim, Partitions: 8,
			Init: schema.Init{Kind: schema.InitZeros}}}
	}
	if p.change != nil {
		p.change(job)
	}
	return job
}

func openBackend(t *testing.T) cuda.Backend {
	t.Helper()
	backend, err := cuda.Open(cuda.Options{Name: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	return backend
}

func warnings(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
}

// newRig starts a job whose trainers reach their server through a proxy that passes everything on as yet.
func newRig(t *testing.T, p plan) *rig {
	t.Helper()
	r := &rig{t: t, plan: p, job: p.job()}
	r.serve()
	r.join(openBackend(t))
	return r
}

// serve starts a server in this process, and the proxy before it.
func (r *rig) serve() {
	r.t.Helper()
	var err error
	// nobody is to be given up because the machine is busy
	r.plan.server.Deadline = cmp.Or(r.plan.server.Deadline, 2*guard)
	if r.server, err = ps.Start(guarded(r.t), r.plan.server,
		ps.Options{Backend: openBackend(r.t), Log: warnings(r.t)}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.server.Close)
	r.proxied(r.server.URL())
}

// proxied starts the proxy before a server.
func (r *rig) proxied(server string) {
	r.t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	r.t.Logf("-seed=%d", seed)
	var err error
	if r.proxy, err = chaos.Start(chaos.Config{Server: server, Seed: seed, Log: warnings(r.t)}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.proxy.Close)
}

func (r *rig) join(backend cuda.Backend) {
	r.t.Helper()
	r.sessions = make([]*trainer.Session, r.plan.trainers)
	r.together(func(i int) error {
		c := trainer.Config{Server: r.proxy.URL(), Member: schema.TrainerMember(i), Backend: backend, Log: warnings(r.t),
			AnswerWithin: guard, ReconnectTimeout: guard, LeaveWithin: guard}
		if r.plan.config != nil {
			r.plan.config(&c)
		}
		s, err := trainer.Join(guarded(r.t), c, r.job)
		r.sessions[i] = s
		return err
	})
	for _, s := range r.sessions {
		r.books = append(r.books, newLedger(r.job))
		r.t.Cleanup(func() {
			r.proxy.SetRules()
			_ = s.Abort(errors.New("the test is over"))
		})
	}
}

// together calls do for every trainer at once, and ends the test where one fails.
func (r *rig) together(do func(i int) error) {
	r.t.Helper()
	errs := make([]error, r.plan.trainers)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			r.t.Errorf("trainer %d: %v", i, err)
		}
	}
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// train runs batches in all trainers at once, and compares everything at the end. at is called after each batch of
// trainer 0; nil for nothing.
func (r *rig) train(batches uint64, at func(done uint64)) {
	r.t.Helper()
	began := time.Now()
	ctx := guarded(r.t)
	r.together(func(i int) error {
		s := r.sessions[i]
		err := s.Run(ctx, r.books[i], batches, func(p trainer.Progress) {
			if i == 0 && at != nil {
				at(p.Done)
			}
		})
		if err == nil {
			err = r.books[i].checkEnd(ctx, s)
		}
		if err != nil {
			_ = s.Abort(err) // so that the others end too
		}
		return err
	})
	checked := uint64(0)
	for _, b := range r.books {
		checked += b.checked
	}
	r.t.Logf("%d batches in %v; %d values compared in all", batches, time.Since(began).Round(time.Millisecond), checked)
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(guard)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", guard, what)
		}
		time.Sleep(2 * time.Millisecond) // the pause between two looks
	}
}
