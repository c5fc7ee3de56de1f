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
	// ErrNone reports that a job has no usable checkpoint.
	ErrNone = errors.New("no durable checkpoint")
	// ErrOther reports that a checkpoint is of another manifest than the job's.
	ErrOther = errors.New("checkpoint of another job")
)

// Found is a checkpoint in a folder.
type Found struct {
	ID       ID
	Manifest *Manifest // nil if Err is not
	Bytes    int64     // size of all existing files
	Err      error     // ErrIncomplete, ErrDamaged, ErrNewer, or an error of reading
}

// CheckFolder makes a folder for checkpoints if it does not exist, and fails if it is not writable, so that this is
// known before there is anything to lose.
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

// Jobs lists the names of jobs that have checkpoints in a folder, complete or not. It fails if the folder cannot be
// read.
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

// idsOf lists the ids of a job's checkpoints, complete or not, newest first. A missing folder has none.
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

// NextEpoch returns the number of a new run that writes checkpoints: 1 more than the largest of those that have
// written, complete or not, and 1 if the folder does not exist. It fails if the job's folder is a link out of dir.
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

// List returns the checkpoints of a job, newest first, after a check of their manifests and the sizes of their parts.
// Verify reads the rest.
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

// bytesOf returns the size of the files of a folder. Files that are removed while it runs do not count.
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

// CheckSame returns ErrOther, with the name of the field, if the manifest of the checkpoint's job differs from another.
// trainers, chunk_bytes and policy may differ, and so may the dense values that a program began with.
func (m *Manifest) CheckSame(job *schema.Job) error {
	other := *job
	other.Trainers, other.ChunkBytes, other.Policy = m.Job.Trainers, m.Job.ChunkBytes, m.Job.Policy
	if a, b := m.Job.Start, job.Start; a != nil && b != nil && a.Dense && b.Dense {
		other.Start = a // values from before the checkpoint
	}
	if field, have, want, differs := m.Job.Diff(&other); differs {
		return fmt.Errorf("checkpoint %s of job %s: %w: %s is %s in the checkpoint and %s in the job: want the same, or "+
			"another folder or name", m.ID, job.Name, ErrOther, field, have, want)
	}
	return nil
}

// KeepMin is the least number of checkpoints that Prune keeps: if the newest is damaged, there is the one before.
const KeepMin = 2

// Prune removes a job's checkpoints except the keep newest complete ones, their bases, and everything newer than the
// newest of them, which may be in progress. If all of these have one full checkpoint as a base, the newest one with
// another base stays, too: damage to one file must not destroy everything.
//
// It keeps what it cannot judge: newer formats, unreadable checkpoints, and older ones of the same run, which may be
// their bases. It removes complete.json of a checkpoint first, so that a crash leaves an incomplete checkpoint, which
// the next Prune removes. It removes increments before their bases. removed lists the removed checkpoints, also after
// an error.
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

// staying returns those of all, newest first, that Prune keeps.
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

// remove removes a checkpoint: first complete.json, and after that has left the disk the rest.
func remove(dir string, job schema.JobName, id ID) error {
	if err := atomicfile.Remove(completePath(dir, job, id)); err != nil {
		return err
	}
	return atomicfile.Remove(folderOf(dir, job, id))
}

// DropPart removes the part of a shard from a checkpoint that will never be complete; it removes nothing from a
// complete one. A missing part is no error.
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

// Policy says where and how often versions of jobs are written. The zero value writes nothing.
type Policy struct {
	Dir     string        // empty: nothing is written
	Every   time.Duration // between two versions, 1 s to 24 h; 0: 10 s, unless Batches is set
	Batches int           // between two versions; 0: by time only
	Keep    int           // checkpoints of a job to keep, 2 to 1000; 0: 2
}

// Limits of a Policy.
const (
	everyMin     = time.Second
	everyMax     = 24 * time.Hour
	everyDefault = 10 * time.Second
	keepMax      = 1000
)

// WithDefaults replaces zero fields by their defaults.
func (p Policy) WithDefaults() Policy {
	if p.Batches == 0 && p.Every == 0 {
		p.Every = everyDefault
	}
	if p.Keep == 0 {
		p.Keep = KeepMin
	}
	return p
}

// SetInterval sets Every or Batches from a text: a time, such as "10s", or a number of batches, such as "500".
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

