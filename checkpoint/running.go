package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gradbus/internal/atomicfile"
	"gradbus/schema"
)

// runningName is the file that a job's folder has while a run of it is under way: with the run's id, so that a ps
// that is started again knows what was lost with the one before it.
const runningName = "running"

func runningText(run schema.RunID) string { return fmt.Sprintf("%016x ", uint64(run)) }

// Begin notes that a run of a job is under way, and the first run of the job's name whose versions it may go on from.
func Begin(dir string, job schema.JobName, run schema.RunID, since uint64) error {
	err := atomicfile.MakeFolder(jobFolder(dir, job), folderMode)
	if err == nil {
		err = atomicfile.Write(filepath.Join(jobFolder(dir, job), runningName), fileMode, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s%d\n", runningText(run), since)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("note that job %s runs: %w", job, err)
	}
	return nil
}

// End notes that a run of a job has ended, unless a later one is under way. The folder of a job without checkpoints
// goes.
func End(dir string, job schema.JobName, run schema.RunID) error {
	path := filepath.Join(jobFolder(dir, job), runningName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !strings.HasPrefix(string(text), runningText(run)) {
		return nil
	}
	if err == nil {
		err = atomicfile.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("note that job %s has ended: %w", job, err)
	}
	_ = os.Remove(jobFolder(dir, job)) // fails where there is anything in it
	return nil
}

// Running says whether a run of a job was under way when whoever noted it ended, which, and since which of its name.
func Running(dir string, job schema.JobName) (run schema.RunID, since uint64, ok bool) {
	text, err := os.ReadFile(filepath.Join(jobFolder(dir, job), runningName))
	if err != nil {
		return 0, 0, false
	}
	if n, err := fmt.Sscanf(string(text), "%016x %d", (*uint64)(&run), &since); n < 2 || err != nil {
		return 0, 0, false
	}
	return run, since, true
}
