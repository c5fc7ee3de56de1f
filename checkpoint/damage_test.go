package checkpoint

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/schema/crc32c"
	"gradbus/shard/state"
)

// stride is from one byte that a test damages to the next: every bit of a byte has its turn, as 7 and 8 share no factor.
const stride = 7

// altered runs use with each of some changes of a file, and puts it back.
func altered(t testing.TB, path string, changes func(whole []byte, try func(changed []byte, what string)),
	use func(what string)) {
	t.Helper()
	whole, err := os.ReadFile(path)
	must(t, err)
	changes(whole, func(changed []byte, what string) {
		must(t, os.WriteFile(path, changed, 0o600))
		use(what)
	})
	must(t, os.WriteFile(path, whole, 0o600))
}

func flipped(whole []byte, i int, by byte) []byte {
	changed := append([]byte{}, whole...)
	changed[i] ^= by
	return changed
}

// However a part is cut, and whichever of its bytes is another, it is noticed.
func TestDamagedPartIsNoticed(t *testing.T) {
	dir, f := saved(t, at(1))
	m, err := Open(dir, "films", at(1))
	must(t, err)
	path := partPath(dir, "films", at(1), 1)
	r := rand.New(rand.NewPCG(3, 4))
	damaged := func(what string) {
		wants(t, what, m.Verify(dir), ErrDamaged, path, "verify checkpoint 000001-")
		_, skipped, err := newest(t.Context(), dir, f.job)
		if wants(t, what, err, ErrNone, "1 are damaged"); len(skipped) != 1 {
			t.Errorf("%s: skipped %v", what, skipped)
		}
	}
	altered(t, path, func(whole []byte, try func([]byte, string)) {
		for n := 0; n < len(whole); n += 4096 {
			try(whole[:n], "cut")
		}
		try(whole[:len(whole)-1], "a byte less")
		try(append(append([]byte{}, whole...), 0), "a byte more")
		for range 300 {
			try(flipped(whole, r.IntN(len(whole)), byte(1<<r.IntN(8))), "flipped")
		}
		for i := range 64 { // of the header
			try(flipped(whole, i, 1), "flipped in the header")
		}
	}, damaged)
	must(t, m.Verify(dir))
	other, err := os.ReadFile(partPath(dir, "films", at(1), 0))
	must(t, err)
	altered(t, path, func(_ []byte, try func([]byte, string)) { try(other, "another part") }, damaged)
	must(t, os.Remove(path))
	damaged("no part")
	must(t, os.Mkdir(path, 0o700))
	damaged("a folder for a part")
}

// Where checksum and size are those of the file, what it says of itself still counts.
func TestPartOfAnotherCheckpointIsNoticed(t *testing.T) {
	dir, _ := saved(t, at(1), at(2))
	job := testJob()
	job.Settings = map[string]string{"data": "other"}
	other, elsewhere := newFleet(t, testBackend(t), job, 2), t.TempDir()
	for v := range schema.Version(3) {
		other.step(t, v)
	}
	other.save(t, elsewhere, at(1))
	for says, from := range map[string]string{"gradbus.checkpoint": partPath(dir, "films", at(2), 1),
		"want": partPath(dir, "films", at(1), 0), "gradbus.job": partPath(elsewhere, "films", at(1), 1)} {
		m, err := Open(dir, "films", at(1))
		must(t, err)
		part, err := os.ReadFile(from)
		must(t, err)
		m.Parts[1] = PartInfo{Shard: 1, Bytes: int64(len(part)), Checksum: crc32c.Update(0, part)}
		altered(t, partPath(dir, "films", at(1), 1), func(_ []byte, try func([]byte, string)) { try(part, says) },
			func(what string) {
				wants(t, what, m.Verify(dir), ErrDamaged, what)
				wants(t, what, m.Read(dir, func(state.Tensor) error { return nil }, func(state.Rows) error { return nil }),
					ErrDamaged, what)
			})
	}
}

