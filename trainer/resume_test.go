package trainer

import (
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
// trainers, with the bits of a job that nothing has happened to. Shards have the parameters, or trainers.
func TestResume(t *testing.T) {
	testkit.Beside(t)
	for _, who := range havers {
		t.Run(who.name, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { resume(t, who) }) })
	}
}

// haver is who has what of a job.
type haver struct {
	name, apply string
	hybrid      bool // these have the parameters and add them up, and shards have the tables
	routes      func(*schema.Job)
	policy      string
	deadline    time.Duration // 0: a long one
}

var havers = []haver{{name: "update", apply: schema.ApplyUpdate, policy: schema.PolicyFail},
	{name: "hybrid", apply: schema.ApplyMean, hybrid: true, policy: schema.PolicyFail},
	{name: "replicated, rows added up by shards", apply: schema.ApplyMean, policy: schema.PolicyFail,
		routes: func(j *schema.Job) {
			replicateAll(j)
			j.Reduce, j.Tables[0].Reduce, j.Tables[1].Reduce = schema.ReduceTrainers, schema.ReduceShards, schema.ReduceShards
		}},
}

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
	if h.routes != nil {
		h.routes(job)
	}
	return job
}

// start starts a server for it.
func (h *haver) start(t *testing.T, shards int, kept checkpoint.Policy) (*ps.Server, Config) {
	s := startServerWith(t, ps.Config{Shards: shards, Deadline: h.deadline, Checkpoints: kept})
	return s, testConfig(t, s)
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

// digestAfter is what the first of all trainers of a job takes for its weights, after so many batches.
func digestAfter(t *testing.T, sessions []*Session, w Workload, batches uint64) [32]byte {
	t.Helper()
	trainTo(t, sessions, w, batches)
	return digestsOf(t, sessions)[0]
}

// trainTo has all trainers of a job train until so many batches are done.
func trainTo(t *testing.T, sessions []*Session, w Workload, batches uint64) {
	t.Helper()
	for i, err := range runAll(testContext(t), sessions, w, batches-uint64(sessions[0].Version())) {
		if err != nil {
			t.Fatalf("trainer %d: %v", i, err)
		}
	}
}
