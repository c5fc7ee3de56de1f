package checkpoint

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gradbus/schema"
	"gradbus/shard/state"
)

// pieces are those of one shard.
func piecesOf(t testing.TB, f *fleet, shard int) *state.Snapshot {
	t.Helper()
	var s state.Snapshot
	must(t, f.owners[shard].dense.Snapshot(3, s.AddTensor))
	for i := range f.job.Tables {
		if a := f.owners[shard].tables[f.job.Tables[i].Name]; a != nil {
			must(t, a.Snapshot(24, s.AddRows)) // two or three rows, with their slots
		}
	}
	return &s
}

// Pieces in any order make the same file, to the byte.
func TestPartTakesPiecesInAnyOrder(t *testing.T) {
	f, dir := trained(t), t.TempDir()
	want := f.savePart(t, dir, at(1), 0)
	s := piecesOf(t, f, 0)
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(s.Tensors), func(i, k int) { s.Tensors[i], s.Tensors[k] = s.Tensors[k], s.Tensors[i] })
	r.Shuffle(len(s.Rows), func(i, k int) { s.Rows[i], s.Rows[k] = s.Rows[k], s.Rows[i] })
	p, err := NewPart(dir, f.job, at(1), 2, 0)
	must(t, err)
	defer p.Discard()
	for _, x := range s.Rows {
		must(t, p.Rows(x))
		clear(x.Values) // they are copied
	}
	for _, x := range s.Tensors {
		half := len(x.Values) / 2
		for _, part := range [][2]int{{half, len(x.Values)}, {0, half}} {
			y := x
			y.From, y.Values, y.Slots = x.From+part[0], x.Values[part[0]:part[1]], nil
			for _, slot := range x.Slots {
				y.Slots = append(y.Slots, state.Slot{Name: slot.Name, Values: slot.Values[part[0]:part[1]]})
			}
			must(t, p.Tensor(y))
		}
	}
	if got, err := p.Commit(); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// What does not fit is refused by name, and then nothing is committed or left.
func TestPartRefuses(t *testing.T) {
	f, dir := trained(t), t.TempDir()
	s := piecesOf(t, f, 0)
	cutSlot := func(slots []state.Slot) []state.Slot {
		return []state.Slot{{Name: slots[0].Name, Values: slots[0].Values[1:]}}
	}
	for says, change := range map[string]func(*state.Snapshot){
		"version 4: want 3":                 func(s *state.Snapshot) { s.Tensors[1].Version = 4 },
		"and others are after 9":            func(s *state.Snapshot) { s.Tensors[1].Steps = 9 },
		"shard 0 has none":                  func(s *state.Snapshot) { s.Tensors[1].Name = "v" },
		"not all of them are on shard 0":    func(s *state.Snapshot) { s.Tensors[1].From += 100_000 },
		"comes twice":                       func(s *state.Snapshot) { s.Tensors[1] = s.Tensors[0] },
		"0 slots: want":                     func(s *state.Snapshot) { s.Tensors[1].Slots = nil },
		`want "momentum"`:                   func(s *state.Snapshot) { s.Tensors[1].Slots = cutSlot(s.Tensors[1].Slots) },
		"did not come":                      func(s *state.Snapshot) { s.Tensors = s.Tensors[1:] },
		"row 3 comes twice":                 func(s *state.Snapshot) { s.Rows[0] = s.Rows[1] },
		", did not come":                    func(s *state.Snapshot) { s.Rows = s.Rows[1:] },
		"marks: want":                       func(s *state.Snapshot) { s.Rows[0].Last = nil },
		"values: want":                      func(s *state.Snapshot) { s.Rows[0].Values = s.Rows[0].Values[1:] },
		"the next of the partition":         func(s *state.Snapshot) { slices.Reverse(s.Rows[0].Keys) },
		"is in partition":                   func(s *state.Snapshot) { s.Rows[0].Partition = 2 },
		"the partition is not on this":      func(s *state.Snapshot) { s.Rows[0].Partition = 1 },
		"partition 9999 of":                 func(s *state.Snapshot) { s.Rows[0].Partition = 9999 },
		"key 101: the table has 101":        func(s *state.Snapshot) { s.Rows[0].Keys[0] = 101 },
		"columns from 1 on":                 func(s *state.Snapshot) { s.Rows[0].Column = 1 },
		"mark -1":                           func(s *state.Snapshot) { s.Rows[0].Last[0] = -1 },
		"version 2: want 3":                 func(s *state.Snapshot) { s.Rows[0].Version = 2 },
		`of table "t" to checkpoint 000001`: func(s *state.Snapshot) { s.Rows[0].Table = "t" },
	} {
		var changed state.Snapshot
		for _, x := range s.Tensors {
			must(t, changed.AddTensor(x))
		}
		for _, x := range s.Rows {
			must(t, changed.AddRows(x))
		}
		change(&changed)
		p, err := NewPart(dir, f.job, at(1), 2, 0)
		must(t, err)
		for _, x := range changed.Tensors {
			err = errors.Join(err, p.Tensor(x))
		}
		for _, x := range changed.Rows {
			err = errors.Join(err, p.Rows(x))
		}
		_, failed := p.Commit()
		wants(t, says, errors.Join(err, failed), nil, says)
		wants(t, says+", at the end", failed, nil, "commit part 0 of checkpoint 000001-")
		p.Discard()
		if left := files(t, dir); len(left) > 0 {
			t.Fatalf("%s: left %q", says, left)
		}
	}
}

