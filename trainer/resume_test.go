package trainer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// trainUntilDurable trains some batches at a time, of a workload, nil for the toy, until a version is durable that is a
// full checkpoint, or an increment, and a few more. It gives that version, and the number of batches.
func trainUntilDurable(t *testing.T, dir string, sessions []*Session, job *schema.Job, of Workload, full bool) (version,
	batches schema.Version) {
	t.Helper()
	some := 2 + 4*uint64(job.Ahead)
	var durable, end atomic.Uint64 // the version; the batch to end with, once it is known
	end.Store(1 << 40)
	var all sync.WaitGroup
	for i, s := range sessions {
		all.Go(func() {
			w := of
			if w == nil {
				w = newToy(t, job)
			}
			for uint64(s.Version()) < end.Load() {
				if err := s.Run(testContext(t), w, some, nil); err != nil {
					t.Errorf("trainer %d: %v", i, err)
					return
				}
				if time.Sleep(50 * time.Millisecond); i > 0 || durable.Load() > 0 {
					continue
				}
				found, _ := checkpoint.List(dir, job.Name)
				newest := slices.IndexFunc(found, func(f checkpoint.Found) bool { return f.Manifest != nil })
				if newest >= 0 && found[newest].Manifest.Full() == full {
					durable.Store(uint64(found[newest].ID.Version))
					end.Store(uint64(s.Version()) + 2*some) // the others are in the next ones at most
				}
			}
		})
	}
	all.Wait()
	return schema.Version(durable.Load()), schema.Version(end.Load())
}

// A job whose servers and trainers are gone goes on from its newest durable version: on other numbers of shards and
// trainers, with the bits of a job that nothing has happened to. Shards have the parameters, or trainers, or these have
// all of the job.
func TestResume(t *testing.T) {
	testkit.Beside(t)
	for _, who := range havers {
		t.Run(who.name, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { resume(t, who) }) })
	}
}

// haver is who has what of a job, and writes versions down.
type haver struct {
	name, apply string
	trainers    bool // these have everything
	hybrid      bool // these have the parameters and add them up, and shards have the tables
	routes      func(*schema.Job)
	full        bool // shards write down tables that trainers have, and nothing less than all
	policy      string
	deadline    time.Duration // 0: a long one
}

var havers = []haver{{name: "update", apply: schema.ApplyUpdate, policy: schema.PolicyFail},
	{name: "mean", apply: schema.ApplyMean, policy: schema.PolicyFail},
	{name: "hybrid", apply: schema.ApplyMean, hybrid: true, policy: schema.PolicyFail},
	{name: "replicated, added up by shards", apply: schema.ApplyMean, routes: replicateAll, full: true,
		policy: schema.PolicyFail},
	{name: "replicated, rows added up by shards", apply: schema.ApplyMean, policy: schema.PolicyFail,
		routes: func(j *schema.Job) {
			replicateAll(j)
			j.Reduce, j.Tables[0].Reduce, j.Tables[1].Reduce = schema.ReduceTrainers, schema.ReduceShards, schema.ReduceShards
		}},
	{name: "replicated, rows added up by trainers", apply: schema.ApplyMean, policy: schema.PolicyFail,
		routes: func(j *schema.Job) { j.Tables[1].Replicated, j.Tables[1].Reduce = true, schema.ReduceTrainers }},
	{name: "trainers", apply: schema.ApplyMean, trainers: true, policy: schema.PolicyFail},
	{name: "trainers, recovering", apply: schema.ApplyMean, trainers: true, policy: schema.PolicyRecover}}

// replicateAll replicates all tables.
func replicateAll(j *schema.Job) {
	for i := range j.Tables {
		j.Tables[i].Replicated = true
	}
}

// job is one of them.
func (h *haver) job(name string, trainers, lanes int) *schema.Job {
	job := toyJob(name, trainers, lanes, h.apply)
	job.Policy = h.policy
	if h.hybrid {
		job.Reduce = schema.ReduceTrainers
	}
	if h.trainers {
		job.Reduce = schema.ReduceTrainers
		replicateAll(job)
	}
	if h.routes != nil {
		h.routes(job)
	}
	return job
}

// start starts a server for it.
func (h *haver) start(t *testing.T, shards int, kept checkpoint.Policy) (*ps.Server, Config) {
	server := ps.Config{Shards: shards, Deadline: h.deadline}
	if !h.trainers {
		server.Checkpoints = kept
	}
	s := startServerWith(t, server)
	config := testConfig(t, s)
	if h.trainers {
		config.Checkpoints = kept
	}
	return s, config
}

