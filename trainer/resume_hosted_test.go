package trainer

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
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
