package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/schema"
	"gradbus/shard/state"
)

// link is the checkpoint of a version of the run that increments are of.
func link(v schema.Version) ID { return ID{Epoch: 4, Run: 44, Version: v} }

// stepFew makes the next version: few rows, and at every second one the parameters.
func (f *fleet) stepFew(t testing.TB, v schema.Version) {
	t.Helper()
	f.advance(t, v, v%2 != 0, func(table int, key uint64) bool {
		return rand.New(rand.NewPCG(key, uint64(v)*9+uint64(table))).IntN(12) == 0
	})
}

// copyOf takes a copy of what every owner has at a version: everything, or what was touched since another.
func (f *fleet) copyOf(t testing.TB, shard int, at, since schema.Version) (*state.Extent, *state.Snapshot) {
	t.Helper()
	o, e, s := f.owners[shard], &state.Extent{Rows: map[string]int64{}}, &state.Snapshot{}
	dense, err := o.dense.Copy(at, since, since == 0)
	must(t, err)
	e.Tensors, _ = dense.Touched()
	for pieces, more := dense.Next(); more; pieces, more = dense.Next() {
		for _, p := range pieces {
			must(t, s.AddTensor(p))
		}
	}
	dense.Close()
	for i := range f.job.Tables {
		a := o.tables[f.job.Tables[i].Name]
		if a == nil {
			continue
		}
		c := a.Copy(since, since == 0)
		e.Rows[f.job.Tables[i].Name], _ = c.Touched()
		for rows, more := c.Next(12); more; rows, more = c.Next(12) {
			must(t, s.AddRows(rows))
		}
		c.Close()
	}
	return e, s
}

// write writes the parts of a version, and completes it: of a full one, or over that of an earlier version.
func (f *fleet) write(t testing.TB, dir string, at, since schema.Version) *Manifest {
	t.Helper()
	m := f.parts(t, dir, at, since)
	must(t, Complete(dir, m))
	return m
}

func (f *fleet) parts(t testing.TB, dir string, at, since schema.Version) *Manifest {
	t.Helper()
	m := &Manifest{ID: link(at), Job: f.job, Shards: len(f.owners)}
	for shard := range f.owners {
		e, s := f.copyOf(t, shard, at, since)
		p, err := NewPart(dir, f.job, link(at), len(f.owners), shard)
		if since > 0 {
			p.Discard()
			m.Base = &Base{ID: link(since)}
			p, err = NewIncrement(dir, f.job, link(at), link(since), len(f.owners), shard, e)
		}
		must(t, err)
		for _, x := range s.Tensors {
			must(t, p.Tensor(x))
		}
		for _, x := range s.Rows {
			must(t, p.Rows(x))
		}
		info, err := p.Commit()
		must(t, err)
		m.Parts = append(m.Parts, info)
	}
	return m
}

// chained is a full checkpoint of version 2 and increments of 3, 4 and 5 over it, by two shards, and what was there at
// each version.
func chained(t testing.TB) (dir string, f *fleet, texts map[schema.Version]string) {
	t.Helper()
	dir, f, texts = t.TempDir(), newFleet(t, testBackend(t), testJob(), 2), map[schema.Version]string{}
	for v := range schema.Version(5) {
		f.stepFew(t, v)
		at := v + 1
		if texts[at] = f.text(t); at == 2 {
			f.write(t, dir, at, 0)
		} else if at > 2 {
			f.write(t, dir, at, at-1)
		}
	}
	return dir, f, texts
}

// restored is what so many shards have that a checkpoint was read onto.
func restored(t testing.TB, dir string, m *Manifest, shards int) *fleet {
	t.Helper()
	other := newFleet(t, testBackend(t), testJob(), shards)
	other.step(t, 0)
	other.restore(t, dir, m)
	return other
}

