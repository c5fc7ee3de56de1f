package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// Where all trainers that have all of a job are lost, it goes on from what is in their folder, and ends with the
// weights of one in which nothing has happened: whether its ps is there or lost with them, and whoever of them has the
// folder. A newer version that is damaged is passed over.
func TestAllTrainersThatHaveAllAreLost(t *testing.T) {
	testkit.Beside(t)
	for name, c := range map[string]lostAll{
		"and their ps is there":           {},
		"and their ps":                    {ps: true},
		"one of whom has the folder":      {folders: 1},
		"and newcomers have none of them": {folders: 1, late: true},
		"and the newest is damaged":       {damaged: true},
		"and the ps, which is there late": {ps: true, damaged: true},
		"interrupted":                     {interrupted: true},
		"interrupted, and their ps":       {interrupted: true, ps: true},
		"that are as many as there may be": {trainers: 6, folders: 2,
			ps: true},
	} {
		t.Run(name, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { c.run(t) }) })
	}
}

// lostAll is a job all of whose trainers are lost.
type lostAll struct {
	trainers    int  // 0: 3
	folders     int  // how many of the trainers have it, the last ones; 0: all
	ps          bool // is lost, too
	damaged     bool // the newest version
	late        bool // who comes first has no folder
	interrupted bool // they are told to end
}

func (c *lostAll) run(t *testing.T) {
	const batches = 40
	trainers := cmp.Or(c.trainers, 3)
	who := haver{apply: schema.ApplyMean, trainers: true, policy: schema.PolicyRecover, deadline: 3 * time.Second}
	dir := t.TempDir()
	kept := checkpoint.Policy{Dir: dir, Batches: 3}
	server, config := who.start(t, 1, kept)
	job := who.job("lost", trainers, 6)
	quiet := config
	quiet.Checkpoints = checkpoint.Policy{}
	want := quietly(t, quiet, job, batches)
	has := func(i int) Config {
		own := config
		if c.folders > 0 && i < trainers-c.folders {
			own.Checkpoints = checkpoint.Policy{}
		}
		return own
	}
	reached := c.lose(t, server, job, has)
	if c.damaged {
		found, err := checkpoint.List(dir, job.Name)
		if err != nil || len(found) < 2 {
			t.Fatal(found, err)
		}
		flip(t, filepath.Join(dir, string(job.Name), found[0].ID.String(), "s0.safetensors"))
	}
	if c.ps {
		server.Close()
		server, config = who.start(t, 1, kept)
		defer server.Close()
	}
	from, digests := c.goOn(t, job, has, batches)
	for _, d := range digests {
		if d != want {
			t.Errorf("weights %s, want %s", d, want)
		}
	}
	if from == 0 || from > reached || c.interrupted && from != reached {
		t.Errorf("it has gone on from version %d, having reached %d", from, reached)
	}
	lost, err := checkpoint.Running(dir, job.Name)
	if err != nil || len(lost.Runs) > 0 && len(digests) == trainers {
		t.Errorf("at the end of the job it is noted as one that runs: %v, %v", lost, err)
	}
}

// flip changes a bit of the last byte of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// lose trains for some batches, and then no trainer is left. It gives the version that they had.
func (c *lostAll) lose(t *testing.T, server *ps.Server, job *schema.Job,
	has func(int) Config) (reached schema.Version) {
	const least = 20
	ctx, stop := context.WithCancel(testContext(t))
	defer stop()
	var mu sync.Mutex
	var asked atomic.Bool
	heard := make(chan struct{})
	var all sync.WaitGroup
	for i := range job.Trainers {
		all.Go(func() {
			s, err := Join(testContext(t), has(i), job)
			if err != nil {
				t.Error(err)
				return
			}
			killed := false
			err = s.Run(ctx, newToy(t, job), 1000, func(p Progress) {
				time.Sleep(time.Millisecond)
				if p.Batch < least {
					return
				}
				if asked.CompareAndSwap(false, true) { // before, the coordinator knows of nothing that could be lost
					poll(t, "the coordinator has heard of a version", func() bool {
						jobs := server.Stats().Jobs
						return slices.ContainsFunc(jobs, func(j ps.JobStatus) bool { return j.Name == job.Name && j.Batch > 2 })
					})
					close(heard)
				}
				<-heard
				if killed = !c.interrupted; killed {
					s.fail(errKilled)
				}
				stop()
			})
			mu.Lock()
			reached = max(reached, s.newest())
			mu.Unlock()
			if killed {
				die(s)
				return
			}
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if !c.interrupted {
				die(s)
			} else if err := s.Abort(ErrInterrupted); err != nil {
				t.Log(err)
			}
		})
	}
	all.Wait()
	return reached
}

// goOn has new trainers come, who know nothing. It gives the version that they begin with, and the weights of those who
// have not come too late for the job.
func (c *lostAll) goOn(t *testing.T, job *schema.Job, has func(int) Config, batches uint64) (from schema.Version,
	digests []string) {
	var mu sync.Mutex
	var all sync.WaitGroup
	joining, over := context.WithCancel(testContext(t))
	defer over()
	for i := range job.Trainers {
		if c.late && i == job.Trainers-1 {
			time.Sleep(2 * time.Second)
		}
		all.Go(func() {
			config := has(i)
			for {
				s, err := Join(joining, config, job)
				if err == nil {
					mu.Lock()
					if from == 0 || s.Version() < from { // later, newcomers may have all come together anew
						from = s.Version()
					}
					mu.Unlock()
					err = s.Run(testContext(t), newToy(t, job), batches-uint64(s.Version()), nil)
				}
				var digest [32]byte
				if err == nil {
					digest, err = s.Digest(testContext(t))
				}
				if err == nil {
					mu.Lock()
					digests = append(digests, fmt.Sprintf("%x", digest[:8]))
					mu.Unlock()
					if err = s.Close(); err != nil {
						t.Error(err)
					}
					time.AfterFunc(time.Second, over) // who comes now begins another one
					return
				}
				if s != nil {
					_ = s.Abort(err)
				}
				if joining.Err() != nil {
					return
				}
				if s == nil && errors.Is(err, &Refused{}) { // no place is free yet
					time.Sleep(300 * time.Millisecond)
					continue
				}
				t.Error(err)
				return
			}
		})
	}
	all.Wait()
	if len(digests) == 0 {
		t.Error("nobody has come to the end")
	}
	return from, digests
}