// Parts of a parameter that have had other numbers of steps are of no one version.
func TestPartsThatDisagreeOnSteps(t *testing.T) {
	dir, f := saved(t, at(1))
	m, err := Open(dir, "films", at(1))
	must(t, err)
	must(t, os.Remove(completePath(dir, "films", at(1))))
	p, err := NewPart(dir, f.job, at(1), 2, 1)
	must(t, err)
	defer p.Discard()
	s := piecesOf(t, f, 1)
	for _, x := range s.Tensors {
		x.Steps++
		must(t, p.Tensor(x))
	}
	for _, x := range s.Rows {
		must(t, p.Rows(x))
	}
	m.Parts[1], err = p.Commit()
	must(t, err)
	wants(t, "steps", m.Verify(dir), ErrDamaged, "part 1 has dense/net/w", "after 4 steps, and part 0 after 3")
}

// Where each part is of a moment of its own they may: then all count as if they had had as many as the one with most.
func TestPartsOfMoments(t *testing.T) {
	job, dir := testJob(), t.TempDir()
	job.Consistency, job.Policy = schema.ConsistencyAsync, schema.PolicyFail
	job.Tables = []schema.TableSpec{job.Tables[0], job.Tables[3]}
	f := newFleet(t, testBackend(t), job, 2)
	for v := range at(1).Version {
		f.step(t, v)
	}
	most := map[string]uint64{} // by parameter, and by table
	m := &Manifest{Format: Format, Job: f.job, Shards: 2, ID: at(1), Created: time.Now()}
	for shard := range 2 {
		p, err := NewPart(dir, f.job, m.ID, 2, shard)
		must(t, err)
		defer p.Discard()
		s := piecesOf(t, f, shard)
		for _, x := range s.Tensors {
			x.Steps = uint64(10 + shard)
			most[x.Name] = max(most[x.Name], x.Steps)
			must(t, p.Tensor(x))
		}
		for _, x := range s.Rows {
			x.Steps = uint64(21 - shard)
			most[x.Table] = max(most[x.Table], x.Steps)
			must(t, p.Rows(x))
		}
		info, err := p.Commit()
		must(t, err)
		m.Parts = append(m.Parts, info)
	}
	must(t, Complete(dir, m))
	m, err := Open(dir, "films", at(1))
	must(t, err)
	must(t, m.Verify(dir))
	seen := map[string]bool{}
	steps := func(of string, have uint64) error {
		if seen[of] = true; have != most[of] {
			t.Errorf("a piece of %s after %d steps, want %d", of, have, most[of])
		}
		return nil
	}
	must(t, m.Read(dir, func(x state.Tensor) error { return steps(x.Name, x.Steps) },
		func(x state.Rows) error { return steps(x.Table, x.Steps) }))
	if len(seen) != len(most) || most["net/w"] != 11 || most["users"] != 21 {
		t.Errorf("read %v of %v", seen, most)
	}
}

// Whichever byte of the manifest is another, it is noticed, and so is every cut.
func TestDamagedManifestIsNoticed(t *testing.T) {
	dir, f := saved(t, at(1))
	path := completePath(dir, "films", at(1))
	altered(t, path, func(whole []byte, try func([]byte, string)) {
		for i := 0; i < len(whole); i += stride {
			try(flipped(whole, i, 0x20), "another case") // of letters
			try(flipped(whole, i, 1), "flipped")
			try(whole[:i], "cut")
		}
		try(append(append([]byte{}, whole...), '\n'), "a line more")
	}, func(what string) {
		_, err := Open(dir, "films", at(1))
		wants(t, what, err, ErrDamaged, "checkpoint 000001-")
	})
	if _, _, err := newest(t.Context(), dir, f.job); err != nil {
		t.Error(err)
	}
}

// resealed is a manifest that is changed, with a checksum that is right.
func resealed(t testing.TB, dir string, id ID, from, to string) {
	t.Helper()
	path := completePath(dir, "films", id)
	text, err := os.ReadFile(path)
	must(t, err)
	if !strings.Contains(string(text), from) {
		t.Fatalf("no %q in %s", from, text)
	}
	body := strings.Replace(string(text[:len(text)-len(checksumTail)-checksumDigits]), from, to, 1)
	must(t, os.WriteFile(path, append([]byte(body), sealOf(body)...), 0o600))
}

