package local_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/checkpoint"
	"gradbus/local"
	"gradbus/schema"
	"gradbus/trainer"
)

// A version that a trainer asks for is on the disk when the call returns, and a job resumed from it, on another number of
// shards and with another number of trainers of the same lanes, has the bits of one that was not interrupted.
func TestCheckpoint(t *testing.T) {
	none, dir := func(gradients) {}, t.TempDir()
	join := func(s *local.Shards, resume bool) *trainer.Session {
		c := s.Config()
		c.Resume = resume
		job := readableJob()
		job.Optimizer.Kind = schema.OptimizerAdam
		session, err := trainer.Join(t.Context(), c, job)
		must(t, err)
		return session
	}
	digest := func(s *trainer.Session) [32]byte {
		d, err := s.Digest(t.Context())
		must(t, err)
		return d
	}
	whole := join(start(t, local.Options{Shards: 2}), false)
	must(t, trainReadable(t.Context(), whole, 0, 5, none))
	want := digest(whole)
	must(t, whole.Close())

	first := start(t, local.Options{Shards: 2})
	session := join(first, false)
	if _, err := session.Checkpoint(t.Context()); !errors.Is(err, trainer.ErrOrder) {
		t.Errorf("before a batch: %v, want ErrOrder", err)
	}
	must(t, trainReadable(t.Context(), session, 0, 1, none))
	if _, err := session.Checkpoint(t.Context()); err == nil || !strings.Contains(err.Error(), "keeps no checkpoints") {
		t.Errorf("without a folder: %v", err)
	}
	must(t, first.SetFolder(dir))
	if err := first.SetFolder(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("another folder: %v", err)
	}
	for n := range 3 {
		if n > 0 {
			must(t, trainReadable(t.Context(), session, n, 1, none))
		}
		first.SetProgram("readable", []byte{byte(n)})
		for range 2 { // once more changes nothing
			if v, err := session.Checkpoint(t.Context()); err != nil || v != schema.Version(n+1) {
				t.Fatalf("version %d, %v: want %d", v, err, n+1)
			}
		}
	}
	found, err := checkpoint.List(dir, "readable")
	must(t, err)
	if len(found) != 2 || slices.ContainsFunc(found, func(f checkpoint.Found) bool { return f.Err != nil }) {
		t.Errorf("%v: want the two newest versions", found)
	}
	must(t, session.Close())

	for _, shards := range []int{1, 3} {
		s := start(t, local.Options{Shards: shards})
		must(t, s.SetFolder(dir))
		session := join(s, true)
		if v := session.Version(); v != 3 {
			t.Fatalf("resumed at version %d, want 3", v)
		}
		if program, err := s.Program("readable"); err != nil || !slices.Equal(program, []byte{2}) {
			t.Errorf("program's part %v, %v", program, err)
		}
		must(t, trainReadable(t.Context(), session, 3, 2, none))
		if digest(session) != want {
			t.Errorf("%d shards: not the weights of five batches in one run", shards)
		}
		must(t, session.Close())
	}
}

// A version that cannot be written is refused with the reason, and the session continues: later it can.
func TestCheckpointFails(t *testing.T) {
	s, dir := start(t, local.Options{Shards: 2}), filepath.Join(t.TempDir(), "versions")
	session, err := trainer.Join(t.Context(), s.Config(), readableJob())
	must(t, err)
	must(t, s.SetFolder(dir))
	for n, blocks := range []string{filepath.Join(dir, "readable"), filepath.Join(dir, "readable",
		checkpoint.ID{Epoch: 1, Run: session.RunID(), Version: 2}.String())} { // the folder of the job, and of a version
		must(t, trainReadable(t.Context(), session, n, 1, func(gradients) {}))
		must(t, os.WriteFile(blocks, nil, 0o600))
		if _, err := session.Checkpoint(t.Context()); !errors.Is(err, &trainer.Refused{}) {
			t.Fatalf("%v: want a refusal", err)
		}
		must(t, os.Remove(blocks))
		if _, err := session.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	must(t, trainReadable(t.Context(), session, 2, 1, func(gradients) {}))
	must(t, session.Close())
}

// Shards that have nothing of a job are part of its versions, too.
func TestCheckpointWithIdleShards(t *testing.T) {
	s, job := start(t, local.Options{Shards: 3, CheckpointDir: t.TempDir()}), job(1)
	job.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1}
	for version, resume := range []bool{false, true, true} {
		c := s.Config()
		c.Resume = resume
		session, err := trainer.Join(t.Context(), c, job)
		must(t, err)
		must(t, session.Run(t.Context(), ones{job}, 1, nil))
		if v, err := session.Checkpoint(t.Context()); err != nil || v != schema.Version(version+1) {
			t.Fatalf("version %d, %v: want %d", v, err, version+1)
		}
		if w := session.Param("w"); w[0] != -float32(version+1) {
			t.Errorf("w %v after %d batches of rate 1", w, version+1)
		}
		must(t, session.Close())
	}
}

// One trainer of several asks for a version while the others compute on, as far as they can.
func TestCheckpointByOneTrainer(t *testing.T) {
	for consistency, ahead := range map[string]int{schema.ConsistencySync: 0, schema.ConsistencyBounded: 2} {
		s := start(t, local.Options{Shards: 2, CheckpointDir: t.TempDir()})
		job := job(2)
		job.Consistency, job.Ahead = consistency, ahead
		err := s.Run(t.Context(), 2, func(ctx context.Context, index int, c trainer.Config) error {
			session, err := trainer.Join(ctx, c, job)
			if err != nil {
				return err
			}
			for n := range 4 {
				if err := session.Run(ctx, ones{job}, 3, nil); err != nil {
					return err
				}
				if index != n%2 {
					continue
				}
				if v, err := session.Checkpoint(ctx); err != nil || int(v) != 3*(n+1) {
					t.Errorf("%s: version %d, %v: want %d", consistency, v, err, 3*(n+1))
				}
			}
			return session.Close()
		})
		if err != nil {
			t.Errorf("%s: %v", consistency, err)
		}
	}
}
