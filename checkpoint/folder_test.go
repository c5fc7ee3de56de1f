package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gradbus/schema"
)

func flip(t testing.TB, path string) {
	t.Helper()
	whole, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, flipped(whole, len(whole)/2, 1), 0o600))
}

// The two newest are damaged, each in its own way: the third is taken, and both are named.
func TestNewestPassesOverDamage(t *testing.T) {
	dir, f := saved(t, at(1), at(2), at(3), at(4))
	must(t, os.Remove(completePath(dir, "films", at(4)))) // incomplete: not even named
	flip(t, partPath(dir, "films", at(3), 1))
	flip(t, completePath(dir, "films", at(2)))
	m, skipped, err := newest(t.Context(), dir, f.job)
	if err != nil || m.ID != at(1) || len(skipped) != 2 {
		t.Fatalf("%+v, %v, %v", m, skipped, err)
	}
	for i, id := range []ID{at(3), at(2)} {
		wants(t, "skipped", skipped[i], ErrDamaged, "checkpoint "+id.String())
	}
	other := newFleet(t, testBackend(t), testJob(), 1)
	other.restore(t, dir, m)
	if got, want := other.text(t), f.text(t); got != want {
		t.Error(firstDifference(got, want))
	}
}

// A search that is to end reads no further, and takes nothing for damaged by that.
func TestNewestEndsWithItsContext(t *testing.T) {
	dir, f := saved(t, at(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if m, skipped, err := newest(ctx, dir, f.job); m != nil || len(skipped) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v, %v, want that it ends with its context", m, skipped, err)
	}
}

// Another manifest is an error that names the field; what a job may change is none.
func TestNewestComparesManifests(t *testing.T) {
	dir, _ := saved(t, at(1))
	for says, change := range map[string]func(j *schema.Job){
		"optimizer.lr is 0.1 in the checkpoint and 0.2 in the job": func(j *schema.Job) { j.Optimizer.LR = 0.2 },
		"tables[0].rows is 101 in the checkpoint and 102 in the":   func(j *schema.Job) { j.Tables[0].Rows = 102 },
		"seed is 7 in the checkpoint and 8 in the job":             func(j *schema.Job) { j.Seed = 8 },
		"lanes is 1 in the checkpoint and 4 in the job":            func(j *schema.Job) { j.Lanes = 4 },
	} {
		job := testJob()
		change(job)
		m, _, err := newest(t.Context(), dir, job)
		if wants(t, says, err, ErrOther, says); m != nil {
			t.Errorf("%s: %+v", says, m)
		}
	}
	job := testJob()
	job.ChunkBytes *= 2
	job.Trainers = 2
	m, _, err := newest(t.Context(), dir, job)
	if err != nil || m.ID != at(1) || m.Job.ChunkBytes != schema.ChunkBytesMin {
		t.Errorf("%v, %v", m, err)
	}
}

// The dense values that a program began with may be others, since they are of no version but the first. A saved model
// that it named may not.
func TestNewestComparesStarts(t *testing.T) {
	with := func(digest string, dense bool) *schema.Job {
		job := testJob()
		job.Start = &schema.StartModel{Digest: strings.Repeat(digest, 64), Batches: 1, Dense: dense}
		return job
	}
	must(t, (&Manifest{Job: with("a", true)}).CheckSame(with("b", true)))
	for what, other := range map[string]*schema.Job{"another model": with("b", false), "dense values": with("a", true),
		"none": testJob()} {
		wants(t, what, (&Manifest{Job: with("a", false)}).CheckSame(other), ErrOther, "start")
	}
}

func TestFoldersThatCannotBeRead(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	if epoch, err := NextEpoch(missing, "films"); err != nil || epoch != 1 {
		t.Errorf("%d, %v", epoch, err)
	}
	_, err := Jobs(missing)
	wants(t, "jobs", err, fs.ErrNotExist, missing)
	if all, err := List(missing, "films"); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	_, skipped, err := newest(t.Context(), missing, testJob())
	if wants(t, "newest", err, ErrNone, missing); len(skipped) != 0 {
		t.Error(skipped)
	}
	file := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(file, nil, 0o600))
	for what, ask := range map[string]func(dir string) error{
		"jobs":   func(dir string) error { _, err := Jobs(dir); return err },
		"list":   func(dir string) error { _, err := List(dir, "films"); return err },
		"epoch":  func(dir string) error { _, err := NextEpoch(dir, "films"); return err },
		"newest": func(dir string) error { _, _, err := newest(t.Context(), dir, testJob()); return err },
		"prune":  func(dir string) error { _, err := Prune(dir, "films", 2); return err },
	} {
		wants(t, what, ask(file), syscall.ENOTDIR, file)
	}
	for _, name := range []schema.JobName{"../films", "", "Films"} {
		_, err := List(file, name)
		wants(t, string(name), err, nil, "want 1 to 63 of a-z")
	}
}

// Whoever may not read a checkpoint does not take an older one.
func TestNewestThatMayNotBeRead(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	dir, f := saved(t, at(1), at(2))
	for _, path := range []string{partPath(dir, "films", at(2), 0), completePath(dir, "films", at(2))} {
		must(t, os.Chmod(path, 0))
		_, skipped, err := newest(t.Context(), dir, f.job)
		if wants(t, path, err, fs.ErrPermission, path); len(skipped) > 0 {
			t.Error(skipped)
		}
		must(t, os.Chmod(path, 0o600))
	}
}