// A version is written as it was, although later batches change everything while it waits for the disk: full, and as
// what has changed since another.
func TestWhatIsKeptIsOfOneVersion(t *testing.T) {
	const lanes, of = 6, schema.Version(5)
	who := haver{apply: schema.ApplyMean, trainers: true, policy: schema.PolicyRecover}
	dir := t.TempDir()
	_, config := who.start(t, 1, checkpoint.Policy{Dir: dir, Every: time.Hour})
	job := who.job("resumed", 1, lanes)
	s := joinAll(t, config, job)[0]
	k := s.keeper.Load()
	run := func(batches uint64, then func(v schema.Version)) {
		t.Helper()
		if err := s.Run(testContext(t), newToy(t, job), batches, func(p Progress) { then(p.Version) }); err != nil {
			t.Fatal(err)
		}
	}
	for full := range 2 {
		var c *keptVersion
		run(9, func(v schema.Version) {
			if v == of+schema.Version(9*full) {
				c = k.copy(v)
			}
		})
		if all := c.rows.Of().All; all != (full == 0) {
			t.Errorf("version %d has everything: %v", c.version, all)
		}
		k.write(testContext(t), c)
		k.growth = checkpoint.Growth{}.With(false, 1<<40, 1) // an increment is worth while
		checkExport(t, dir, lanes)
	}
}

// What is wrong with a folder, or with what is in it, is one error that says what would be right.
func TestFoldersOfTrainersRefused(t *testing.T) {
	who := haver{apply: schema.ApplyMean, trainers: true, policy: schema.PolicyRecover}
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, config := who.start(t, 1, checkpoint.Policy{Dir: dir, Batches: 1})
	join := func(kept checkpoint.Policy, resume bool, job *schema.Job) error {
		c := config
		c.Checkpoints, c.Resume = kept, resume
		s, err := Join(testContext(t), c, job)
		if err == nil {
			err = errors.Join(errors.New("it has joined"), s.Close())
		}
		return err
	}
	job := who.job("kept", 1, 2)
	checkError(t, join(checkpoint.Policy{Dir: dir}, false, toyJob("kept", 1, 2, schema.ApplyUpdate)), ErrConfig,
		"checkpoint_dir "+dir, "shards have what is to be kept", "--checkpoint-dir")
	checkError(t, join(checkpoint.Policy{Dir: file}, false, job), ErrConfig, "checkpoint_dir "+file, "not a directory")
	checkError(t, join(checkpoint.Policy{Dir: dir, Every: time.Millisecond}, false, job), ErrConfig,
		"checkpoint_every 1ms: want 1s to 24h")
	checkError(t, join(checkpoint.Policy{Dir: dir}, true, job), &Refused{}, "job kept cannot be resumed",
		"none of its trainers has a durable version", "without --resume")
	checkError(t, join(checkpoint.Policy{}, true, job), &Refused{}, "job kept cannot be resumed")

	s, err := Join(testContext(t), config, job)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(testContext(t), newToy(t, job), 5, nil); err != nil {
		t.Fatal(err)
	}
	poll(t, "a version is durable", func() bool {
		found, _ := checkpoint.List(dir, job.Name)
		return len(found) > 0 && found[0].Err == nil
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other := who.job("kept", 1, 2)
	other.Seed = 8
	checkError(t, join(checkpoint.Policy{Dir: dir}, true, other), ErrConfig,
		"seed is 7 in the checkpoint and 8 in the job")
	damage(t, dir, job.Name)
	checkError(t, join(checkpoint.Policy{Dir: dir}, true, job), &Refused{}, "none of its trainers has a durable version")
}

// damage cuts the parts of all versions of a job.
func damage(t *testing.T, dir string, job schema.JobName) {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(dir, string(job), "*", "s0.safetensors"))
	if err != nil || len(parts) == 0 {
		t.Fatal(parts, err)
	}
	for _, part := range parts {
		if err := os.Truncate(part, 100); err != nil {
			t.Fatal(err)
		}
	}
}

// Of several trainers that have all of a job all resume, or none.
func TestTrainersThatHaveAllResumeAllOrNone(t *testing.T) {
	who := haver{apply: schema.ApplyMean, trainers: true, policy: schema.PolicyRecover}
	server := startServerWith(t, ps.Config{})
	config := testConfig(t, server)
	config.Resume = true
	ctx, stop := context.WithCancel(testContext(t))
	joined := make(chan error, 1)
	go func() {
		_, err := Join(ctx, config, who.job("halves", 2, 2))
		joined <- err
	}()
	poll(t, "the first has joined", func() bool { return len(server.Stats().Jobs) > 0 })
	config.Resume = false
	_, err := Join(testContext(t), config, who.job("halves", 2, 2))
	checkError(t, err, &Refused{}, "job halves is resumed, and this trainer does not resume",
		"want all trainers to resume")
	stop()
	checkError(t, <-joined, context.Canceled)
}
