package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
	"gradbus/schema"
	"gradbus/schema/crc32c"
)

// runningName is the file that a job's folder has while a run of it is under way: with the run's id, so that a ps
// that is started again knows what was lost with the one before it.
const runningName = "running"

// runsMax is how many runs are noted: trainers of one that was lost before those come back seldom.
const runsMax = 16

// runningBytesMax bounds the note: ids of 17 bytes, two numbers and a checksum.
const runningBytesMax = 17*runsMax + 64

// Lost is a run of a job that was under way when whoever noted it ended.
type Lost struct {
	Runs     []schema.RunID // the run, and before it those that it goes on from, the latest first; nil: none is noted
	Since    uint64         // the first run of the job's name whose versions it may go on from
	Trainers int            // that it had places for; 0: nobody has noted that
	At       time.Time      // when it began, or ended to go on (Leave), by the clock of the disk
}

func runningText(run schema.RunID) string { return fmt.Sprintf("%016x ", uint64(run)) }

// Begin notes that a run of a job is under way, for how many trainers, and which earlier runs it continues, the latest
// first: trainers that have not heard of it yet rejoin under these. since is the first run of the job's name whose
// versions it may continue from.
func Begin(dir string, job schema.JobName, run schema.RunID, since uint64, trainers int, others ...schema.RunID) error {
	line := fmt.Sprintf("%s%d/%d", runningText(run), since, trainers)
	for _, other := range others[:min(len(others), runsMax-1)] {
		line += fmt.Sprintf(" %016x", uint64(other))
	}
	line = fmt.Sprintf("%s %08x", line, crc32c.Update(0, []byte(line)))
	err := schema.CheckName("job", string(job))
	if err == nil {
		err = checkBelow(dir, jobFolder(dir, job))
	}
	if err == nil {
		err = atomicfile.MakeFolder(jobFolder(dir, job), folderMode)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(jobFolder(dir, job), runningName), fileMode, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, line)
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
	path, is, err := noteOf(dir, job, run)
	if err == nil && is {
		err = atomicfile.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("note that job %s has ended: %w", job, err)
	}
	if is {
		_ = os.Remove(jobFolder(dir, job)) // fails where there is anything in it
	}
	return nil
}

// noteOf finds the note of a job, and whether it is of a run.
func noteOf(dir string, job schema.JobName, run schema.RunID) (path string, is bool, err error) {
	path = filepath.Join(jobFolder(dir, job), runningName)
	text, err := readRunning(dir, job)
	if errors.Is(err, fs.ErrNotExist) {
		return path, false, nil
	}
	return path, strings.HasPrefix(string(text), runningText(run)), err
}

// readRunning reads the note of a job: what the folder has under that name, if it is a file.
func readRunning(dir string, job schema.JobName) ([]byte, error) {
	return regular.ReadIn(dir, filepath.Join(string(job), runningName), runningBytesMax)
}

// Leave notes that a run of a job has ended just now and is to go on, unless a later one is under way.
func Leave(dir string, job schema.JobName, run schema.RunID) error {
	path, is, err := noteOf(dir, job, run)
	if err == nil && is {
		now := time.Now()
		err = os.Chtimes(path, now, now)
	}
	if err != nil {
		return fmt.Errorf("note that job %s was interrupted: %w", job, err)
	}
	return nil
}

// Abandon notes that a run of a job has ended before it began: what it was to go on from is lost as before. Trainers
// may come back to that.
func Abandon(dir string, job schema.JobName, run schema.RunID) error {
	lost, err := Running(dir, job)
	switch {
	case err != nil:
		return err
	case len(lost.Runs) < 2 || lost.Runs[0] != run:
		return End(dir, job, run)
	}
	return Begin(dir, job, lost.Runs[1], lost.Since, lost.Trainers, lost.Runs[2:]...)
}

// Running finds the run of a job that was under way when whoever noted it ended. Errors: ErrDamaged; those of reading.
func Running(dir string, job schema.JobName) (Lost, error) {
	path := filepath.Join(jobFolder(dir, job), runningName)
	text, err := readRunning(dir, job)
	if errors.Is(err, fs.ErrNotExist) {
		return Lost{}, nil
	}
	if err != nil {
		return Lost{}, fmt.Errorf("find out whether job %s was lost: %w", job, err)
	}
	line, _ := strings.CutSuffix(string(text), "\n")
	at := strings.LastIndexByte(line, ' ')
	damaged := fmt.Errorf("%s: %w: it has %q, want the id of a run, two numbers, ids, and their checksum", path,
		ErrDamaged, text)
	if at < 0 || line[at+1:] != fmt.Sprintf("%08x", crc32c.Update(0, text[:at])) {
		return Lost{}, damaged
	}
	words := strings.Fields(line[:at])
	if len(words) < 2 || len(words) > runsMax+1 {
		return Lost{}, damaged
	}
	var lost Lost
	if info, err := os.Stat(path); err == nil {
		lost.At = info.ModTime()
	}
	since, trainers, _ := strings.Cut(words[1], "/")
	if lost.Since, err = strconv.ParseUint(since, 10, 64); err != nil {
		return Lost{}, damaged
	}
	if lost.Trainers, err = strconv.Atoi(cmp.Or(trainers, "0")); err != nil || lost.Trainers < 0 {
		return Lost{}, damaged
	}
	for _, word := range slices.Delete(words, 1, 2) {
		run, err := strconv.ParseUint(word, 16, 64)
		if err != nil {
			return Lost{}, damaged
		}
		lost.Runs = append(lost.Runs, schema.RunID(run))
	}
	return lost, nil
}
