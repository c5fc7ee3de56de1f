package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/state"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, what string, err, want error, says ...string) {
	t.Helper()
	if err == nil || want != nil && !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %v, want it to say %q", what, err, s)
		}
	}
}

// testJob has a parameter of several chunks, one with an optimizer of its own, and tables that are cut both ways. Names
// are such as slots and marks might be taken for.
func testJob() *schema.Job {
	adam := &schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.01}
	return (&schema.Job{Name: "films", Trainers: 1, Lanes: 1, ChunkBytes: schema.ChunkBytesMin, Seed: 7,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9},
		Parameters: []schema.Parameter{{Name: "net/w", Shape: []int{70, 100}, Init: schema.Normal(1)},
			{Name: "net/w:momentum", Shape: []int{33}, Init: schema.Normal(1), Optimizer: adam}},
		Tables: []schema.TableSpec{{Name: "users", Rows: 101, Dim: 4, Partitions: 7, Init: schema.Normal(1)},
			{Name: "words", Rows: 43, Dim: 5, Partitions: 3, Init: schema.Normal(1), Placement: schema.PlacementColumns,
				Pooling: schema.PoolingSum, Optimizer: adam},
			{Name: "exact", Rows: 19, Dim: 2, Partitions: 2, Init: schema.Normal(1),
				Optimizer: &schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.5, Exact: true}},
			{Name: "exact:last", Rows: 23, Dim: 3, Partitions: 5, Init: schema.Normal(1),
				Optimizer: &schema.Optimizer{Kind: schema.OptimizerRowwiseAdagrad, LR: 0.1}}}}).WithDefaults()
}

// owner is the state of one shard, made as package shard makes it.
type owner struct {
	dense  *state.Dense
	values [2][][]float32
	tables map[string]*state.Array
}

// fleet is the state of a job on so many shards.
type fleet struct {
	job    *schema.Job
	place  *schema.Placement
	owners []*owner
}

func newFleet(t testing.TB, backend cuda.Backend, job *schema.Job, shards int) *fleet {
	t.Helper()
	must(t, job.Validate())
	f := &fleet{job: job, place: schema.NewPlacement(job, shards)}
	for shard := range shards {
		o := &owner{tables: map[string]*state.Array{}}
		config := state.DenseConfig{Backend: backend, Lanes: job.Lanes,
			Values: func(i int, v schema.Version) []float32 { return o.values[v%2][i] }}
		for _, c := range f.place.OwnedChunks(shard) {
			chunk := state.PlacedChunk(job, f.place, c.Bucket, c.Chunk, true)
			config.Chunks = append(config.Chunks, chunk)
			for v := range o.values {
				o.values[v] = append(o.values[v], make([]float32, chunk.Elements))
			}
		}
		var err error
		o.dense, err = state.NewDense(config)
		must(t, err)
		t.Cleanup(o.dense.Close)
		must(t, o.dense.Draw(t.Context()))
		for i := range job.Tables {
			id := schema.Table(i)
			column, columns := f.place.Columns(id, shard)
			if columns == 0 {
				continue
			}
			a, err := state.NewArray(t.Context(), state.ArrayConfig{Backend: backend, Spec: &job.Tables[i],
				Optimizer: job.OptimizerOf(id), Seed: job.Seed, Column: column, Columns: columns, Touches: true,
				Here: func(p schema.Partition) bool { return f.place.Holds(id, p, shard) }})
			must(t, err)
			t.Cleanup(a.Close)
			o.tables[job.Tables[i].Name] = a
		}
		f.owners = append(f.owners, o)
	}
	return f
}

// gradient is a number that depends on what it is for alone.
func gradient(what string, at uint64, v schema.Version) float32 {
	h := uint64(len(what))
	for _, c := range []byte(what) {
		h = h*131 + uint64(c)
	}
	return float32(rand.New(rand.NewPCG(h, at<<8|uint64(v))).NormFloat64())
}

// step makes the next version of everything: of all parameters, and of every third row.
func (f *fleet) step(t testing.TB, v schema.Version) {
	t.Helper()
	f.advance(t, v, true, func(_ int, key uint64) bool { return (key+uint64(v))%3 == 0 })
}

