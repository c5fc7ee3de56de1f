package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"gradbus/internal/atomicfile"
	"gradbus/schema"
)

var (
	// ErrNone says that a job has no checkpoint that could be used.
	ErrNone = errors.New("no durable checkpoint")
	// ErrOther says that a checkpoint is of another manifest than the job's.
	ErrOther = errors.New("checkpoint of another job")
)

// Found is a checkpoint in a folder.
type Found struct {
	ID       ID
	Manifest *Manifest // nil where Err is not
	Bytes    int64     // of all files that are there
	Err      error     // ErrIncomplete, ErrDamaged, ErrNewer, or why that is not known
}

// CheckFolder makes a folder for checkpoints where it is not there, and fails where nothing can be written to it, so
// that this is known before there is anything to lose.
func CheckFolder(dir string) error {
	err := atomicfile.MakeFolder(dir, folderMode)
	if err == nil {
		err = atomicfile.Check(filepath.Join(dir, completeName))
	}
	if err != nil {
		return fmt.Errorf("folder of checkpoints %s: %w", dir, err)
	}
	return nil
}

// Jobs are the names of jobs that have checkpoints in a folder, whole or not. It fails where the folder cannot be read.
func Jobs(dir string) ([]schema.JobName, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("find checkpoints: %w", err)
	}
	var jobs []schema.JobName
	for _, e := range entries {
		if !e.IsDir() || schema.CheckName("job", e.Name()) != nil {
			continue
		}
		ids, err := idsOf(dir, schema.JobName(e.Name()))
		if err != nil {
			return nil, err
		}
		if len(ids) > 0 {
			jobs = append(jobs, schema.JobName(e.Name()))
		}
	}
	return jobs, nil
}

// idsOf are the ids of a job's checkpoints, whole or not, newest first. A folder that is not there has none.
func idsOf(dir string, job schema.JobName) ([]ID, error) {
	if err := schema.CheckName("job", string(job)); err != nil {
		return nil, fmt.Errorf("find checkpoints in %s: %w", dir, err)
	}
	entries, err := os.ReadDir(jobFolder(dir, job))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find checkpoints of job %s: %w", job, err)
	}
	var ids []ID
	for _, e := range entries {
		if id, err := ParseID(e.Name()); err == nil && e.IsDir() {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b ID) int { return b.Compare(a) })
	return ids, nil
}

// NextEpoch is the number of a run that begins to write: 1 more than the largest of those that have written, whether
// anything of theirs is complete or not, and 1 where the folder is not there. It fails where the job's folder is a link
// out of dir.
func NextEpoch(dir string, job schema.JobName) (uint64, error) {
	ids, err := idsOf(dir, job)
	if err == nil {
		err = checkBelow(dir, jobFolder(dir, job))
	}
	if err != nil || len(ids) == 0 {
		return 1, err
	}
	return ids[0].Epoch + 1, nil
}

// List is the checkpoints of a job, newest first, as their manifests and the sizes of their parts have them; Verify
// reads the rest.
func List(dir string, job schema.JobName) ([]Found, error) {
	ids, err := idsOf(dir, job)
	if err != nil {
		return nil, err
	}
	var all []Found
	o := newOpener(dir, job)
	for _, id := range ids {
		f := Found{ID: id}
		f.Manifest, f.Err = o.open(id)
		if f.Bytes, err = bytesOf(folderOf(dir, job, id)); err != nil {
			return nil, fmt.Errorf("checkpoint %s of job %s: %w", id, job, err)
		}
		all = append(all, f)
	}
	return all, nil
}

// bytesOf is how much the files of a folder take. Files removed while it runs count nothing.
func bytesOf(folder string) (n int64, err error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
	}
	return n, err
}

// CheckSame is ErrOther if the manifest of the checkpoint's job differs from that of another, and names the field.
// trainers, chunk_bytes and policy may differ, and so may the dense values that a program began with.
func (m *Manifest) CheckSame(job *schema.Job) error {
	other := *job
	other.Trainers, other.ChunkBytes, other.Policy = m.Job.Trainers, m.Job.ChunkBytes, m.Job.Policy
	if a, b := m.Job.Start, job.Start; a != nil && b != nil && a.Dense && b.Dense {
		other.Start = a // values that a program had before it knew better
	}
	if field, have, want, differs := m.Job.Diff(&other); differs {
		return fmt.Errorf("checkpoint %s of job %s: %w: %s is %s in the checkpoint and %s in the job: want the same, or "+
			"another folder or name", m.ID, job.Name, ErrOther, field, have, want)
	}
	return nil
}
