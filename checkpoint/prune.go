package checkpoint

import (
	"errors"
	"fmt"

	"gradbus/internal/atomicfile"
	"gradbus/schema"
)

// KeepMin is how many checkpoints Prune keeps at least: where the newest is damaged, there is the one before.
const KeepMin = 2

// Prune removes a job's checkpoints but for the keep newest complete ones, what they go on from, and whatever is newer
// than the newest of them, which may be on its way. Where all of these go on from one full checkpoint, the newest that
// goes on from another stays, too: damage to one file must not take everything.
//
// What it cannot judge it leaves: newer formats, what may not be read, and what of the same run is older, from which
// those may go on. Of each that goes complete.json goes first, so what a crash leaves does not look whole; the next
// Prune removes it. Whatever goes on from another goes before it. removed are those that are gone, also where it fails.
func Prune(dir string, job schema.JobName, keep int) (removed []ID, err error) {
	if keep < KeepMin {
		return nil, fmt.Errorf("prune checkpoints of job %s: keep %d: want at least %d", job, keep, KeepMin)
	}
	all, err := List(dir, job)
	if err != nil {
		return nil, err
	}
	stays := staying(all, keep)
	for _, f := range all { // newest first
		if stays[f.ID] {
			continue
		}
		if err := remove(dir, job, f.ID); err != nil {
			return removed, fmt.Errorf("prune checkpoint %s of job %s: %w", f.ID, job, err)
		}
		removed = append(removed, f.ID)
	}
	return removed, nil
}

// staying is those of all, newest first, that Prune leaves.
func staying(all []Found, keep int) map[ID]bool {
	stays := map[ID]bool{}
	unjudged := map[ID]bool{} // runs, by an ID without a version
	complete, full, other := 0, ID{}, false
	for _, f := range all {
		run := f.ID
		run.Version = 0
		switch {
		case f.Err == nil:
			chain := f.Manifest.Chain()
			if complete++; complete == 1 {
				full = chain[0].ID
			}
			if differs := chain[0].ID != full; complete <= keep || differs && !other {
				other = other || differs
				for _, m := range chain {
					stays[m.ID] = true
				}
			}
		case !errors.Is(f.Err, ErrIncomplete) && !errors.Is(f.Err, ErrDamaged):
			stays[f.ID], unjudged[run] = true, true
		case complete == 0:
			stays[f.ID] = true
		}
		if unjudged[run] {
			stays[f.ID] = true
		}
	}
	return stays
}

// remove removes a checkpoint. complete.json is off the disk before anything else goes.
func remove(dir string, job schema.JobName, id ID) error {
	if err := atomicfile.Remove(completePath(dir, job, id)); err != nil {
		return err
	}
	return atomicfile.Remove(folderOf(dir, job, id))
}