// advance makes the next version, of parameters or not, and of the rows of each table whose keys are touched.
func (f *fleet) advance(t testing.TB, v schema.Version, parameters bool, touched func(table int, key uint64) bool) {
	t.Helper()
	for shard, o := range f.owners {
		for i, c := range f.place.OwnedChunks(shard) {
			if !parameters {
				o.dense.Keep(i)
				continue
			}
			chunk := state.PlacedChunk(f.job, f.place, c.Bucket, c.Chunk, true)
			g := make([]float32, chunk.Elements)
			for _, p := range chunk.Pieces {
				for k := range p.Elements {
					g[p.Offset+k] = gradient(p.Name, uint64(p.From+k), v)
				}
			}
			must(t, o.dense.Average(i, 3, []cuda.Term{{Count: 1, Values: cuda.Float32s(g)}}))
		}
		for i := range f.job.Tables {
			spec := &f.job.Tables[i]
			a, column, columns := o.tables[spec.Name], 0, 0
			if column, columns = f.place.Columns(schema.Table(i), shard); a == nil {
				continue
			}
			var keys []uint64
			var rows []float32
			for key := range spec.Rows {
				p := schema.PartitionOf(key, spec.Partitions)
				if !touched(i, key) || !f.place.Holds(schema.Table(i), p, shard) {
					continue
				}
				keys = append(keys, key)
				for c := range columns {
					rows = append(rows, gradient(spec.Name, key*100+uint64(column+c), v))
				}
			}
			must(t, a.Apply(state.RowGradient{Keys: keys, Sums: cuda.Float32s(rows), Weight: 3, Scale: 1}))
			a.Step()
			a.Commit()
		}
	}
}