// A chain restores onto any number of shards what a full checkpoint of the same version does, and goes on with equal
// bits. Its increments are small.
func TestChainRoundTrip(t *testing.T) {
	dir, f, texts := chained(t)
	elsewhere := t.TempDir()
	m, skipped, err := newest(t.Context(), dir, f.job)
	if err != nil || len(skipped) > 0 || m.ID != link(5) || m.Full() || len(m.Chain()) != 4 || m.Format != formatIncrement {
		t.Fatalf("%+v, %v, %v", m, skipped, err)
	}
	full := f.write(t, elsewhere, 5, 0)
	for shards := 1; shards <= 3; shards++ {
		over, whole := restored(t, dir, m, shards), restored(t, elsewhere, full, shards)
		if got := over.text(t); got != texts[5] || got != whole.text(t) {
			t.Errorf("%d shards: %s", shards, firstDifference(got, texts[5]))
		}
		over.step(t, 5)
		whole.step(t, 5)
		if got, want := over.text(t), whole.text(t); got != want {
			t.Errorf("%d shards a step later: %s", shards, firstDifference(got, want))
		}
	}
	for v := schema.Version(2); v < 5; v++ {
		earlier, err := Open(dir, "films", link(v))
		must(t, err)
		if got := restored(t, dir, earlier, 1).text(t); got != texts[v] {
			t.Errorf("version %d: %s", v, firstDifference(got, texts[v]))
		}
	}
	if even := openOf(t, dir, 5); even.bytes() > full.bytes()/2 {
		t.Errorf("the increment takes %d bytes, and a full checkpoint %d", even.bytes(), full.bytes())
	}
	got, want := filepath.Join(t.TempDir(), "got"), filepath.Join(t.TempDir(), "want")
	must(t, m.Export(dir, got))
	must(t, full.Export(elsewhere, want))
	a, err := os.ReadFile(got)
	must(t, err)
	if b, err := os.ReadFile(want); err != nil || !bytes.Equal(a, b) {
		t.Errorf("%v: the exported model is another one", err)
	}
}

func openOf(t testing.TB, dir string, v schema.Version) *Manifest {
	t.Helper()
	m, err := Open(dir, "films", link(v))
	must(t, err)
	return m
}

// What does not fit an increment is refused by name, and nothing is committed or left.
func TestIncrementRefuses(t *testing.T) {
	dir, f, _ := chained(t)
	for v := schema.Version(5); v < 8; v++ {
		f.stepFew(t, v)
	}
	e, s := f.copyOf(t, 0, 8, 5)
	before := len(files(t, dir))
	first := slices.IndexFunc(s.Rows, func(r state.Rows) bool { return len(r.Keys) > 1 })
	for says, change := range map[string]func(*state.Snapshot, *state.Extent){
		"comes twice": func(s *state.Snapshot, _ *state.Extent) {
			s.Tensors = append(s.Tensors, s.Tensors[0])
		},
		"did not come":               func(s *state.Snapshot, _ *state.Extent) { s.Tensors = s.Tensors[1:] },
		"want them ascending":        func(s *state.Snapshot, _ *state.Extent) { slices.Reverse(s.Rows[first].Keys) },
		"rows that were touched":     func(_ *state.Snapshot, e *state.Extent) { e.Rows[s.Rows[first].Table]-- },
		", did not come":             func(_ *state.Snapshot, e *state.Extent) { e.Rows[s.Rows[first].Table]++ },
		"not in partition":           func(s *state.Snapshot, _ *state.Extent) { s.Rows[first].Partition++ },
		"not all of them were touch": func(_ *state.Snapshot, e *state.Extent) { e.Tensors = e.Tensors[1:] },
		"it is not known how many steps": func(s *state.Snapshot, e *state.Extent) {
			s.Rows = slices.DeleteFunc(s.Rows, func(r state.Rows) bool { return r.Table == "users" })
			e.Rows["users"] = 0
		},
		"rows of 1 tables that are not on shard 0": func(_ *state.Snapshot, e *state.Extent) { e.Rows["none"] = 1 },
		"-1 rows of table":                         func(_ *state.Snapshot, e *state.Extent) { e.Rows["users"] = -1 },
		"shard 0 has none":                         func(_ *state.Snapshot, e *state.Extent) { e.Tensors[0].Name = "none" },
		"element 0 of dens": func(_ *state.Snapshot, e *state.Extent) {
			e.Tensors = append(e.Tensors, e.Tensors[0])
		},
	} {
		var changed state.Snapshot
		for _, x := range s.Tensors {
			must(t, changed.AddTensor(x))
		}
		for _, x := range s.Rows {
			must(t, changed.AddRows(x))
		}
		extent := state.Extent{Tensors: slices.Clone(e.Tensors), Rows: map[string]int64{}}
		for name, n := range e.Rows {
			extent.Rows[name] = n
		}
		change(&changed, &extent)
		p, err := NewIncrement(dir, f.job, link(8), link(5), 2, 0, &extent)
		if err == nil {
			for _, x := range changed.Tensors {
				err = errors.Join(err, p.Tensor(x))
			}
			for _, x := range changed.Rows {
				err = errors.Join(err, p.Rows(x))
			}
			_, failed := p.Commit()
			err = errors.Join(err, failed)
			p.Discard()
		}
		wants(t, says, err, nil, says)
		if left := files(t, dir); len(left) != before {
			t.Fatalf("%s: left %q", says, left)
		}
	}
	_, err := NewIncrement(dir, f.job, link(8), link(9), 2, 0, e)
	wants(t, "a later base", err, nil, "want an earlier version of the same run")
}

