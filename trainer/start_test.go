package trainer

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gradbus/schema"
)

// savedToy is the model of a toy before its first batch, by way of a file, and its digest after some.
func savedToy(t *testing.T, c Config, job *schema.Job, batches uint64) (m *Model, trained [32]byte) {
	t.Helper()
	s := joinAll(t, c, job)[0]
	path := filepath.Join(t.TempDir(), "toy.safetensors")
	if err := s.Save(testContext(t), path); err != nil {
		t.Fatal(err)
	}
	if err := runAll(testContext(t), []*Session{s}, newToy(t, job), batches)[0]; err != nil {
		t.Fatal(err)
	}
	trained, err := s.Digest(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if m, err = OpenModel(path); err != nil {
		t.Fatal(err)
	}
	return m, trained
}

// startedToy is a toy that draws nothing but zeros.
func startedToy(name string, trainers, lanes int, apply string) *schema.Job {
	job := toyJob(name, trainers, lanes, apply)
	for i := range job.Parameters {
		job.Parameters[i].Init = schema.Zeros()
	}
	for i := range job.Tables {
		job.Tables[i].Init = schema.Zeros()
	}
	return job
}

// A job that begins with saved values has their bits at once, and is from there on the job that drew them: whoever
// steps, however tables lie, whatever the optimizer keeps, and in however many batches the values came.
func TestStartFromModel(t *testing.T) {
	const lanes, batches = 5, 6
	config := []Config{testConfig(t, startServer(t, 1)), testConfig(t, startServer(t, 2)),
		testConfig(t, startServer(t, 3))}
	changes := map[string]func(*schema.Job){
		"momentum": func(*schema.Job) {},
		"clipped": func(j *schema.Job) {
			for i := range j.Tables {
				j.Tables[i].PerRow = true
			}
			j.Optimizer.Clip = &schema.Clipping{Kind: schema.ClipValue, Max: 0.05}
		},
	}
	changes["clipped together"] = func(j *schema.Job) {
		j.Apply, j.Optimizer.Clip = schema.ApplyMean, &schema.Clipping{Kind: schema.ClipGlobal, Max: 0.05}
		for i := range j.Tables {
			j.Tables[i].Replicated = true
		}
	}
	for _, name := range []string{"adam", "adamw", "exact rows, and by value", "of its own"} {
		changes[name] = optimizerJobs[name]
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			drawn := toyJob("drawn-"+fmt.Sprint(len(name)), 1, lanes, schema.ApplyUpdate)
			change(drawn)
			m, want := savedToy(t, config[1], drawn, batches)
			for i, c := range []struct {
				shards, trainers int
				apply, reduce    string
				replicated       bool
				batches          int
			}{
				{1, 1, schema.ApplyUpdate, "", false, 1}, {2, 2, schema.ApplyUpdate, "", false, 3},
				{3, 2, schema.ApplyMean, "", false, 2},
				{3, 1, schema.ApplyUpdate, "", false, 40}, {1, 2, schema.ApplyMean, "", true, 3},
				{2, 2, schema.ApplyMean, schema.ReduceTrainers, true, 2},
				{2, 4, schema.ApplyMean, schema.ReduceTrainers, false, 1},
			} {
				if drawn.Apply == schema.ApplyMean && !c.replicated {
					continue // norms are of replicated tables alone
				}
				job := startedToy(fmt.Sprintf("started-%d-%d", len(name), i), c.trainers, lanes, c.apply)
				if i == 3 {
					job.OnNonfinite = schema.NonfiniteSkip
				}
				job.Reduce = c.reduce
				for k := range job.Tables {
					job.Tables[k].Replicated = c.replicated
				}
				change(job)
				job.Start = &schema.StartModel{Digest: hex.EncodeToString(m.digest[:]), Batches: c.batches}
				with := config[c.shards-1]
				with.From = m
				checkStarted(t, fmt.Sprintf("%+v", c), joinAll(t, with, job), m.digest, want, batches)
			}
		})
	}
}

