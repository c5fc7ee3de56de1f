package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gradbus/internal/atomicfile"
	"gradbus/schema"
)

// DropPart removes the part of a shard from a checkpoint that is not complete and never will be; of a complete one it
// removes nothing. A part that is not there is none to remove.
func DropPart(dir string, job schema.JobName, id ID, shard int) error {
	_, err := os.Stat(filepath.Join(folderOf(dir, job, id), completeName))
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err = atomicfile.Remove(partPath(dir, job, id, shard)); err == nil || errors.Is(err, fs.ErrNotExist) {
			removeEmpty(dir, job, id)
			return nil
		}
	}
	return fmt.Errorf("remove part %d of checkpoint %s of job %s: %w", shard, id, job, err)
}