// Whatever was touched between checkpoints, and whichever they go on from, each restores as what was there.
func TestRandomChains(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 2))
		dir, f := t.TempDir(), newFleet(t, testBackend(t), testJob(), 1+r.IntN(3))
		written, texts, step := []schema.Version{}, map[schema.Version]string{}, schema.Version(0)
		for range 7 {
			for range 1 + r.IntN(3) {
				if r.IntN(6) == 0 {
					f.step(t, step)
				} else {
					f.stepFew(t, step)
				}
				step++
			}
			since := schema.Version(0)
			if len(written) > 0 && r.IntN(5) > 0 {
				since = written[r.IntN(len(written))]
			}
			texts[step] = f.text(t)
			f.write(t, dir, step, since)
			written = append(written, step)
		}
		for _, v := range written {
			m := openOf(t, dir, v)
			must(t, m.Verify(dir))
			if got := restored(t, dir, m, 1+r.IntN(3)).text(t); got != texts[v] {
				t.Fatalf("seed %d, version %d over %d: %s", seed, v, len(m.Chain())-1, firstDifference(got, texts[v]))
			}
		}
	}
}

// A large table is read by pieces, with rows of increments in each of them.
func TestChainOfALargeTable(t *testing.T) {
	job := (&schema.Job{Name: "films", Optimizer: schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.1},
		Tables: []schema.TableSpec{{Name: "t", Rows: 90_000, Dim: 4, Partitions: 2, Init: schema.Normal(1)}},
	}).WithDefaults()
	f, dir := newFleet(t, testBackend(t), job, 1), t.TempDir()
	for v := range schema.Version(4) {
		f.stepFew(t, v)
		f.write(t, dir, v+1, v)
	}
	got := map[string][]float32{"t": make([]float32, 360_000)}
	must(t, openOf(t, dir, 4).Read(dir, nil, func(r state.Rows) error { place(job, got, nil, &r); return nil }))
	if want := f.weights(t)["t"]; !slices.Equal(got["t"], want) {
		t.Error("rows have other values, or other places")
	}
	var e strings.Builder
	for _, m := range openOf(t, dir, 4).Chain() {
		fmt.Fprint(&e, m.bytes(), " ")
	}
	if m := openOf(t, dir, 4); m.bytes() > m.Chain()[0].bytes()/5 {
		t.Errorf("a twelfth of the rows takes too much: %s", e.String())
	}
}