// checkStarted compares the weights of a job that begins with a model, then and after some batches.
func checkStarted(t *testing.T, what string, sessions []*Session, begins, want [32]byte, batches uint64) {
	t.Helper()
	digests := func(when string, want [32]byte) {
		var all sync.WaitGroup
		for i, s := range sessions {
			all.Go(func() {
				if got, err := s.Digest(testContext(t)); err != nil || got != want {
					t.Errorf("%s, trainer %d, %s: weights %x, want %x: %v", what, i, when, got[:6], want[:6], err)
				}
			})
		}
		all.Wait()
	}
	digests("at the start", begins)
	if v, n := sessions[0].Version(), sessions[0].Stats().Batches; v != 0 || n != 0 {
		t.Errorf("%s: version %d after %d batches at the start, want none", what, v, n)
	}
	for i, err := range runAll(testContext(t), sessions, newToy(t, sessions[0].Job()), batches) {
		if err != nil {
			t.Errorf("%s, trainer %d: %v", what, i, err)
		}
	}
	digests("trained", want)
	if v, n := sessions[0].Version(), sessions[0].Stats().Batches; v != schema.Version(batches) || n != batches {
		t.Errorf("%s: version %d after %d batches, want %d", what, v, n, batches)
	}
}

// Bounded begins as sync does, also with negative zeros, and a trainer without lane 0 without a file.
func TestBoundedStartsFromModel(t *testing.T) {
	c := testConfig(t, startServer(t, 2))
	m, _ := savedToy(t, c, toyJob("drawn", 1, 4, schema.ApplyUpdate), 1)
	minus := float32(math.Copysign(0, -1))
	m.params[0][3], m.params[1][0], m.tables[0][7], m.tables[1][0] = minus, minus, minus, minus
	var err error
	if m.digest, err = m.weigh(); err != nil {
		t.Fatal(err)
	}
	job := startedToy("bounded-started", 2, 4, schema.ApplyUpdate)
	job.Consistency, job.Ahead = schema.ConsistencyBounded, 2
	job.Start = &schema.StartModel{Digest: hex.EncodeToString(m.digest[:]), Batches: 7}
	sessions, errs := make([]*Session, 2), make([]error, 2)
	var all sync.WaitGroup
	for i := range sessions {
		with := c
		with.Member = schema.TrainerMember(i)
		if i == 0 {
			with.From = m
		}
		all.Go(func() {
			if sessions[i], errs[i] = Join(testContext(t), with, job); errs[i] != nil {
				return
			}
			if got, err := sessions[i].Digest(testContext(t)); err != nil || got != m.digest {
				t.Errorf("trainer %d: weights %x, want %x: %v", i, got[:6], m.digest[:6], err)
			}
			errs[i] = sessions[i].Close()
		})
	}
	all.Wait()
	if errs[0] != nil || errs[1] != nil {
		t.Error(errs)
	}
}

