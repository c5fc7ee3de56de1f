package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRunningIsKnownUntilItsEnd(t *testing.T) {
	dir := t.TempDir()
	check := func(what string, want uint64, there bool) {
		t.Helper()
		if run, since, ok := Running(dir, "j"); ok != there || uint64(run) != want || there && since != 3 {
			t.Errorf("%s: run %d, %v; want %d, %v", what, run, ok, want, there)
		}
	}
	check("before", 0, false)
	must(t, End(dir, "j", 1))
	must(t, Begin(dir, "j", 7, 3))
	check("begun", 7, true)
	must(t, Begin(dir, "j", 1<<63+8, 3))
	check("begun again", 1<<63+8, true)
	must(t, End(dir, "j", 7)) // of the one before
	check("after the end of another", 1<<63+8, true)
	if jobs, err := Jobs(dir); err != nil || len(jobs) > 0 {
		t.Errorf("jobs with checkpoints: %v, %v", jobs, err)
	}
	must(t, End(dir, "j", 1<<63+8))
	check("ended", 0, false)
	if _, err := os.Stat(filepath.Join(dir, "j")); err == nil {
		t.Error("an empty folder stays")
	}
	must(t, Begin(dir, "j", 9, 3))
	must(t, os.WriteFile(filepath.Join(dir, "j", "running"), []byte("half"), 0o600))
	check("garbage", 0, false)
}
