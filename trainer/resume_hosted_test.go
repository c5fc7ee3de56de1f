package trainer

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

func moduleDigest(t *testing.T, s *Session) [32]byte {
	t.Helper()
	digest, err := s.modules.all[len(s.modules.all)-1].Digest(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// newestDurable is the newest version that is durable; 0 where none is.
func newestDurable(dir string, name schema.JobName) schema.Version {
	all, _ := checkpoint.List(dir, name)
	for _, f := range all {
		if f.Manifest != nil {
			return f.ID.Version
		}
	}
	return 0
}

// Where a hosted module is part of a job in sync, it is written down as of the version that the rest is of, and the job
// goes on from there as one that nothing has happened to.
func TestResumeBesideHosted(t *testing.T) { testkit.Waits(t, resumeBesideHosted) }

func resumeBesideHosted(t *testing.T) {
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		job, body := bodyJob("beside-"+apply, 1, apply)
		kept := ps.Config{Shards: 1, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 1}}
		server := startServerWith(t, kept)
		s := joinAll(t, testConfig(t, server), job)[0]
		reached := uint64(0)
		for found := false; !found; reached += 10 {
			if err := trainBody(testContext(t), s, body, 10); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			found = newestDurable(kept.Checkpoints.Dir, job.Name) > 0
		}
		server.Close()
		batches := int(reached) + 4
		quiet := joinAll(t, testConfig(t, startServerWith(t, ps.Config{})), job)[0]
		if err := trainBody(testContext(t), quiet, body, batches); err != nil {
			t.Fatal(err)
		}
		want, wantRest := moduleDigest(t, quiet), digestsOf(t, []*Session{quiet})[0]
		config := testConfig(t, startServerWith(t, kept))
		config.Resume = true
		s, err := Join(testContext(t), config, job)
		if err != nil {
			t.Fatalf("%s: %v", apply, err)
		}
		if v := s.Version(); v == 0 || uint64(v) >= reached {
			t.Errorf("%s: resumed at version %d after %d batches", apply, v, reached)
		}
		checkHostedExport(t, kept.Checkpoints.Dir, s)
		if err := trainBody(testContext(t), s, body, batches-int(s.Version())); err != nil {
			t.Fatal(err)
		}
		if got := moduleDigest(t, s); got != want {
			t.Errorf("%s: weights of the module %x, want %x", apply, got[:6], want[:6])
		}
		if got, err := s.Digest(testContext(t)); err != nil || got != wantRest {
			t.Errorf("%s: weights %x, want %x: %v", apply, got[:6], wantRest[:6], err)
		}
		leaveAll(t, []*Session{s})
	}
}

// checkHostedExport compares what a checkpoint is exported as with what a session saves that has just begun with it:
// the module is part of both.
func checkHostedExport(t *testing.T, dir string, s *Session) {
	t.Helper()
	saved, exported := filepath.Join(t.TempDir(), "saved"), filepath.Join(t.TempDir(), "exported")
	found, err := checkpoint.List(dir, s.job.Name)
	for _, f := range found {
		if f.Manifest != nil && f.ID.Version == s.Version() {
			err = errors.Join(err, f.Manifest.Export(dir, exported))
		}
	}
	err = errors.Join(err, s.Save(testContext(t), saved))
	one, reading := os.ReadFile(saved)
	other, reading2 := os.ReadFile(exported)
	if err = errors.Join(err, reading, reading2); err != nil || !bytes.Equal(one, other) {
		t.Errorf("saved in %d bytes and exported in %d, or others: %v", len(one), len(other), err)
	}
	changed, path := bytes.Clone(one), filepath.Join(t.TempDir(), "changed")
	changed[len(changed)-2] ^= 1 // of the last value, a module's
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenModel(path); !errors.Is(err, ErrModel) {
		t.Errorf("a changed file: %v, want ErrModel", err)
	}
	m, err := OpenModel(exported)
	if err != nil || len(m.Param("head:0.weight")) != 12 {
		t.Errorf("the exported model has no weights of the module: %v", err)
	}
}

// The trainers of a hosted module go back to its newest durable version when one is lost: under policy wait together
// with a new one, and under recover those that are left, until that comes.
func TestHostedGoesBack(t *testing.T) {
	testkit.Beside(t)
	for policy, sessions := range map[string]int{schema.PolicyWait: 3, schema.PolicyRecover: 4} {
		t.Run(policy, func(t *testing.T) { testkit.Waits(t, func(t *testing.T) { hostedGoesBack(t, policy, sessions) }) })
	}
}

// hostedGoesBack has the one who stays and the new one have so many sessions.
func hostedGoesBack(t *testing.T, policy string, sessions int) {
	const batches = 200
	job := moduleJob("back", 2, schema.ConsistencySync)
	job.Policy = policy
	kept := ps.Config{Shards: 2, Deadline: 3 * time.Second,
		Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 10}}
	config := testConfig(t, startServerWith(t, kept))
	began, steps := make([][]schema.Version, 3), make([]schema.Version, 3)
	var all sync.WaitGroup
	for i := range began {
		all.Go(func() {
			if i == 2 { // in the place of the one that is lost
				time.Sleep(6 * time.Second)
			}
			err := trainOnce(t, config, job, func(s *Session) (err error) {
				for goesOn := true; goesOn && !errors.Is(err, errKilled); { // in each run of the job
					began[i] = append(began[i], s.Version())
					if steps[i], err = hostedBatches(t, s, batches, i == 0); err == nil {
						return nil
					}
					_, broken := s.Wait(testContext(t))
					goesOn = broken == nil
				}
				return err
			})
			if err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	all.Wait()
	for i := 1; i < 3; i++ {
		last := began[i][len(began[i])-1]
		if last == 0 || len(began[1])+len(began[2]) != sessions || max(steps[1], steps[2]) < 2*batches {
			t.Errorf("trainer %d began at versions %v; the module has had %d steps, want %d or more", i, began[i], steps[i],
				2*batches)
		}
	}
}

// hostedBatches trains to the end, or ends without a word when some versions are durable. It gives how many steps the
// module has had.
func hostedBatches(t *testing.T, s *Session, batches uint64, dies bool) (steps schema.Version, err error) {
	m, err := s.Module("net")
	first, lanes := s.Lanes()
	for b := uint64(s.Version()); b < batches && err == nil; b++ {
		for l := 0; l < lanes && err == nil; l += 2 {
			var step moduleStep
			step, err = driveBatch(testContext(t), m, b, uint64(first)+uint64(l))
			steps = max(steps, step.made)
		}
		time.Sleep(50 * time.Millisecond)
		if dies && b == 80 {
			return steps, errKilled
		}
	}
	return steps, err
}
