package state

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/schema"
)

// overlay is rows of a table by key, as a chain of copies makes them.
type overlay struct {
	at   string
	rows map[uint64]string
}

// add puts a piece over what is there.
func (o *overlay) add(r *Rows) {
	o.at = fmt.Sprintf("version %d steps %d", r.Version, r.Steps)
	for i, key := range r.Keys {
		text := fmt.Sprintf("%x", r.Values[i*r.Columns:(i+1)*r.Columns])
		for _, s := range r.Slots {
			each := len(s.Values) / len(r.Keys)
			text += fmt.Sprintf(" %s %x", s.Name, s.Values[i*each:(i+1)*each])
		}
		if len(r.Last) > 0 {
			text += fmt.Sprint(" ", r.Last[i])
		}
		o.rows[key] = text
	}
}

func (o *overlay) clone() *overlay {
	c := &overlay{o.at, map[uint64]string{}}
	for key, text := range o.rows {
		c.rows[key] = text
	}
	return c
}

func (o *overlay) equal(want *overlay) error {
	if len(o.rows) != len(want.rows) {
		return fmt.Errorf("%d rows, want %d", len(o.rows), len(want.rows))
	}
	for key, text := range want.rows {
		if o.rows[key] != text {
			return fmt.Errorf("key %d: %s, want %s", key, o.rows[key], text)
		}
	}
	return nil
}

// A full copy with copies of what was touched since an earlier one over it is what was there, whichever earlier copy
// each is since, whatever steps and readers do meanwhile, and also where copies are given up. Copies have as many rows
// as they have said.
func TestRowsTouchedAgainstNaive(t *testing.T) {
	backend := testBackend(t)
	for name, o := range testOptimizers() {
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, 9))
			g := newGroup(t, backend, o, 1, 1+r.IntN(9), false)
			a := g.owners[0]
			if a.config.Touches = r.IntN(8) > 0; a.config.Touches { // else every copy has all
				a.touched.at = make([]uint8, testRows)
				a.touched.forget()
			}
			next := schema.Version(0)
			step := func() {
				w := testWork(seed, next)
				if w != nil && r.IntN(2) == 0 { // few rows
					w.keys, w.rows = w.keys[:1], w.rows[:testDim]
				}
				g.apply(t, w)
				g.commit()
				next++
			}
			whole := map[schema.Version]*overlay{} // by version
			for range 12 {
				step()
				base := schema.Version(r.IntN(int(next)))
				from, known := whole[base]
				want := &overlay{rows: map[uint64]string{}}
				must(t, a.Snapshot(1<<20, func(rows Rows) error { want.add(&rows); return nil }))
				at := next
				c := a.Copy(base, !known)
				got := &overlay{rows: map[uint64]string{}}
				if known {
					got = from.clone()
				}
				rows, givenUp := int64(0), r.IntN(5) == 0
				for !givenUp || r.IntN(9) > 0 {
					piece, more := c.Next(1 + r.IntN(40))
					if !more {
						break
					}
					rows += int64(len(piece.Keys))
					if !slices.IsSorted(piece.Keys) {
						t.Fatalf("%s, seed %d: keys %v", name, seed, piece.Keys)
					}
					got.add(&piece)
					if r.IntN(3) == 0 {
						step()
					}
					if r.IntN(6) == 0 {
						g.all(t) // readers may make up for steps
					}
				}
				c.Close()
				if givenUp {
					continue
				}
				if said, bytes := c.Touched(); known && said != rows || said > testRows || bytes < said*testDim*4 {
					t.Errorf("%s, seed %d: %d rows of %d bytes were said, and %d came", name, seed, said, bytes, rows)
				}
				if err := got.equal(want); err != nil {
					t.Fatalf("%s, seed %d: version %d over version %d: %v", name, seed, at, base, err)
				}
				whole[at] = got
			}
		}
	}
}