func sealOf(body string) string {
	const digits = "0123456789abcdef"
	sum := crc32c.Update(0, []byte(body))
	text := ""
	for shift := 28; shift >= 0; shift -= 4 {
		text += string(digits[sum>>shift&15])
	}
	return text + checksumTail
}

func TestManifestsThatSayWrongThings(t *testing.T) {
	for says, c := range map[string]struct {
		from, to string
		want     error
	}{
		"4, and this program reads up to 3": {`"format": 1`, `"format": 4`, ErrNewer},
		"5, and this program reads up to 3": {`"format": 1`, `"format": 5, "more": 1`, ErrNewer},
		"3 with a program's part":           {`"format": 1`, `"format": 3`, ErrDamaged},
		"format 0":                          {`"format": 1`, `"format": 0`, ErrDamaged},
		"want 1 of a full checkpoint":       {`"format": 1`, `"format": 2`, ErrDamaged},
		`unknown field "more"`:              {`"shards"`, `"more": 1, "shards"`, ErrDamaged},
		"want the number of a run":          {at(1).String(), "1-2-3", ErrDamaged},
		"is of checkpoint 000002-":          {at(1).String(), at(2).String(), ErrDamaged},
		"is of job other":                   {`"name": "films"`, `"name": "other"`, ErrDamaged},
		"2 parts of 3 shards":               {`"shards": 2`, `"shards": 3`, ErrDamaged},
		"part 1 is of shard 0":              {`"shard": 1`, `"shard": 0`, ErrDamaged},
		"invalid job":                       {`"lanes": 1`, `"lanes": 0`, ErrDamaged},
		"decode job":                        {`"lanes": 1`, `"lanes": 1, "more": 1`, ErrDamaged},
	} {
		dir, f := saved(t, at(1))
		resealed(t, dir, at(1), c.from, c.to)
		_, err := Open(dir, "films", at(1))
		wants(t, says, err, c.want, says)
		_, skipped, err := newest(t.Context(), dir, f.job)
		if c.want == ErrNewer {
			wants(t, "newest: "+says, err, ErrNewer, says)
		} else if wants(t, "newest: "+says, err, ErrNone); len(skipped) != 1 {
			t.Errorf("%s: skipped %v", says, skipped)
		}
	}
}

// A checkpoint is not complete before its parts are.
func TestCompleteRefuses(t *testing.T) {
	f, dir := trained(t), t.TempDir()
	m := f.save(t, dir, at(1))
	for says, change := range map[string]func(m *Manifest){
		"1 parts of 2 shards":  func(m *Manifest) { m.Parts = m.Parts[:1] },
		"part 0 is of shard 1": func(m *Manifest) { m.Parts = []PartInfo{m.Parts[1], m.Parts[0]} },
		"want": func(m *Manifest) {
			m.Parts = []PartInfo{m.Parts[0], {Shard: 1, Bytes: m.Parts[1].Bytes + 1, Checksum: m.Parts[1].Checksum}}
		},
		"no job":         func(m *Manifest) { m.Job = nil },
		"epoch 0":        func(m *Manifest) { m.ID.Epoch = 0 },
		"no such file":   func(m *Manifest) { m.ID = at(2) },
		"want them asce": func(m *Manifest) { m.LR = append(m.LR, m.LR[0]) },
	} {
		changed := *m
		change(&changed)
		wants(t, says, Complete(dir, &changed), nil, says, "complete checkpoint")
		if _, err := os.Stat(completePath(dir, "films", at(1))); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s: %v, want no manifest", says, err)
		}
	}
	must(t, Complete(dir, m))
	must(t, m.Verify(dir))
	for _, name := range files(t, dir) {
		if strings.HasSuffix(name, ".tmp") {
			t.Errorf("left %s", filepath.Base(name))
		}
	}
}