// What cannot begin with a model says why, before anything is sent; who has lane 0 and no model says so to all.
func TestStartThatIsRefused(t *testing.T) {
	c := testConfig(t, startServer(t, 1))
	m, _ := savedToy(t, c, toyJob("drawn", 1, 2, schema.ApplyUpdate), 1)
	nan := *m
	nan.params = append([][]float32{{float32(math.NaN())}}, m.params[1:]...)
	for want, change := range map[string]func(*schema.Job, *Config){
		`parameter "bias": the model's has the shape [4]: want [5]`: func(j *schema.Job, _ *Config) {
			j.Parameters[3].Shape = []int{5}
		},
		`table "words": the model's has the shape [97 5]: want [98 5]`: func(j *schema.Job, _ *Config) {
			j.Tables[0].Rows++
		},
		`table "other": the model has none of that name`: func(j *schema.Job, _ *Config) {
			j.Tables[0].Name = "other"
		},
		`the model has a table words of shape [97 5]: the job has none`: func(j *schema.Job, _ *Config) {
			j.Tables[0].Name = "other"
		},
		`wire.gradients float32`: func(j *schema.Job, _ *Config) {
			j.Wire.Gradients = schema.GradientsBFloat16
		},
		`consistency sync, bounded or grouped`: func(j *schema.Job, _ *Config) {
			j.Consistency = schema.ConsistencyAsync
		},
		`begins with a model whose digest is ` + strings.Repeat("ab", 32): func(j *schema.Job, _ *Config) {
			j.Start = &schema.StartModel{Digest: strings.Repeat("ab", 32), Batches: 1}
		},
		`value 0 is NaN: want finite values`: func(_ *schema.Job, c *Config) { c.From = &nan },
		`start.batches: 0: want 1 to`: func(j *schema.Job, _ *Config) {
			j.Start = &schema.StartModel{Digest: hex.EncodeToString(m.digest[:])}
		},
		`start.digest: "AB": want 64`: func(j *schema.Job, c *Config) {
			c.From, j.Start = nil, &schema.StartModel{Digest: "AB", Batches: 1}
		},
		`t0 has lane 0: want it as Config.From`: func(j *schema.Job, c *Config) {
			c.From, j.Start = nil, &schema.StartModel{Digest: strings.Repeat("ab", 32), Batches: 1}
		},
	} {
		job, with := startedToy("refused", 1, 2, schema.ApplyUpdate), c
		with.From = m
		change(job, &with)
		if _, err := Join(testContext(t), with, job); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
	job := startedToy("differs", 2, 2, schema.ApplyUpdate)
	job.Start = &schema.StartModel{Digest: strings.Repeat("ab", 32), Batches: 1}
	ctx, stop := context.WithCancel(testContext(t))
	done, there := make(chan error), make(chan struct{})
	first := c
	first.OnWaiting = func(int) { close(there) } // once: nobody else is admitted
	go func() { _, err := Join(ctx, first, job); done <- err }()
	<-there
	c.From = m
	_, err := Join(testContext(t), c, startedToy("differs", 2, 2, schema.ApplyUpdate))
	checkError(t, err, &Refused{}, "start.digest", strings.Repeat("ab", 32))
	stop()
	checkError(t, <-done, context.Canceled)
}

// A job that begins with dense values alone draws its tables, and is from there on the job that drew all of it.
func TestStartFromDenseValues(t *testing.T) {
	const lanes, batches = 5, 4
	c := testConfig(t, startServer(t, 2))
	m, want := savedToy(t, c, toyJob("drawn", 1, lanes, schema.ApplyUpdate), batches)
	c.Dense = map[string][]float32{}
	for i, p := range m.job.Parameters {
		c.Dense[p.Name] = m.params[i]
	}
	for i, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		job := toyJob(fmt.Sprintf("dense-%d", i), i+1, lanes, apply)
		job.Tables[1].Replicated = i == 1
		for k := range job.Parameters {
			job.Parameters[k].Init = schema.Zeros()
		}
		checkStarted(t, apply, joinAll(t, c, job), m.digest, want, batches)
	}
}

// Trainers that begin with other dense values are told what would be right, and so is one whose values are not those of
// the manifest.
func TestDenseValuesThatAreRefused(t *testing.T) {
	c := testConfig(t, startServer(t, 1))
	for want, dense := range map[string]map[string][]float32{
		`1 values of parameter "p": want 2`: {"p": {1}},
		"want the 1 of the manifest alone":  {"p": {1, 2}, "q": {1}},
		"want finite values":                {"p": {1, float32(math.NaN())}},
	} {
		c.Dense = dense
		if _, err := Join(testContext(t), c, pairsJob("refused")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
	job := pairsJob("seeds")
	job.Trainers = 2
	ctx, stop := context.WithCancel(testContext(t))
	done, there := make(chan error), make(chan struct{})
	first := c
	first.Dense, first.OnWaiting = map[string][]float32{"p": {1, 2}}, func(int) { close(there) }
	go func() { _, err := Join(ctx, first, job); done <- err }()
	<-there
	c.Dense = map[string][]float32{"p": {1, 3}}
	_, err := Join(testContext(t), c, job)
	checkError(t, err, &Refused{}, "start.digest", "seed them alike")
	stop()
	checkError(t, <-done, context.Canceled)
}