// Only what has changed is in a copy since another.
func TestRowsTouchedAreFew(t *testing.T) {
	g := newGroup(t, testBackend(t), testOptimizers()["momentum"], 1, 4, false)
	a := g.owners[0]
	a.touched.at = make([]uint8, testRows)
	a.touched.forget()
	touch := func(keys ...uint64) {
		g.apply(t, &work{weight: 1, keys: keys, rows: make([]float32, len(keys)*testDim)})
		g.commit()
	}
	keysOf := func(c RowsCopy) (keys []uint64) {
		for rows, more := c.Next(7); more; rows, more = c.Next(7) {
			keys = append(keys, rows.Keys...)
		}
		c.Close()
		slices.Sort(keys)
		return keys
	}
	touch(1, 2, 3)
	if n := len(keysOf(a.Copy(0, true))); n != testRows { // version 1
		t.Errorf("%d rows of all", n)
	}
	touch(7, 2)
	if keys := keysOf(a.Copy(1, false)); !slices.Equal(keys, []uint64{2, 7}) { // version 2
		t.Errorf("since version 1: %v", keys)
	}
	touch(9)
	c := a.Copy(1, false) // version 3
	if rows, _ := c.Touched(); rows != 3 {
		t.Errorf("%d rows since version 1", rows)
	}
	touch(9, 11)
	if kept := len(a.undo.index); kept != 1 {
		t.Errorf("%d old rows are kept, want that of row 9: row 11 was not touched before", kept)
	}
	if keys := keysOf(c); !slices.Equal(keys, []uint64{2, 7, 9}) {
		t.Errorf("since version 1 again: %v", keys)
	}
	if keys := keysOf(a.Copy(3, false)); !slices.Equal(keys, []uint64{9, 11}) {
		t.Errorf("since version 3: %v", keys)
	}
	if n := len(keysOf(a.Copy(4444, false))); n != testRows {
		t.Errorf("%d rows since a version that was not copied", n)
	}
	restore := a.Restore()
	must(t, g.putBack(t, restore))
	if n := len(keysOf(a.Copy(4, false))); n != testRows {
		t.Errorf("%d rows since a version before a restore", n)
	}
}

// putBack restores what is there.
func (g *group) putBack(t testing.TB, to RowsRestore) error {
	t.Helper()
	var s Snapshot
	must(t, g.owners[0].Snapshot(1<<20, s.AddRows))
	for _, r := range s.Rows {
		must(t, to.Rows(r))
	}
	return to.Done()
}

// Numbers of intervals run out, and the oldest are forgotten: a copy since one of these has everything, and one since a
// later version what was touched since.
func TestIntervalsRunOut(t *testing.T) {
	g := newGroup(t, testBackend(t), testOptimizers()["sgd"], 1, 1, false)
	a := g.owners[0]
	a.touched.at = make([]uint8, testRows)
	a.touched.forget()
	d := newTestDense(t, testBackend(t), testOptimizers()["sgd"], 7, false)
	last := schema.Version(0)
	for v := range schema.Version(3 * intervalsMax) {
		key := uint64(v) % testRows
		touch := func() {
			g.apply(t, &work{weight: 1, keys: []uint64{key}, rows: []float32{1, 1, 1, 1, 1}})
			g.commit()
		}
		touch()
		want := slices.Clone(a.row(int(key)))
		rows := a.Copy(last, false)
		last = a.version
		touch() // while it is copied
		piece, _ := rows.Next(1 << 20)
		rows.Close()
		said, _ := rows.Touched()
		at := slices.Index(piece.Keys, key)
		if at < 0 || len(piece.Keys) > 2 && v > 0 || said != int64(len(piece.Keys)) {
			t.Fatalf("version %d: %d rows: %v", last, said, piece.Keys)
		}
		if got := piece.Values[at*testDim : (at+1)*testDim]; !sameBits(got, want) {
			t.Fatalf("version %d: %v, want %v", last, got, want)
		}
		i := int(v) % len(d.chunks)
		for k := range d.chunks {
			if k == i {
				d.Set(k, make([]float32, d.config.Chunks[k].Elements))
			} else {
				d.Keep(k)
			}
		}
		dense, err := d.Copy(v+1, v, false)
		must(t, err)
		if n := len(dense.copied(t)); n != 1 && v > 0 || !dense.touched[i] {
			t.Fatalf("version %d: %d chunks", v+1, n)
		}
		if v < 2*intervalsMax || v%16 > 0 {
			continue
		}
		far := a.Copy(last-100, false)
		if said, _ := far.Touched(); said < 50 || said > 102 {
			t.Fatalf("version %d: %d rows were touched since 100 versions before", last, said)
		}
		far.Close()
	}
}

// copied is all pieces that are left of a copy, which it ends.
func (c *DenseCopy) copied(t testing.TB) []Tensor {
	t.Helper()
	var s Snapshot
	for pieces, more := c.Next(); more; pieces, more = c.Next() {
		for _, p := range pieces {
			must(t, s.AddTensor(p))
		}
	}
	c.Close()
	return s.Tensors
}