func resume(t *testing.T, who haver) {
	const lanes = 6
	dir := t.TempDir()
	kept := checkpoint.Policy{Dir: dir, Batches: 1}
	server, config := who.start(t, 2, kept)
	job := who.job("resumed", 2, lanes)
	version, reached := trainUntilDurable(t, dir, joinAll(t, config, job), job, nil, true)
	server.Close()
	if version == 0 || version >= reached {
		t.Fatalf("version %d is durable after %d batches", version, reached)
	}
	checkExport(t, dir, lanes)
	batches := uint64(reached) + 3
	want, _ := toyOutcome(t, lanes, int(batches))
	for _, c := range []struct{ shards, trainers int }{{1, 1}, {3, 4}, {2, 2}} {
		server, from := who.start(t, c.shards, kept)
		job := who.job("resumed", c.trainers, lanes)
		from.Resume = true
		sessions := joinAll(t, from, job)
		at := sessions[0].Version()
		if at < version || at > schema.Version(batches) {
			t.Fatalf("resumed at version %d, want %d to %d", at, version, batches)
		}
		trainTo(t, sessions, newToy(t, job), batches)
		for i, digest := range digestsOf(t, sessions) {
			if digest != want {
				t.Errorf("%d shards, trainer %d of %d: weights %x, want %x", c.shards, i, c.trainers, digest[:6], want[:6])
			}
		}
		server.Close()
	}
}

// What is left of a job that is resumed, or of one that a trainer joins late, may be without samples.
func TestResumedWithoutSamples(t *testing.T) {
	dir := t.TempDir()
	config := ps.Config{Shards: 1, Checkpoints: checkpoint.Policy{Dir: dir, Batches: 1}}
	server := startServerWith(t, config)
	job := toyJob("resumed", 2, 6, schema.ApplyUpdate)
	trainUntilDurable(t, dir, joinAll(t, testConfig(t, server), job), job, nil, true)
	server.Close()
	from := testConfig(t, startServerWith(t, config))
	from.Resume = true
	none := samplesOnly(func(schema.Batch, lane.Lane) int { return 0 })
	for _, err := range runAll(testContext(t), joinAll(t, from, job), none, 1) {
		if err != nil {
			t.Error(err)
		}
	}
}

// checkExport compares the newest durable version, as whoever has it exported reads it, with the outcome of as many
// batches.
func checkExport(t *testing.T, dir string, lanes int) {
	t.Helper()
	found, err := checkpoint.List(dir, "resumed")
	if err != nil {
		t.Fatal(err)
	}
	newest := slices.IndexFunc(found, func(f checkpoint.Found) bool { return f.Err == nil })
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := found[newest].Manifest.Export(dir, path); err != nil {
		t.Fatal(err)
	}
	m, err := OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := toyOutcome(t, lanes, int(found[newest].ID.Version)); m.Digest() != want {
		t.Errorf("version %d is exported with weights %x, want %x", found[newest].ID.Version, m.Digest(), want)
	}
}

