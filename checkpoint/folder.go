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
	"sort"
	"strconv"
	"strings"
	"time"

	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
	"gradbus/schema"
	"gradbus/schema/crc32c"
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

// Policy is where and how often versions of jobs are written down. The zero value writes nothing.
type Policy struct {
	Dir     string        // the folder; empty: nothing is written
	Every   time.Duration // between two versions, 1 s to 24 h; 0 means 10 s, unless Batches is set
	Batches int           // the same as a number of batches; 0 means by time alone
	Keep    int           // checkpoints of a job that stay, 2 to 1000; older ones are removed. 0 means 2
}

// Bounds of a Policy.
const (
	everyMin     = time.Second
	everyMax     = 24 * time.Hour
	everyDefault = 10 * time.Second
	keepMax      = 1000
)

// WithDefaults puts in what zero means.
func (p Policy) WithDefaults() Policy {
	if p.Batches == 0 && p.Every == 0 {
		p.Every = everyDefault
	}
	if p.Keep == 0 {
		p.Keep = KeepMin
	}
	return p
}

// SetInterval sets how often from what a person writes: a time, as "10s", or a number of batches, as "500".
func (p *Policy) SetInterval(text string) error {
	p.Every, p.Batches = 0, 0
	var err error
	if p.Batches, err = strconv.Atoi(text); err == nil && p.Batches > 0 {
		return nil
	}
	p.Batches = 0
	if p.Every, err = time.ParseDuration(text); err != nil || p.Every <= 0 {
		return fmt.Errorf("%q: want a time, as 10s, or a number of batches, as 500", text)
	}
	return nil
}

// Interval is how often, for people.
func (p *Policy) Interval() string {
	if p.Batches > 0 {
		return fmt.Sprintf("%d batches", p.Batches)
	}
	return p.Every.String()
}

// Check lists what is wrong, each with the field, its value and what would be right. The policy is one with defaults.
func (p Policy) Check() (wrong []error) {
	if p.Every != 0 && (p.Every < everyMin || p.Every > everyMax) {
		wrong = append(wrong, fmt.Errorf("checkpoint_every %s: want %s to %s", p.Every, everyMin, everyMax))
	}
	if p.Batches < 0 {
		wrong = append(wrong, fmt.Errorf("checkpoint_batches %d: want 1 or more, or 0 for by time alone", p.Batches))
	}
	if p.Keep < KeepMin || p.Keep > keepMax {
		wrong = append(wrong, fmt.Errorf("checkpoint_keep %d: want %d to %d", p.Keep, KeepMin, keepMax))
	}
	return wrong
}

// incrementsMax bounds how many increments are over a full checkpoint: a restore reads all of them.
const incrementsMax = 32

// Growth is what a durable version goes on from, and what tells whether the next one is to be an increment over it. The
// zero value is that of no version.
type Growth struct {
	full    int64 // bytes of the full checkpoint; 0: there is none
	over    int64 // of the increments over it
	length  int   // how many they are
	touched int64 // what the newest increment took, or would have taken
}

// GoesOn says whether an increment over it is worth while: until all of them take as much as a full checkpoint, so that
// a restore reads twice that at most.
func (g Growth) GoesOn() bool {
	return g.full > 0 && g.length < incrementsMax && g.over+g.touched < g.full
}

// With is the growth with a further version, of so many bytes. touched is what an increment takes, or would have taken;
// 0: that is not known, so it is all.
func (g Growth) With(increment bool, bytes, touched int64) Growth {
	if !increment {
		return Growth{full: bytes, touched: touched}
	}
	return Growth{full: g.full, over: g.over + bytes, length: g.length + 1, touched: touched}
}

// covered is which numbers have come, of those from 0 on: spans that ascend and do not touch. Pieces of a snapshot come
// nearly in order, so they are few.
type covered []span

type span struct{ lo, hi int64 }

// add fails where any of [lo, hi) has come before, and then changes nothing.
func (c *covered) add(lo, hi int64) error {
	if lo >= hi {
		return nil
	}
	all := *c
	at := sort.Search(len(all), func(i int) bool { return all[i].hi >= lo })
	if at < len(all) && all[at].hi == lo {
		if at+1 < len(all) && all[at+1].lo < hi {
			return fmt.Errorf("%d comes twice", all[at+1].lo)
		}
		all[at].hi = hi
		if at+1 < len(all) && all[at+1].lo == hi {
			all[at].hi = all[at+1].hi
			*c = append(all[:at+1], all[at+2:]...)
		}
		return nil
	}
	switch {
	case at < len(all) && all[at].lo < hi:
		return fmt.Errorf("%d comes twice", max(lo, all[at].lo))
	case at < len(all) && all[at].lo == hi:
		all[at].lo = lo
	default:
		all = append(all, span{})
		copy(all[at+1:], all[at:])
		all[at] = span{lo, hi}
		*c = all
	}
	return nil
}

// missing is the first of [0, n) that has not come; false where all have.
func (c covered) missing(n int64) (int64, bool) {
	switch {
	case n == 0:
		return 0, false
	case len(c) == 0 || c[0].lo > 0:
		return 0, true
	}
	return c[0].hi, c[0].hi < n
}

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
