package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"gradbus/schema"
)

// A part of what is not complete is removed, with the folder that it leaves empty; of a complete one nothing is.
func TestDropPart(t *testing.T) {
	dir, id, job := t.TempDir(), ID{Epoch: 1, Run: 5, Version: 7}, schema.JobName("films")
	folder := folderOf(dir, job, id)
	must(t, os.MkdirAll(folder, 0o700))
	for shard := range 2 {
		must(t, os.WriteFile(partPath(dir, job, id, shard), []byte("part"), 0o600))
	}
	must(t, DropPart(dir, job, id, 0))
	must(t, DropPart(dir, job, id, 0)) // it is gone
	if _, err := os.Stat(partPath(dir, job, id, 1)); err != nil {
		t.Errorf("the part of another shard: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(folder, completeName), nil, 0o600))
	must(t, DropPart(dir, job, id, 1))
	if _, err := os.Stat(partPath(dir, job, id, 1)); err != nil {
		t.Errorf("a part of a complete checkpoint: %v", err)
	}
	must(t, os.Remove(filepath.Join(folder, completeName)))
	must(t, DropPart(dir, job, id, 1))
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("an empty folder stays: %v", err)
	}
}
