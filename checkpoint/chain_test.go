package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gradbus/schema"
)

// Whichever file of a chain is cut, changed or gone, what goes on from it is damaged, by name; the newest version that
// does not is taken, whole.
func TestDamageInAChain(t *testing.T) {
	dir, f, texts := chained(t)
	r := rand.New(rand.NewPCG(5, 6))
	for v := schema.Version(2); v <= 5; v++ {
		paths := []string{completePath(dir, "films", link(v))}
		for shard := range f.owners {
			paths = append(paths, partPath(dir, "films", link(v), shard))
		}
		for _, path := range paths {
			check := func(what string) {
				t.Helper()
				m, skipped, err := newest(t.Context(), dir, f.job)
				if v == 2 {
					if wants(t, what, err, ErrNone, "4 are damaged"); len(skipped) != 4 {
						t.Errorf("%s of version %d: skipped %v", what, v, skipped)
					}
					return
				}
				if err != nil || m.ID != link(v-1) || len(skipped) != int(6-v) {
					t.Fatalf("%s of version %d: %+v, %v, %v", what, v, m, skipped, err)
				}
				for i, s := range skipped {
					wants(t, what, s, ErrDamaged, link(schema.Version(5-i)).String(), link(v).String())
				}
			}
			altered(t, path, func(whole []byte, try func([]byte, string)) {
				try(whole[:len(whole)-1], "a byte less")
				try(whole[:len(whole)/2], "cut")
				try(append(slices.Clone(whole), 0), "a byte more")
				for range 6 {
					try(flipped(whole, r.IntN(len(whole)), byte(1<<r.IntN(8))), "flipped")
				}
			}, check)
			must(t, os.Rename(path, path+".away"))
			if path == paths[0] && v == 5 { // as one that is being written, which is not named
				m, skipped, err := newest(t.Context(), dir, f.job)
				if err != nil || m.ID != link(4) || len(skipped) > 0 {
					t.Errorf("%+v, %v, %v", m, skipped, err)
				}
			} else if path != paths[0] {
				check("gone")
			}
			must(t, os.Rename(path+".away", path))
		}
		if v > 2 {
			flip(t, paths[1])
			m, _, err := newest(t.Context(), dir, f.job)
			must(t, err)
			if got := restored(t, dir, m, 1+int(v)%3).text(t); got != texts[v-1] {
				t.Errorf("version %d: %s", v-1, firstDifference(got, texts[v-1]))
			}
			flip(t, paths[1])
		}
	}
	if m, skipped, err := newest(t.Context(), dir, f.job); err != nil || m.ID != link(5) || len(skipped) > 0 {
		t.Errorf("%+v, %v, %v", m, skipped, err)
	}
}

// Every byte of the manifest of an increment, and every byte of a small part, counts.
func TestEveryByteOfAnIncrement(t *testing.T) {
	dir, f, _ := chained(t)
	path := completePath(dir, "films", link(5))
	altered(t, path, func(whole []byte, try func([]byte, string)) {
		for i := 0; i < len(whole); i += stride {
			if try(flipped(whole, i, 1), "flipped"); i%8 == 0 {
				try(whole[:i], "cut")
			}
		}
	}, func(what string) {
		_, err := openAlone(dir, "films", link(5))
		wants(t, what, err, ErrDamaged)
	})
	m, path := openOf(t, dir, 5), partPath(dir, "films", link(5), 1)
	altered(t, path, func(whole []byte, try func([]byte, string)) {
		for i := 0; i < len(whole); i += stride {
			try(flipped(whole, i, byte(1<<(i%8))), "flipped")
		}
		for n := 0; n < len(whole); n += 512 {
			try(whole[:n], "cut")
		}
	}, func(what string) { wants(t, what, m.verify(t.Context(), dir), ErrDamaged, path) })
	if _, _, err := newest(t.Context(), dir, f.job); err != nil {
		t.Error(err)
	}
}