// digestsOf is what each of all trainers of a job takes for its weights.
func digestsOf(t *testing.T, sessions []*Session) [][32]byte {
	digests := make([][32]byte, len(sessions))
	var all sync.WaitGroup
	for i, s := range sessions {
		all.Go(func() {
			var err error
			if digests[i], err = s.Digest(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return digests
}

// The same from an increment, of a job with a table of which most rows are not touched; and from what is before it
// where its file is damaged. Where trainers have that table too, and shards write it down, versions are full.
func TestResumeFromIncrements(t *testing.T) {
	testkit.Beside(t)
	for _, who := range havers {
		t.Run(who.name, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { resumeFromIncrements(t, who) }) })
	}
}

func resumeFromIncrements(t *testing.T, who haver) {
	dir := t.TempDir()
	job := func(trainers int) *schema.Job {
		j := who.job("grown", trainers, 4)
		j.Tables = append(j.Tables, schema.TableSpec{Name: "idle", Rows: 20000, Dim: 4, Init: schema.Normal(1),
			Replicated: who.trainers || who.full})
		return j.WithDefaults()
	}
	server, config := who.start(t, 2, checkpoint.Policy{Dir: dir, Batches: 1, Keep: 100})
	sessions := joinAll(t, config, job(2))
	version, reached := trainUntilDurable(t, dir, sessions, job(2), nil, who.full)
	want := digestsOf(t, sessions)[0]
	server.Close()
	var other schema.Version // the newest at the moment
	for _, c := range []struct {
		shards, trainers int
		damaged          bool
	}{{1, 1, false}, {3, 2, false}, {2, 1, true}} {
		if c.damaged && who.full { // there is one version yet
			continue
		}
		found, err := checkpoint.List(dir, "grown")
		// One may have been on its way.
		found = slices.DeleteFunc(found, func(f checkpoint.Found) bool { return f.Err != nil })
		if err != nil || len(found) == 0 || c.damaged && len(found) < 2 {
			t.Fatalf("%v, %v", found, err)
		}
		if c.damaged {
			path := filepath.Join(dir, "grown", found[0].ID.String(), "s0.safetensors")
			if err := os.Truncate(path, 100); err != nil {
				t.Fatal(err)
			}
			other = found[1].ID.Version
		}
		server, from := who.start(t, c.shards, checkpoint.Policy{Dir: dir, Every: time.Hour})
		from.Resume = true
		sessions := joinAll(t, from, job(c.trainers))
		at := sessions[0].Version()
		if at > reached || !c.damaged && at < version || c.damaged && at != other {
			t.Fatalf("resumed at version %d of %d, want %d or later", at, reached, version)
		}
		trainTo(t, sessions, newToy(t, job(c.trainers)), uint64(reached))
		for i, digest := range digestsOf(t, sessions) {
			if digest != want {
				t.Errorf("%d shards, trainer %d of %d: weights %x, want %x", c.shards, i, c.trainers, digest[:6], want[:6])
			}
		}
		server.Close()
	}
}

// The same where gradients are rounded to 16 bits, or travel as bags: as many trainers go on with the bits of those
// that nothing happened to.
func TestResumeOtherWires(t *testing.T) {
	testkit.Beside(t)
	for name, wire := range map[string]schema.Wire{"bfloat16": {Gradients: schema.GradientsBFloat16},
		"float16, bags": {Gradients: schema.GradientsFloat16, Sparse: schema.SparseBags}} {
		for _, who := range havers {
			t.Run(name+", "+who.name, func(t *testing.T) {
				testkit.Waits(t, func(t *testing.T) { resumeOtherWire(t, who, wire) })
			})
		}
	}
}

func resumeOtherWire(t *testing.T, who haver, wire schema.Wire) {
	dir := t.TempDir()
	kept := checkpoint.Policy{Dir: dir, Batches: 1}
	server, config := who.start(t, 2, kept)
	job := who.job("rounded", 3, 6)
	job.Wire = wire
	sessions := joinAll(t, config, job)
	version, reached := trainUntilDurable(t, dir, sessions, job, nil, true)
	want := digestsOf(t, sessions)[0]
	server.Close()
	server, from := who.start(t, 3, kept)
	defer server.Close()
	from.Resume = true
	sessions = joinAll(t, from, job)
	if at := sessions[0].Version(); at < version || at > reached {
		t.Fatalf("resumed at version %d, want %d to %d", at, version, reached)
	}
	trainTo(t, sessions, newToy(t, job), uint64(reached))
	for i, digest := range digestsOf(t, sessions) {
		if digest != want {
			t.Errorf("trainer %d: weights %x, want %x", i, digest[:6], want[:6])
		}
	}
}

// What cannot be resumed is refused, with the reason and what would be right.
func TestResumeRefused(t *testing.T) {
	dir := t.TempDir()
	job := toyJob("nothing", 1, 2, schema.ApplyUpdate)
	join := func(config ps.Config, job *schema.Job) error {
		server := startServerWith(t, config)
		defer server.Close()
		c := testConfig(t, server)
		c.Resume = true
		s, err := Join(testContext(t), c, job)
		if err == nil {
			err = errors.Join(errors.New("it was resumed"), s.Close())
		}
		return err
	}
	checkError(t, join(ps.Config{}, job), &Refused{}, "job nothing cannot be resumed", "--checkpoint-dir")
	kept := ps.Config{Checkpoints: checkpoint.Policy{Dir: dir}}
	checkError(t, join(kept, job), &Refused{}, "there is no durable version of it in "+dir, "without --resume")
	exact := toyJob("exact", 1, 2, schema.ApplyUpdate)
	exact.Consistency, exact.Optimizer.Exact = schema.ConsistencyAsync, true
	checkError(t, join(kept, exact), &Refused{}, "exact rows of shards at versions of their own", "sync or bounded")
}

// Of several trainers all resume, or none.
func TestResumeByAllOrNone(t *testing.T) {
	server := startServerWith(t, ps.Config{Checkpoints: checkpoint.Policy{Dir: t.TempDir()}})
	c := testConfig(t, server)
	c.ReconnectTimeout = time.Second // it may not hear the server's last word
	joined := make(chan *Session, 1)
	go func() {
		s, err := Join(testContext(t), c, toyJob("halves", 2, 2, schema.ApplyUpdate))
		if err == nil {
			_ = s.Abort(errors.New("the test is over"))
		}
		joined <- s
	}()
	poll(t, "the first has joined", func() bool { return len(server.Stats().Jobs) > 0 })
	other := c
	other.Resume = true
	_, err := Join(testContext(t), other, toyJob("halves", 2, 2, schema.ApplyUpdate))
	checkError(t, err, &Refused{}, "job halves begins at version 0", "want all trainers to resume, or none")
	server.Close()
	<-joined
}

// A folder that nothing can be written to is found when the server starts, and one that breaks later delays no batch.
func TestCheckpointsThatCannotBeWritten(t *testing.T) {
	testkit.Waits(t, checkpointsThatCannotBeWritten)
}

func checkpointsThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ps.Start(testContext(t), ps.Config{Checkpoints: checkpoint.Policy{Dir: file}},
		ps.Options{Backend: testBackend(t), Bus: bus})
	if err == nil || !strings.Contains(err.Error(), "checkpoint_dir "+file) {
		t.Fatalf("a file in place of a folder: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "later")
	server := startServerWith(t, ps.Config{Checkpoints: checkpoint.Policy{Dir: dir, Batches: 1}})
	job := toyJob("unwritten", 1, 2, schema.ApplyUpdate)
	s := joinAll(t, testConfig(t, server), job)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // in the way of the folder
		t.Fatal(err)
	}
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for i, err := range runAll(testContext(t), s, newToy(t, job), 5) {
			if err != nil {
				t.Fatalf("trainer %d: %v", i, err)
			}
		}
	}
}

// Whoever comes back to a run that was lost with its ps is in one by whose id it may come back again, at once. What
// ends before it begins leaves the lost one to come back to.
func TestRunsAreNotedBeforeTheyBegin(t *testing.T) {
	const lost = 77
	dir, job := t.TempDir(), toyJob("noted", 2, 2, schema.ApplyUpdate)
	job.Policy = schema.PolicyRecover
	if err := checkpoint.Begin(dir, job.Name, lost, 1, 2); err != nil {
		t.Fatal(err)
	}
	noted := func() []schema.RunID {
		l, err := checkpoint.Running(dir, job.Name)
		if err != nil {
			t.Fatal(err)
		}
		return l.Runs
	}
	server := startServerWith(t, ps.Config{Shards: 1, Checkpoints: checkpoint.Policy{Dir: dir}})
	c := testConfig(t, server)
	c.Rejoin, c.Resume = lost, true

	ctx, cancel := context.WithCancel(testContext(t))
	waits := make(chan int, 10)
	c.OnWaiting = func(missing int) { waits <- missing }
	ended := make(chan error, 1)
	go func() {
		_, err := Join(ctx, c, job)
		ended <- err
	}()
	<-waits
	if runs := noted(); len(runs) != 2 || runs[1] != lost {
		t.Errorf("while one waits for another: %v, want a run and %d", runs, lost)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was canceled", err)
	}
	poll(t, "only the lost run is noted", func() bool { return slices.Equal(noted(), []schema.RunID{lost}) })

	c.OnWaiting = nil
	sessions := joinAll(t, c, job)
	if runs := noted(); !slices.Equal(runs, []schema.RunID{sessions[0].RunID(), lost}) {
		t.Errorf("once all are there: %v, want %d and %d", runs, sessions[0].RunID(), lost)
	}
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "nothing is noted of what has ended", func() bool { return noted() == nil })
}