// Interval returns the interval, for people.
func (p *Policy) Interval() string {
	if p.Batches > 0 {
		return fmt.Sprintf("%d batches", p.Batches)
	}
	return p.Every.String()
}

// Check lists what is wrong with a policy with defaults, each with the field, its value and what would be valid.
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

// incrementsMax bounds the number of increments over a full checkpoint: a restore reads all of them.
const incrementsMax = 32

// Growth is the size of a durable version and its bases, and decides whether the next one is an increment. The zero
// value belongs to no version.
type Growth struct {
	full    int64 // size of the full checkpoint; 0: none
	over    int64 // size of the increments over it
	length  int   // number of increments
	touched int64 // size of the newest increment, or the size that it would have
}

// GoesOn reports whether another increment is worthwhile: until all increments are as large as the full checkpoint, so
// that a restore reads at most twice that.
func (g Growth) GoesOn() bool {
	return g.full > 0 && g.length < incrementsMax && g.over+g.touched < g.full
}

// With returns the growth after a further version with a number of bytes. touched is the size of an increment, written
// or not; 0: not known, so everything.
func (g Growth) With(increment bool, bytes, touched int64) Growth {
	if !increment {
		return Growth{full: bytes, touched: touched}
	}
	return Growth{full: g.full, over: g.over + bytes, length: g.length + 1, touched: touched}
}

// covered is the set of numbers, from 0 on, that have arrived: ascending spans that do not touch. Pieces of a snapshot
// arrive nearly in order, so there are few spans.
type covered []span

type span struct{ lo, hi int64 }

// add adds [lo, hi). It fails, and changes nothing, if any of these was added before.
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

// missing returns the first of [0, n) that was not added; false if all were.
func (c covered) missing(n int64) (int64, bool) {
	switch {
	case n == 0:
		return 0, false
	case len(c) == 0 || c[0].lo > 0:
		return 0, true
	}
	return c[0].hi, c[0].hi < n
}

// runningName is the file in a job's folder while a run of it is in progress: it has the run's id, so that a restarted
// ps knows what its predecessor was running.
const runningName = "running"

// runsMax bounds the number of recorded runs: trainers of older ones rarely rejoin.
const runsMax = 16

// runningBytesMax bounds the file: ids of 17 bytes, two numbers and a checksum.
const runningBytesMax = 17*runsMax + 64

// Lost is a run of a job that was in progress when the ps that recorded it ended.
type Lost struct {
	Runs     []schema.RunID // the run, and before it those that it continues, the latest first; nil: none
	Since    uint64         // first run of the job's name whose versions it may continue from
	Trainers int            // number of slots; 0: not recorded
	At       time.Time      // when it began, or was interrupted (Leave), by the clock of the disk
}

func runningText(run schema.RunID) string { return fmt.Sprintf("%016x ", uint64(run)) }

// Begin records that a run of a job is in progress, its number of trainers, and which earlier runs it continues, the
// latest first: trainers that do not know it yet rejoin under these. since is the first run of the job's name whose
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

// End records that a run of a job has ended, unless a later one is in progress. It removes the folder of a job without
// checkpoints.
func End(dir string, job schema.JobName, run schema.RunID) error {
	path, is, err := noteOf(dir, job, run)
	if err == nil && is {
		err = atomicfile.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("note that job %s has ended: %w", job, err)
	}
	if is {
		_ = os.Remove(jobFolder(dir, job)) // fails unless it is empty
	}
	return nil
}

// noteOf returns the record of a job, and whether it is of a run.
func noteOf(dir string, job schema.JobName, run schema.RunID) (path string, is bool, err error) {
	path = filepath.Join(jobFolder(dir, job), runningName)
	text, err := readRunning(dir, job)
	if errors.Is(err, fs.ErrNotExist) {
		return path, false, nil
	}
	return path, strings.HasPrefix(string(text), runningText(run)), err
}

// readRunning reads the record of a job, if it is a regular file.
func readRunning(dir string, job schema.JobName) ([]byte, error) {
	return regular.ReadIn(dir, filepath.Join(string(job), runningName), runningBytesMax)
}

// Leave records that a run of a job was interrupted just now and will continue, unless a later one is in progress.
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

// Abandon records that a run of a job ended before it began: the run that it was to continue is interrupted as before,
// and trainers may rejoin it.
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

// Running returns the run of a job that was in progress when the ps that recorded it ended. Errors: ErrDamaged; those
// of reading.
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