// An increment over another base than the one that it was made from is no version, even where every file is whole.
func TestBaseThatIsAnother(t *testing.T) {
	dir, f, _ := chained(t)
	path := completePath(dir, "films", link(3))
	text, err := os.ReadFile(path)
	must(t, err)
	m := openOf(t, dir, 3)
	m.LR = append(m.LR, schema.LRChange{From: 1, Scale: 0.5})
	must(t, os.Remove(path))
	must(t, Complete(dir, m)) // well by itself
	if _, err := Open(dir, "films", link(3)); err != nil {
		t.Fatal(err)
	}
	for v := schema.Version(4); v <= 5; v++ {
		_, err := Open(dir, "films", link(v))
		wants(t, "another base", err, ErrDamaged, link(v).String(),
			"its base "+link(3).String()+" has a manifest with checksum")
	}
	must(t, os.WriteFile(path, text, 0o600))
	must(t, os.Remove(path))
	for v := schema.Version(4); v <= 5; v++ {
		_, err := Open(dir, "films", link(v))
		wants(t, "no base", err, ErrDamaged, "its base", link(3).String(), "no complete.json")
		if errors.Is(err, ErrIncomplete) {
			t.Error("an increment without its base looks as if it was on its way")
		}
	}
	if got, _, err := newest(t.Context(), dir, f.job); err != nil || got.ID != link(2) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A kill between any two steps of what is written leaves the version before, or the whole new one. What is left does
// not stand in the way of the next.
func TestKilledWhileAnIncrementIsWritten(t *testing.T) {
	dir, f, texts := chained(t)
	folder := folderOf(dir, "films", link(5))
	whole := map[string][]byte{}
	for _, name := range []string{"s0.safetensors", "s1.safetensors", completeName} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		must(t, err)
		whole[name] = text
	}
	must(t, os.RemoveAll(folder))
	check := func(what string, want schema.Version) {
		t.Helper()
		m, skipped, err := newest(t.Context(), dir, f.job)
		if err != nil || m.ID != link(want) || len(skipped) > 0 {
			t.Fatalf("%s: %+v, %v, %v", what, m, skipped, err)
		}
		if got := restored(t, dir, m, 3).text(t); got != texts[want] {
			t.Errorf("%s: %s", what, firstDifference(got, texts[want]))
		}
		removed, err := Prune(dir, "films", 2)
		if err != nil || len(removed) > 0 {
			t.Errorf("%s: removed %v, %v", what, removed, err)
		}
	}
	must(t, os.Mkdir(folder, 0o700))
	check("a folder", 4)
	for _, name := range []string{"s1.safetensors", "s0.safetensors", completeName} {
		part := filepath.Join(folder, "."+name+".ABC.tmp")
		for _, n := range []int{0, len(whole[name]) / 3, len(whole[name])} {
			must(t, os.WriteFile(part, whole[name][:n], 0o600)) // written in part, in whole, on the disk or not
			check(fmt.Sprintf("%s of %d bytes", part, n), 4)
		}
		must(t, os.Rename(part, filepath.Join(folder, name)))
		if name != completeName {
			check("renamed "+name, 4)
		}
	}
	check("complete", 5)

	must(t, os.RemoveAll(folder)) // and again, after a kill that left a part
	must(t, os.Mkdir(folder, 0o700))
	must(t, os.WriteFile(filepath.Join(folder, "s1.safetensors"), whole["s1.safetensors"][:99], 0o600))
	f.write(t, dir, 5, 4)
	check("written again", 5)
}

// Prune keeps what anything that stays goes on from, and one that does not go on from the same full checkpoint.
func TestPruneOfChains(t *testing.T) {
	dir, f, texts := chained(t) // 2, then 3, 4 and 5 over it
	step := func(v schema.Version) {
		f.stepFew(t, v-1)
		texts[v] = f.text(t)
	}
	prune := func(keep int, want ...schema.Version) {
		t.Helper()
		_, err := Prune(dir, "films", keep)
		must(t, err)
		var left []schema.Version
		for _, id := range idsIn(t, dir) {
			left = append(left, id.Version)
		}
		if !slices.Equal(left, want) {
			t.Errorf("left %v, want %v", left, want)
		}
		for _, v := range left {
			m, err := Open(dir, "films", link(v))
			if errors.Is(err, ErrIncomplete) || errors.Is(err, ErrNewer) {
				continue
			}
			must(t, err)
			if err := m.Verify(dir); err != nil {
				t.Error(err)
			}
		}
	}
	prune(2, 5, 4, 3, 2)
	step(6)
	f.write(t, dir, 6, 2) // goes on from the full one, past those between
	prune(2, 6, 5, 4, 3, 2)
	step(7)
	f.write(t, dir, 7, 6)
	prune(2, 7, 6, 2)
	step(8)
	f.write(t, dir, 8, 0) // another chain
	prune(2, 8, 7, 6, 2)
	step(9)
	f.write(t, dir, 9, 8)
	prune(2, 9, 8, 7, 6, 2) // both go on from 8: one stays that does not
	step(10)
	f.write(t, dir, 10, 9)
	prune(2, 10, 9, 8, 7, 6, 2)
	flip(t, partPath(dir, "films", link(8), 0))
	m, skipped, err := newest(t.Context(), dir, f.job)
	if err != nil || m.ID != link(7) || len(skipped) != 3 {
		t.Fatalf("%+v, %v, %v", m, skipped, err)
	}
	if got := restored(t, dir, m, 1).text(t); got != texts[7] {
		t.Error(firstDifference(got, texts[7]))
	}
	flip(t, partPath(dir, "films", link(8), 0))
	step(11)
	f.write(t, dir, 11, 0)
	prune(2, 11, 10, 9, 8)
	step(12)
	f.parts(t, dir, 12, 11) // on its way
	prune(2, 12, 11, 10, 9, 8)
	step(13)
	f.write(t, dir, 13, 11)
	resealed(t, dir, link(10), `"format": 2`, `"format": 4`) // who knows what it goes on from
	prune(2, 13, 11, 10, 9, 8)
}

// What an increment goes on from has to be there, and of the same run, before it counts.
func TestCompleteRefusesBases(t *testing.T) {
	dir, f, _ := chained(t)
	f.stepFew(t, 5)
	m := f.parts(t, dir, 6, 5)
	for says, base := range map[string]ID{
		"want an earlier version of the same run":                    link(6),
		"base 000003-000000000000002c-000000000005 of checkpoint":    {Epoch: 3, Run: 44, Version: 5},
		"base 000004-000000000000002d-000000000005 of checkpoint 00": {Epoch: 4, Run: 45, Version: 5},
		"no complete.json":                    link(1),
		"gradbus.base: \"" + link(5).String(): link(4),
	} {
		changed := *m
		changed.Base = &Base{ID: base}
		wants(t, says, Complete(dir, &changed), nil, says, "complete checkpoint")
	}
	full := *m
	full.Base = nil
	wants(t, "without a base", Complete(dir, &full), nil, "complete checkpoint")
	if _, err := os.Stat(completePath(dir, "films", link(6))); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%v, want no manifest", err)
	}
	must(t, Complete(dir, m))
	must(t, m.Verify(dir))
}