// A piece too many is a mistake of whoever writes, so the whole is not to be trusted.
func TestPartRemembersRefusals(t *testing.T) {
	f, dir := trained(t), t.TempDir()
	s := piecesOf(t, f, 0)
	p, err := NewPart(dir, f.job, at(1), 2, 0)
	must(t, err)
	defer p.Discard()
	for _, x := range s.Tensors {
		must(t, p.Tensor(x))
	}
	for _, x := range s.Rows {
		must(t, p.Rows(x))
	}
	wants(t, "once more", p.Rows(s.Rows[0]), nil, "comes twice")
	_, err = p.Commit()
	wants(t, "commit", err, nil, "a piece was refused", "comes twice")
}

func TestNewPartRefuses(t *testing.T) {
	dir, f := saved(t, at(1))
	changed := func(change func(*schema.Job)) *schema.Job {
		job := testJob()
		change(job)
		return job
	}
	file := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(file, nil, 0o600))
	for says, c := range map[string]struct {
		dir           string
		job           *schema.Job
		id            ID
		shards, shard int
	}{
		"the checkpoint is complete": {dir, f.job, at(1), 2, 0},
		"shard 2: want 0 to 1":       {dir, f.job, at(2), 2, 2},
		"0 shards":                   {dir, f.job, at(2), 0, 0},
		"invalid job":                {dir, changed(func(j *schema.Job) { j.Lanes = 0 }), at(2), 2, 0},
		"not a directory":            {file, f.job, at(2), 2, 0},
	} {
		_, err := NewPart(c.dir, c.job, c.id, c.shards, c.shard)
		wants(t, says, err, nil, says)
	}
	if os.Getuid() == 0 {
		t.Skip("root writes into any folder")
	}
	closed := t.TempDir()
	must(t, os.Chmod(closed, 0o500))
	_, err := NewPart(closed, f.job, at(1), 2, 0)
	wants(t, "a folder that may not be written", err, fs.ErrPermission)
}

// Whether checkpoints can be written is known before the first is due, and asking leaves nothing but the folder.
func TestCheckFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	must(t, CheckFolder(dir))
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	file := filepath.Join(dir, "f")
	must(t, os.WriteFile(file, nil, 0o600))
	wants(t, "a file", CheckFolder(file), nil, file, "not a directory")
	if os.Getuid() == 0 {
		t.Skip("root writes into any folder")
	}
	must(t, os.Chmod(dir, 0o500))
	defer os.Chmod(dir, 0o700)
	wants(t, "a folder that may not be written", CheckFolder(dir), fs.ErrPermission, dir)
}

// A job's folder that a link leads elsewhere is refused before anything is written: nothing of it could be read.
func TestFolderIsNoLinkOutside(t *testing.T) {
	dir, outside, f := t.TempDir(), t.TempDir(), trained(t)
	must(t, os.Symlink(outside, filepath.Join(dir, string(f.job.Name))))
	_, part := NewPart(dir, f.job, at(1), 2, 0)
	_, epoch := NextEpoch(dir, f.job.Name)
	for what, err := range map[string]error{"part": part, "epoch": epoch,
		"begin": Begin(dir, f.job.Name, 1, 1, 1)} {
		wants(t, what, err, nil, "want a folder below "+dir+", and no link out of it")
	}
	if left := files(t, outside); len(left) > 0 {
		t.Errorf("written outside: %q", left)
	}
}

// After a Commit, Discard leaves the part; and folders that are missing are made.
func TestPartIsThere(t *testing.T) {
	f, dir := trained(t), filepath.Join(t.TempDir(), "a", "b")
	f.savePart(t, dir, at(1), 1)
	name := "films/" + at(1).String()
	if got, want := files(t, dir), []string{"films", name, name + "/s1.safetensors"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