// text is all state of the fleet by parameter, element, table, key and column, whatever the shards are.
func (f *fleet) text(t testing.TB) string {
	t.Helper()
	var lines []string
	line := func(form string, args ...any) { lines = append(lines, fmt.Sprintf(form, args...)) }
	for _, o := range f.owners {
		must(t, o.dense.Snapshot(state.Newest, func(x state.Tensor) error {
			for i, v := range x.Values {
				line("%s %06d: %08x at %d after %d", x.Name, x.From+i, math.Float32bits(v), x.Version, x.Steps)
				for _, s := range x.Slots {
					line("%s %06d %s: %08x", x.Name, x.From+i, s.Name, math.Float32bits(s.Values[i]))
				}
			}
			return nil
		}))
		for _, a := range o.tables {
			must(t, a.Snapshot(50, func(r state.Rows) error {
				for i, key := range r.Keys {
					if len(r.Last) > 0 {
						line("%s %06d: last %d", r.Table, key, r.Last[i])
					}
					for c := range r.Columns {
						line("%s %06d %d: %08x at %d after %d", r.Table, key, r.Column+c,
							math.Float32bits(r.Values[i*r.Columns+c]), r.Version, r.Steps)
						for _, s := range r.Slots {
							each := len(s.Values) / len(r.Keys)
							line("%s %06d %d %s: %08x", r.Table, key, r.Column+c, s.Name,
								math.Float32bits(s.Values[i*each+c%each]))
						}
					}
				}
				return nil
			}))
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// weights are all values of parameters, and of tables by key.
func (f *fleet) weights(t testing.TB) map[string][]float32 {
	t.Helper()
	values := map[string][]float32{}
	for _, p := range f.job.Parameters {
		values[p.Name] = make([]float32, p.Elements())
	}
	for _, s := range f.job.Tables {
		values[s.Name] = make([]float32, int(s.Rows)*s.Dim)
	}
	for _, o := range f.owners {
		must(t, o.dense.Snapshot(state.Newest, func(x state.Tensor) error { place(f.job, values, &x, nil); return nil }))
		for _, a := range o.tables {
			must(t, a.Snapshot(1000, func(r state.Rows) error { place(f.job, values, nil, &r); return nil }))
		}
	}
	return values
}

// place puts the values of a piece where they belong.
func place(job *schema.Job, values map[string][]float32, x *state.Tensor, r *state.Rows) {
	if x != nil {
		copy(values[x.Name][x.From:], x.Values)
		return
	}
	dim := len(values[r.Table]) / int(job.Tables[slices.IndexFunc(job.Tables, func(s schema.TableSpec) bool {
		return s.Name == r.Table
	})].Rows)
	for k, key := range r.Keys {
		copy(values[r.Table][int(key)*dim+r.Column:], r.Values[k*r.Columns:(k+1)*r.Columns])
	}
}

// string is what each owner says of itself.
func (f *fleet) string() (text string) {
	for _, o := range f.owners {
		text += o.dense.String() + "\n"
		for i := range f.job.Tables {
			if a := o.tables[f.job.Tables[i].Name]; a != nil {
				text += a.String() + "\n"
			}
		}
	}
	return text
}

// save writes the part of every shard, tables first.
func (f *fleet) save(t testing.TB, dir string, id ID) *Manifest {
	t.Helper()
	m := &Manifest{ID: id, Job: f.job, Shards: len(f.owners), LR: []schema.LRChange{{From: 2, Scale: 0.1}}}
	for shard := range f.owners {
		m.Parts = append(m.Parts, f.savePart(t, dir, id, shard))
	}
	return m
}

func (f *fleet) savePart(t testing.TB, dir string, id ID, shard int) PartInfo {
	t.Helper()
	p, err := NewPart(dir, f.job, id, len(f.owners), shard)
	must(t, err)
	defer p.Discard()
	for _, a := range f.owners[shard].tables {
		must(t, a.Snapshot(30, p.Rows))
	}
	must(t, f.owners[shard].dense.Snapshot(id.Version, p.Tensor))
	info, err := p.Commit()
	must(t, err)
	return info
}

// restore reads a checkpoint onto every owner.
func (f *fleet) restore(t testing.TB, dir string, m *Manifest) {
	t.Helper()
	for _, o := range f.owners {
		dense, tables := o.dense.Restore(), map[string]state.RowsRestore{}
		for name, a := range o.tables {
			tables[name] = a.Restore()
		}
		must(t, m.Read(dir, dense.Tensor, func(r state.Rows) error {
			if to := tables[r.Table]; to != nil {
				return to.Rows(r)
			}
			return nil
		}))
		must(t, dense.Done())
		for _, r := range tables {
			must(t, r.Done())
		}
	}
}

func testBackend(t testing.TB) cuda.Backend {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

// trained is a fleet of two shards at version 3.
func trained(t testing.TB) *fleet {
	f := newFleet(t, testBackend(t), testJob(), 2)
	for v := range schema.Version(3) {
		f.step(t, v)
	}
	return f
}

// saved is checkpoints of one fleet, all of the same state, in a folder of their own.
func saved(t testing.TB, ids ...ID) (dir string, f *fleet) {
	t.Helper()
	dir, f = t.TempDir(), trained(t)
	for _, id := range ids {
		must(t, Complete(dir, f.save(t, dir, id)))
	}
	return dir, f
}

// newest returns the newest checkpoint that is verified, and the damaged ones that are newer.
func newest(ctx context.Context, dir string, job *schema.Job) (m *Manifest, skipped []error, err error) {
	all, err := List(dir, job.Name)
	if err != nil {
		return nil, nil, err
	}
	verifier := NewVerifier(ctx, dir)
	for _, f := range all {
		if err = f.Err; err == nil {
			err = f.Manifest.CheckSame(job)
		}
		if err == nil {
			err = verifier.Verify(f.Manifest)
		}
		switch {
		case err == nil:
			return f.Manifest, skipped, nil
		case errors.Is(err, ErrDamaged):
			skipped = append(skipped, err)
		case !errors.Is(err, ErrIncomplete):
			return nil, skipped, err
		}
	}
	return nil, skipped, fmt.Errorf("%s: %w: %d are damaged", dir, ErrNone, len(skipped))
}

func at(epoch uint64) ID { return ID{Epoch: epoch, Run: schema.RunID(100 - epoch), Version: 3} }

// What two shards had is on one, two and three with the same bits, and goes on with the same bits.
func TestRoundTrip(t *testing.T) {
	dir, f := saved(t, at(1))
	m, skipped, err := newest(t.Context(), dir, f.job)
	if err != nil || len(skipped) > 0 {
		t.Fatalf("%v, %v", skipped, err)
	}
	if m.ID != at(1) || m.Shards != 2 || len(m.LR) != 1 || m.LR[0] != (schema.LRChange{From: 2, Scale: 0.1}) ||
		time.Since(m.Created) > time.Hour || m.Format != formatFull || !m.Full() {
		t.Errorf("manifest %+v", m)
	}
	want, saying := f.text(t), f.string()
	f.step(t, 3)
	after := f.text(t)
	for shards := 1; shards <= 3; shards++ {
		other := newFleet(t, testBackend(t), testJob(), shards)
		other.step(t, 0)
		other.restore(t, dir, m)
		if got := other.text(t); got != want {
			t.Errorf("%d shards: %s", shards, firstDifference(got, want))
		}
		if got := other.string(); shards == 2 && !sameSaying(got, saying) {
			t.Errorf("two shards say\n%s, want\n%s", got, saying)
		}
		other.step(t, 3)
		if got := other.text(t); got != after {
			t.Errorf("%d shards a step later: %s", shards, firstDifference(got, after))
		}
	}
}

// sameSaying compares what owners say, but for slots of a version before the one that is restored.
func sameSaying(got, want string) bool {
	tables := func(s string) (lines []string) {
		for line := range strings.Lines(s) {
			if !strings.HasPrefix(line, "chunk") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	return slices.Equal(tables(got), tables(want))
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("got %s, want %s", g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// Pieces are of at most 1 MiB of values.
func TestPiecesAreBounded(t *testing.T) {
	job := (&schema.Job{Name: "large", Optimizer: schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.1},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{300_000}, Init: schema.Normal(1)}},
		Tables:     []schema.TableSpec{{Name: "t", Rows: 60_000, Dim: 8, Partitions: 2, Init: schema.Normal(1)}},
	}).WithDefaults()
	f, dir := newFleet(t, testBackend(t), job, 1), t.TempDir()
	m := f.save(t, dir, ID{Epoch: 1})
	must(t, Complete(dir, m))
	pieces, got := 0, map[string][]float32{"w": make([]float32, 300_000), "t": make([]float32, 480_000)}
	count := func(values []float32, slots []state.Slot) {
		pieces++
		n := len(values)
		for _, s := range slots {
			n += len(s.Values)
		}
		if n > valuesMax {
			t.Errorf("a piece of %d values", n)
		}
	}
	must(t, m.Read(dir,
		func(x state.Tensor) error { count(x.Values, x.Slots); place(job, got, &x, nil); return nil },
		func(r state.Rows) error { count(r.Values, r.Slots); place(job, got, nil, &r); return nil }))
	if pieces < 10 {
		t.Errorf("%d pieces", pieces)
	}
	if !maps.EqualFunc(got, f.weights(t), slices.Equal) {
		t.Error("pieces have other values, or other places")
	}
	stop := errors.New("stop")
	wants(t, "an error of a call", m.Read(dir, func(state.Tensor) error { return stop }, nil), stop)
}

func TestIDs(t *testing.T) {
	ids := []ID{{1, 9, 100}, {2, 3, 5}, {2, 3, 40}, {2, 3, 400}, {10, 1, 1}, {999999, math.MaxUint64, 999999999999}}
	for i, id := range ids {
		parsed, err := ParseID(id.String())
		if err != nil || parsed != id {
			t.Errorf("%s: %v, %v", id, parsed, err)
		}
		if i > 0 && (ids[i-1].Compare(id) >= 0 || ids[i-1].String() >= id.String()) {
			t.Errorf("%s sorts before %s", id, ids[i-1])
		}
	}
	if got := (ID{1, 0xabc, 500}).String(); got != "000001-0000000000000abc-000000000500" {
		t.Error(got)
	}
	for _, s := range []string{"", "lost+found", "1-2-3", "000001-0000000000000ABC-000000000500",
		"000001-0000000000000abc-000000000500x", " 00001-0000000000000abc-000000000500",
		"-00001-0000000000000abc-000000000500"} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("%q is %v", s, id)
		}
	}
}

func TestMarks(t *testing.T) {
	marks := []int64{0, 1, 1<<state.MarkBits - 1, 1 << state.MarkBits, 1<<(2*state.MarkBits) - 1, 123456789012}
	pairs, err := state.SplitMarks(nil, marks)
	must(t, err)
	got, err := join(nil, pairs)
	if err != nil || !slices.Equal(got, marks) {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range []int64{-1, 1 << (2 * state.MarkBits)} {
		if _, err := state.SplitMarks(nil, []int64{wrong}); err == nil {
			t.Errorf("%d is written", wrong)
		}
	}
	for _, wrong := range [][]float32{{0.5, 0}, {-1, 0}, {0, 1 << 24}, {float32(math.NaN()), 0},
		{0, float32(math.Inf(1))}} {
		_, err := join(nil, wrong)
		wants(t, fmt.Sprint(wrong), err, ErrDamaged)
	}
}

// What has come is told from what has not, in any order.
func TestCovered(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var c covered
		came := make([]bool, 40)
		for range 60 {
			lo := r.Int64N(40)
			hi := lo + r.Int64N(min(6, 41-lo))
			overlaps := slices.Contains(came[lo:hi], true)
			if err := c.add(lo, hi); (err != nil) != overlaps {
				t.Fatalf("seed %d: [%d, %d): %v, %v", seed, lo, hi, err, c)
			}
			if !overlaps {
				for i := lo; i < hi; i++ {
					came[i] = true
				}
			}
			want := int64(slices.Index(came, false))
			if got, missing := c.missing(40); missing != (want >= 0) || missing && got != want {
				t.Fatalf("seed %d: missing %d %v, want %d of %v", seed, got, missing, want, c)
			}
		}
	}
}

// files are those below a folder, by path.
func files(t testing.TB, dir string) (all []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if path != dir {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	}))
	return all
}