// Where the last trainer that had the parameters is lost, the job ends and says what to do, which works.
func TestResumeWhereAllTrainersAreLost(t *testing.T) { testkit.Waits(t, resumeWhereAllTrainersAreLost) }

func resumeWhereAllTrainersAreLost(t *testing.T) {
	const lanes = 4
	dir := t.TempDir()
	server := startServerWith(t, ps.Config{Shards: 2, Deadline: 3 * time.Second,
		Checkpoints: checkpoint.Policy{Dir: dir, Batches: 1}})
	job := toyJob("resumed", 2, lanes, schema.ApplyMean)
	job.Policy = schema.PolicyRecover
	sessions := joinAll(t, testConfig(t, server), job)
	version, reached := trainUntilDurable(t, dir, sessions, job, nil, true)
	for _, s := range sessions {
		die(s)
	}
	newcomer := testConfig(t, server)
	newcomer.Rejoin = sessions[0].RunID()
	if s, err := Join(testContext(t), newcomer, job); err == nil {
		t.Errorf("%s has taken a place, and nobody has the parameters", s.Member())
		_ = s.Abort(errors.New("the test is over"))
	} else if !errors.Is(err, ErrJobFailed) && !errors.Is(err, &Refused{}) {
		t.Errorf("%v, want that the job has failed, or is over", err)
	}
	again := testConfig(t, server)
	again.Resume = true
	sessions = joinAll(t, again, job)
	at := sessions[0].Version()
	if at < version {
		t.Errorf("resumed at version %d, and version %d was durable", at, version)
	}
	batches := uint64(reached) + 3
	trainTo(t, sessions, newToy(t, job), batches)
	want, _ := toyOutcome(t, lanes, int(batches))
	for i, digest := range digestsOf(t, sessions) {
		if digest != want {
			t.Errorf("trainer %d: weights %x, want %x", i, digest[:6], want[:6])
		}
	}
}