// The state of each is told, what is no checkpoint is not, and epochs go on after the incomplete.
func TestList(t *testing.T) {
	dir, f := saved(t, at(1), at(2), at(3), at(4))
	flip(t, completePath(dir, "films", at(2)))
	must(t, os.Truncate(partPath(dir, "films", at(3), 1), 4096))
	f.savePart(t, dir, at(7), 0)
	resealed(t, dir, at(4), `"format": 1`, `"format": 7`)
	for _, name := range []string{"lost+found", "films/lost+found", "films/x", "empty"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(dir, "films", at(9).String()), nil, 0o600)) // a file
	all, err := List(dir, "films")
	must(t, err)
	want := []struct {
		id  ID
		err error
	}{{at(7), ErrIncomplete}, {at(4), ErrNewer}, {at(3), ErrDamaged}, {at(2), ErrDamaged}, {at(1), nil}}
	if len(all) != len(want) {
		t.Fatalf("%+v", all)
	}
	for i, w := range want {
		if all[i].ID != w.id || (all[i].Manifest == nil) != (w.err != nil) || all[i].Bytes == 0 {
			t.Errorf("%d: %+v, want %v", i, all[i], w.id)
		}
		if w.err != nil {
			wants(t, w.id.String(), all[i].Err, w.err, w.id.String())
		}
	}
	if m := all[4].Manifest; all[4].Bytes <= m.bytes() || all[4].Bytes > m.bytes()+100_000 {
		t.Errorf("%d bytes, of which parts are %d", all[4].Bytes, m.bytes())
	}
	if epoch, err := NextEpoch(dir, "films"); err != nil || epoch != 8 {
		t.Errorf("%d, %v", epoch, err)
	}
	if jobs, err := Jobs(dir); err != nil || !slices.Equal(jobs, []schema.JobName{"films"}) {
		t.Errorf("%v, %v", jobs, err)
	}
}

func idsIn(t testing.TB, dir string) (all []ID) {
	t.Helper()
	found, err := List(dir, "films")
	must(t, err)
	for _, f := range found {
		all = append(all, f.ID)
	}
	return all
}

// It keeps what it says, whatever an interruption has left, and leaves what it cannot judge.
func TestPrune(t *testing.T) {
	dir, f := saved(t, at(1), at(2), at(3), at(5), at(7), at(8))
	for _, keep := range []int{1, 0, -1} {
		_, err := Prune(dir, "films", keep)
		wants(t, "keep", err, nil, "want at least 2")
	}
	must(t, os.Remove(completePath(dir, "films", at(2)))) // a Prune was interrupted
	flip(t, completePath(dir, "films", at(7)))            // damaged, between two that are kept
	f.savePart(t, dir, at(6), 0)                          // given up
	f.savePart(t, dir, at(9), 0)                          // on its way
	f.savePart(t, dir, at(10), 1)
	resealed(t, dir, at(1), `"format": 1`, `"format": 4`)
	if _, _, err := newest(t.Context(), dir, f.job); err != nil {
		t.Error(err)
	}
	removed, err := Prune(dir, "films", 2)
	if err != nil || !slices.Equal(removed, []ID{at(7), at(6), at(3), at(2)}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	if got, want := idsIn(t, dir), []ID{at(10), at(9), at(8), at(5), at(1)}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if removed, err = Prune(dir, "films", 2); err != nil || len(removed) > 0 {
		t.Errorf("again: %v, %v", removed, err)
	}
	if removed, err = Prune(dir, "none", 2); err != nil || len(removed) > 0 {
		t.Errorf("no such job: %v, %v", removed, err)
	}
	none := t.TempDir() // with none that is complete, nothing goes
	f.savePart(t, none, at(1), 0)
	f.savePart(t, none, at(2), 0)
	if removed, err = Prune(none, "films", 2); err != nil || len(removed) > 0 {
		t.Errorf("none complete: %v, %v", removed, err)
	}
}

// Nothing goes before the manifest, and what an interruption leaves after that does not look whole.
func TestPruneBeginsWithTheManifest(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root removes from any folder")
	}
	dir, f := saved(t, at(1), at(2), at(3), at(4))
	stays := func(folder string) { // a folder in which something is that cannot be removed
		must(t, os.Mkdir(folder, 0o700))
		must(t, os.WriteFile(filepath.Join(folder, "f"), nil, 0o600))
		must(t, os.Chmod(folder, 0o500))
		t.Cleanup(func() { os.Chmod(folder, 0o700) })
	}
	manifest := completePath(dir, "films", at(1)) // of the first the manifest stays
	must(t, os.Remove(manifest))
	stays(manifest)
	rest := filepath.Join(filepath.Dir(completePath(dir, "films", at(2))), "more") // of the second something else
	stays(rest)
	for range 2 { // newest first
		removed, err := Prune(dir, "films", 2)
		wants(t, "a file that stays", err, fs.ErrPermission, "prune checkpoint "+at(2).String())
		if len(removed) > 0 {
			t.Errorf("removed %v", removed)
		}
	}
	_, err := Open(dir, "films", at(2))
	wants(t, "the rest", err, ErrIncomplete)
	must(t, os.Chmod(rest, 0o700))
	removed, err := Prune(dir, "films", 2)
	if wants(t, "a manifest that stays", err, fs.ErrPermission, "prune checkpoint "+at(1).String()); !slices.Equal(removed,
		[]ID{at(2)}) {
		t.Errorf("removed %v", removed)
	}
	for shard := range f.owners {
		if _, err := os.Stat(partPath(dir, "films", at(1), shard)); err != nil {
			t.Errorf("a part went before the manifest: %v", err)
		}
	}
	must(t, os.Chmod(manifest, 0o700))
	if removed, err = Prune(dir, "films", 2); err != nil || !slices.Equal(removed, []ID{at(1)}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	for _, name := range files(t, dir) {
		if strings.Contains(name, at(1).String()) || strings.Contains(name, at(2).String()) {
			t.Errorf("left %s", name)
		}
	}
}
