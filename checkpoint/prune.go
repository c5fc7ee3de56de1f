package checkpoint

import (
	"errors"
	"fmt"

	"gradbus/internal/atomicfile"
	"gradbus/schema"
)

// KeepMin is how many checkpoints Prune keeps at least: where the newest is damaged, there is the one before.
const KeepMin = 2

// Prune removes a job's checkpoints but for the keep newest complete ones and whatever is newer than the newest of
// them, which may be on its way. What it cannot judge it leaves: newer formats, and what may not be read. Of each that
// goes complete.json goes first, so what a crash leaves does not look whole; the next Prune removes it. removed are
// those that are gone, also where it fails.
func Prune(dir string, job schema.JobName, keep int) (removed []ID, err error) {
	if keep < KeepMin {
		return nil, fmt.Errorf("prune checkpoints of job %s: keep %d: want at least %d", job, keep, KeepMin)
	}
	all, err := List(dir, job)
	if err != nil {
		return nil, err
	}
	complete := 0
	for _, f := range all {
		switch {
		case f.Err == nil:
			if complete++; complete <= keep {
				continue
			}
		case complete == 0 || !errors.Is(f.Err, ErrIncomplete) && !errors.Is(f.Err, ErrDamaged):
			continue
		}
		if err := remove(dir, job, f.ID); err != nil {
			return removed, fmt.Errorf("prune checkpoint %s of job %s: %w", f.ID, job, err)
		}
		removed = append(removed, f.ID)
	}
	return removed, nil
}

// remove removes a checkpoint. complete.json is off the disk before anything else goes.
func remove(dir string, job schema.JobName, id ID) error {
	if err := atomicfile.Remove(completePath(dir, job, id)); err != nil {
		return err
	}
	return atomicfile.Remove(folderOf(dir, job, id))
}
