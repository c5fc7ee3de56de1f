package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"gradbus/internal/regular"
	"gradbus/schema"
)

func TestRunningIsKnownUntilItsEnd(t *testing.T) {
	dir := t.TempDir()
	check := func(what string, want uint64, there bool) {
		t.Helper()
		lost, err := Running(dir, "j")
		if must(t, err); !there && lost.Runs == nil {
			return
		}
		if !there || len(lost.Runs) == 0 || uint64(lost.Runs[0]) != want || lost.Since != 3 {
			t.Errorf("%s: %v; want %d, %v", what, lost, want, there)
		}
	}
	check("before", 0, false)
	must(t, End(dir, "j", 1))
	must(t, Begin(dir, "j", 7, 3, 2))
	check("begun", 7, true)
	must(t, Begin(dir, "j", 1<<63+8, 3, 2))
	check("begun again", 1<<63+8, true)
	must(t, End(dir, "j", 7)) // of the one before
	check("after the end of another", 1<<63+8, true)
	path := filepath.Join(dir, "j", "running")
	long := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(path, long, long))
	must(t, Leave(dir, "j", 7)) // likewise
	if lost, err := Running(dir, "j"); err != nil || time.Since(lost.At) < time.Minute {
		t.Errorf("after another was left: %v, %v", lost, err)
	}
	must(t, Leave(dir, "j", 1<<63+8))
	if lost, err := Running(dir, "j"); err != nil || time.Since(lost.At) > time.Minute {
		t.Errorf("after it was left: %v, %v", lost, err)
	}
	check("left", 1<<63+8, true)
	if jobs, err := Jobs(dir); err != nil || len(jobs) > 0 {
		t.Errorf("jobs with checkpoints: %v, %v", jobs, err)
	}
	must(t, End(dir, "j", 1<<63+8))
	check("ended", 0, false)
	if _, err := os.Stat(filepath.Join(dir, "j")); err == nil {
		t.Error("an empty folder stays")
	}
	must(t, Begin(dir, "j", 9, 3, 2))
	for _, garbage := range []string{"", "half", "0000000000000007", "0000000000000007 x", "0000000000000007 3 z"} {
		must(t, os.WriteFile(filepath.Join(dir, "j", "running"), []byte(garbage), 0o600))
		if lost, err := Running(dir, "j"); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: %v, %v", garbage, lost, err)
		}
	}
}

// No bit of the note may be another: with another first run nothing that is durable would be found.
func TestRottenNotesOfRuns(t *testing.T) {
	dir := t.TempDir()
	must(t, Begin(dir, "j", 9, 1, 2, 8, 7))
	path := filepath.Join(dir, "j", "running")
	text, err := os.ReadFile(path)
	must(t, err)
	for bit := range 8 * (len(text) - 1) { // all but the end of the line
		other := slices.Clone(text)
		other[bit/8] ^= 1 << (bit % 8)
		must(t, os.WriteFile(path, other, 0o600))
		if lost, err := Running(dir, "j"); !errors.Is(err, ErrDamaged) {
			t.Fatalf("bit %d: %+v, %v", bit, lost, err)
		}
	}
}

// Trainers come back to any of the last runs that a run goes on from.
func TestRunsThatARunGoesOnFrom(t *testing.T) {
	dir := t.TempDir()
	var others []schema.RunID
	for run := range schema.RunID(runsMax + 3) {
		must(t, Begin(dir, "j", run, 1, 2, others...))
		others = slices.Insert(others, 0, run)
		lost, err := Running(dir, "j")
		if must(t, err); !slices.Equal(lost.Runs, others[:min(len(others), runsMax)]) {
			t.Fatalf("runs %v, want the latest of %v", lost.Runs, others)
		}
	}
}

// What a run was to go on from stays lost where that run ends before it begins.
func TestAbandonedRuns(t *testing.T) {
	dir := t.TempDir()
	must(t, Begin(dir, "j", 3, 2, 2, 2, 1))
	check := func(after string, want ...schema.RunID) {
		t.Helper()
		lost, err := Running(dir, "j")
		if must(t, err); !slices.Equal(lost.Runs, want) || len(want) > 0 && lost.Since != 2 {
			t.Errorf("after %s: %+v, want %v since 2", after, lost, want)
		}
	}
	must(t, Abandon(dir, "j", 2))
	check("the end of another", 3, 2, 1)
	must(t, Abandon(dir, "j", 3))
	check("its end", 2, 1)
	must(t, Abandon(dir, "j", 2))
	check("that of the one before", 1)
	must(t, Abandon(dir, "j", 1))
	check("all")
}

// A pipe in a folder of checkpoints is not waited for, and a link is not followed out of it.
func TestNotesAndPartsAreFilesOfTheFolder(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	must(t, Begin(elsewhere, "j", 7, 3, 2))
	for _, job := range []schema.JobName{"pipe", "link"} {
		must(t, os.Mkdir(filepath.Join(dir, string(job)), 0o700))
	}
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe", "running"), 0o600))
	must(t, os.Symlink(filepath.Join(elsewhere, "j", "running"), filepath.Join(dir, "link", "running")))
	must(t, os.Symlink(filepath.Join(elsewhere, "j"), filepath.Join(dir, "outside")))
	id := ID{1, 7, 9}
	above := schema.JobName(filepath.Join("..", filepath.Base(elsewhere), "j"))
	for _, job := range []schema.JobName{"pipe", "link", "outside", above} {
		if lost, err := Running(dir, job); !errors.Is(err, regular.ErrNotRegular) {
			t.Errorf("%s: %v, %v, want that it is no file of the folder", job, lost, err)
		}
		if err := End(dir, job, 7); !errors.Is(err, regular.ErrNotRegular) {
			t.Errorf("end of %s: %v", job, err)
		}
	}
	if err := Begin(dir, above, 8, 3, 2); err == nil {
		t.Errorf("a run of %s is noted", above)
	}
	must(t, os.MkdirAll(folderOf(dir, "pipe", id), 0o700))
	must(t, syscall.Mkfifo(completePath(dir, "pipe", id), 0o600))
	must(t, syscall.Mkfifo(partPath(dir, "pipe", id, 0), 0o600))
	if _, err := Open(dir, "pipe", id); !errors.Is(err, ErrDamaged) {
		t.Errorf("a manifest that is a pipe: %v", err)
	}
	if _, _, err := checksum(t.Context(), dir, partPath(dir, "pipe", id, 0)); !errors.Is(err, regular.ErrNotRegular) {
		t.Errorf("a part that is a pipe: %v", err)
	}
	if lost, err := Running(elsewhere, "j"); err != nil || len(lost.Runs) != 1 {
		t.Errorf("the note elsewhere: %v, %v", lost, err)
	}
}