// The same of chunks: those that nobody had a sample for are not in a copy, and those that were stepped are.
func TestDenseTouchedAgainstNaive(t *testing.T) {
	backend := testBackend(t)
	for name, o := range testOptimizers() {
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 11))
			d := newTestDense(t, backend, o, 1+r.IntN(20), false)
			step := func(i int) {
				if r.IntN(2) == 0 {
					d.Keep(i)
					return
				}
				d.stepChunk(t, i, seed, d.Version(i))
			}
			whole := map[schema.Version]map[string]string{}
			fewer := false
			for at := schema.Version(1); at < 12; at++ {
				for i := range d.chunks {
					for d.Version(i) < at {
						step(i)
					}
				}
				for i := range r.IntN(len(d.chunks) + 1) { // some may be at the next version already
					step(i)
				}
				want, base := textsOf(t, d, at), schema.Version(r.IntN(int(at)))
				got, known := whole[base]
				c, err := d.Copy(at, base, !known)
				must(t, err)
				said, _ := c.Touched()
				pieces := c.copied(t)
				if !known {
					got, said = map[string]string{}, nil
				}
				whole[at] = map[string]string{}
				for name, text := range got {
					whole[at][name] = text
				}
				for i, p := range pieces {
					whole[at][fmt.Sprint(p.Name, p.From)] = textOf(p)
					if known && said[i] != (Stretch{p.Name, p.From, len(p.Values)}) {
						t.Errorf("%s, seed %d: said %v, and %s %d came", name, seed, said[i], p.Name, p.From)
					}
				}
				fewer = fewer || len(pieces) < len(d.chunks)
				for piece, text := range want {
					if whole[at][piece] != text {
						t.Fatalf("%s, seed %d: version %d over %d: %s is %s, want %s", name, seed, at, base, piece,
							whole[at][piece], text)
					}
				}
			}
			if !fewer && seed == 0 {
				t.Errorf("%s: every copy has all chunks", name)
			}
		}
	}
}

func textOf(p Tensor) string {
	text := fmt.Sprintf("%x", p.Values)
	for _, s := range p.Slots {
		text += fmt.Sprintf(" %s %x", s.Name, s.Values)
	}
	return text
}

func textsOf(t testing.TB, d *testDense, at schema.Version) map[string]string {
	t.Helper()
	texts := map[string]string{}
	must(t, d.Snapshot(at, func(p Tensor) error { texts[fmt.Sprint(p.Name, p.From)] = textOf(p); return nil }))
	return texts
}

// What noting costs beside the step of rows, as a ratio of pairs: go test -bench Touches ./shard/state.
func BenchmarkTouches(b *testing.B) {
	backend := testBackend(b)
	for _, notes := range []bool{false, true} {
		b.Run(fmt.Sprintf("notes=%v", notes), func(b *testing.B) {
			const rows, keys, dim = 1 << 20, 1 << 13, 16
			spec := schema.TableSpec{Name: "t", Rows: rows, Dim: dim, Partitions: 8, Init: schema.Zeros()}
			a, err := NewArray(b.Context(), ArrayConfig{Backend: backend, Spec: &spec,
				Optimizer: testOptimizers()["momentum"], Here: func(schema.Partition) bool { return true }, Columns: dim,
				Touches: notes})
			must(b, err)
			defer a.Close()
			r := rand.New(rand.NewPCG(1, 2))
			g := RowGradient{Keys: make([]uint64, keys), Sums: cuda.Float32s(make([]float32, keys*dim)), Weight: 1, Scale: 1}
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				for k := range g.Keys {
					g.Keys[k] = uint64(k*(rows/keys) + r.IntN(rows/keys))
				}
				if i%100 == 0 {
					a.touched.room()
					a.touched.mark(a.version)
				}
				b.StartTimer()
				must(b, a.Apply(g))
				a.Commit()
			}
		})
	}
}

// What a step may have to wait for: the copy of a piece, and the old values that it keeps itself.
//
//	go test ./shard/state -run '^$' -bench Pieces -benchtime 2000x
func BenchmarkPieces(b *testing.B) {
	backend := testBackend(b)
	const rows, keys, dim = 1 << 18, 1 << 11, 64
	spec := schema.TableSpec{Name: "t", Rows: rows, Dim: dim, Partitions: 8, Init: schema.Zeros()}
	a, err := NewArray(b.Context(), ArrayConfig{Backend: backend, Spec: &spec, Optimizer: testOptimizers()["momentum"],
		Here: func(schema.Partition) bool { return true }, Columns: dim, Touches: true})
	must(b, err)
	defer a.Close()
	r := rand.New(rand.NewPCG(1, 2))
	var pieces, without, during []time.Duration
	g := RowGradient{Keys: make([]uint64, keys), Sums: cuda.Float32s(make([]float32, keys*dim)), Weight: 1, Scale: 1}
	commit := func() time.Duration {
		for k := range g.Keys {
			g.Keys[k] = uint64(k*(rows/keys) + r.IntN(rows/keys))
		}
		began := time.Now()
		must(b, a.Apply(g))
		a.Commit()
		return time.Since(began)
	}
	var c RowsCopy
	since := schema.Version(0)
	for b.Loop() {
		without = append(without, commit())
		if c == nil {
			c, since = a.Copy(since, len(pieces)%2 == 0), a.version
		}
		began := time.Now()
		_, more := c.Next(1 << 14)
		pieces = append(pieces, time.Since(began))
		if during = append(during, commit()); !more {
			c.Close()
			c = nil
		}
	}
	for what, all := range map[string][]time.Duration{"piece": pieces, "commit": without, "commit-during": during} {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2].Seconds()*1e6, "us-p50-"+what)
		b.ReportMetric(all[len(all)*99/100].Seconds()*1e6, "us-p99-"+what)
	}
}
