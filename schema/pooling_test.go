package schema

import (
	"slices"
	"strings"
	"testing"
)

// poolingSamples are lookups of bags, and their answers: table 0, which is pooled, with bags {9, 3, 9} and {3} of lane
// 1 and {4} of lane 3; and of table 1 the row of key 5.
func poolingSamples(t testing.TB) []sample {
	return []sample{
		{"lookup-bags", build(t, Layout{Kind: KindLookup, Keys: 6, Sections: 3, Bags: 3},
			Head{Batch: 7, Bucket: 3, Chunks: 1}, func(f *Frame) {
				copy(f.Sections(), []Section{{Table: 0, Dim: 2, Count: 4}, {Table: 0, Dim: 2, Count: 1},
					{Table: 1, Dim: 1, Count: 1}})
				copy(f.Bags(), []Bags{{Lane: 1, Count: 2}, {Lane: 3, Count: 1}, {}})
				copy(f.Offsets(), []uint32{0, 3, 0})
				copy(f.Keys(), []uint64{9, 3, 9, 3, 4, 5})
			})},
		{"rows-pooled", build(t, Layout{Kind: KindRows, Values: 28, Keys: 1, Sections: 3, Pooled: true},
			Head{Batch: 7, Bucket: 3, Chunks: 1}, func(f *Frame) {
				copy(f.Sections(), []Section{{Table: 0, Dim: 2}, {Table: 0, Dim: 2}, {Table: 1, Dim: 1, Count: 1}})
				copy(f.Bags(), []Bags{{Lane: 1, Count: 2}, {Lane: 3, Count: 1}, {}})
				f.Keys()[0] = 5
				copy(f.Float32s(), []float32{1, 2, 3, 4, 5, 6, 7})
			})},
	}
}

// pooledJob is the samples' job: table a of 5 columns by columns, b and c whole, d by rows.
func pooledJob() *Job {
	j := testJob()
	j.Tables = nil
	for _, s := range []struct{ name, placement string }{{"a", PlacementColumns}, {"b", PlacementTables},
		{"c", PlacementTables}, {"d", ""}} {
		j.Tables = append(j.Tables, TableSpec{Name: s.name, Rows: 10, Dim: 5, Partitions: 4, Init: Init{Kind: InitZeros},
			Placement: s.placement, Pooling: PoolingSum})
	}
	return j
}

// Columns of 5 on 3 shards are 1, 2 and 2; whole tables go round; on 7 shards two have no column and five no whole
// table.
func TestWhereColumnsLie(t *testing.T) {
	of := func(p *Placement, table Table) (all [][2]int) {
		for shard := range p.Shards {
			first, n := p.Columns(table, shard)
			all = append(all, [2]int{first, n})
		}
		return all
	}
	p := NewPlacement(pooledJob(), 3)
	if got := of(p, 0); !slices.Equal(got, [][2]int{{0, 1}, {1, 2}, {3, 2}}) {
		t.Errorf("columns of a are %v", got)
	}
	if got := of(p, 2); !slices.Equal(got, [][2]int{{0, 0}, {0, 5}, {0, 0}}) {
		t.Errorf("columns of c are %v, want it on s1", got)
	}
	if p.Holds(1, 2, 1) || !p.Holds(1, 2, 0) || !p.Holds(0, 3, 2) {
		t.Error("b is on s0 alone, and a on all shards")
	}
	j := pooledJob()
	j.Tables = j.Tables[:2]
	p = NewPlacement(j, 7)
	total := 0
	for shard := range 7 {
		_, n := p.Columns(0, shard)
		if total += n; p.HasRows(shard) != (n > 0 || shard == 0) {
			t.Errorf("s%d has %d columns: rounds %v", shard, n, p.HasRows(shard))
		}
	}
	if total != 5 {
		t.Errorf("7 shards have %d columns of 5", total)
	}
}

func TestValidatePooling(t *testing.T) {
	if err := pooledJob().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field, want string
		change      func(*Job)
	}{
		{"tables[0].placement", "rows or columns or tables", func(j *Job) { j.Tables[0].Placement = "diagonals" }},
		{"tables[0].pooling", "sum or mean", func(j *Job) { j.Tables[0].Pooling = "" }},
		{"tables[3].pooling", "sum or mean", func(j *Job) { j.Tables[3].Pooling = "max" }},
		{"tables[0].padding", "0 to rows-1", func(j *Job) { j.Tables[0].Padding = &j.Tables[0].Rows }},
		{"tables[1].placement", "rows where every trainer",
			func(j *Job) { j.Tables[1].Replicated, j.Apply = true, ApplyMean }},
		{"table_consistency", "sync or async", func(j *Job) { j.TableConsistency = "eventual" }},
		{"table_consistency", "reduce trainers", func(j *Job) { j.TableConsistency = ConsistencyAsync }},
		{"tables[3].replicated", "false where", func(j *Job) {
			j.TableConsistency, j.Reduce, j.Apply, j.Tables[3].Replicated = ConsistencyAsync, ReduceTrainers, ApplyMean, true
		}},
	} {
		j := pooledJob()
		c.change(j)
		errs, _ := j.Validate().(JobErrors)
		if len(errs) != 1 || errs[0].Field != c.field || !strings.Contains(errs[0].Want, c.want) {
			t.Errorf("want one error of %s saying %q, got %v", c.field, c.want, errs)
		}
	}
	bounded := pooledJob()
	bounded.Consistency, bounded.Ahead = ConsistencyBounded, 1
	if err := bounded.Validate(); err == nil || !strings.Contains(err.Error(), "tables[0].placement") {
		t.Errorf("columns in bounded: %v", err)
	}
	a, b := pooledJob(), pooledJob()
	a.TableConsistency, a.Tables[3].Placement = ConsistencySync, PlacementRows
	if field, _, _, differs := a.Diff(b); differs {
		t.Errorf("words for the defaults differ from none in %s", field)
	}
}

// A frame against the job: dims are those of the shard's columns, bags are of tables that it pools.
func TestCheckFrameOfBags(t *testing.T) {
	p := NewPlacement(pooledJob(), 3)
	lookup := func(table Table, dim uint32, bags uint32) *View {
		f := build(t, Layout{Kind: KindLookup, Keys: 2, Sections: 1, Bags: int(bags)}, Head{Chunks: 1}, func(f *Frame) {
			f.SetSection(0, Section{Table: table, Dim: dim, Count: 2})
			copy(f.Keys(), []uint64{3, 8})
			if bags > 0 {
				f.Bags()[0] = Bags{Count: bags}
			}
		})
		v, err := Verify(f, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return &v
	}
	for _, c := range []struct {
		table Table
		dim   uint32
		bags  uint32
		owner int
		want  Reason
	}{
		{0, 2, 1, 1, ReasonOK}, {0, 2, 0, 2, ReasonOK}, {0, 5, 1, 1, ReasonWrongShape}, {1, 5, 1, 0, ReasonOK},
		{1, 5, 1, 1, ReasonWrongShape},
		{3, 5, 1, 0, ReasonWrongShape}, {9, 5, 1, 0, ReasonWrongShape},
	} {
		got := p.checkFrame(lookup(c.table, c.dim, c.bags), c.owner)
		if (got == nil) != (c.want == ReasonOK) || got != nil && got.Reason != c.want {
			t.Errorf("table %d dim %d with %d bags to s%d: %v, want %v", c.table, c.dim, c.bags, c.owner, got, c.want)
		}
	}
}

func TestVerifyNamesWhatIsWrongWithPooled(t *testing.T) {
	for _, c := range []struct {
		l     Layout
		fill  func(*Frame)
		text  string
		fails bool
	}{
		{Layout{Kind: KindRows, Values: 8, Sections: 1, Pooled: true}, func(f *Frame) {
			f.SetSection(0, Section{Dim: 2})
			f.Bags()[0] = Bags{Lane: 4, Count: 2}
		}, "want 16 for", false},
		{Layout{Kind: KindRows, Values: 8, Sections: 1, Pooled: true}, func(f *Frame) {
			f.SetSection(0, Section{Dim: 2})
			f.Bags()[0] = Bags{Lane: 4, Count: 0}
		}, "lane 4 without bags", false},
		{Layout{Kind: KindRows, Values: 8, Keys: 1, Sections: 1, Pooled: true}, func(f *Frame) {
			f.SetSection(0, Section{Dim: 2, Count: 1})
			f.Bags()[0] = Bags{Count: 1}
		}, "pooled rows with 1 keys", false},
		{Layout{Kind: KindLookup, Keys: 1, Sections: 1, Bags: 1}, func(f *Frame) {
			f.SetSection(0, Section{Dim: 2, Count: 1})
			f.Bags()[0] = Bags{Lane: 4096, Count: 1}
		}, "want one below 4096", false},
		{Layout{Kind: KindRows, Values: 8, Keys: 1, Sections: 1, Bags: 1}, nil, "has none", true},
		{Layout{Kind: KindLookup, Sections: 1, Pooled: true}, nil, "has none", true},
	} {
		if f, err := NewFrame(c.l); err != nil || c.fails {
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%+v: %v, want that %s", c.l, err, c.text)
			}
			continue
		} else if f == nil {
			t.Fatal("no frame")
		}
		_, err := Verify(build(t, c.l, Head{Chunks: 1}, c.fill), Limits{})
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, want %q", c.l, err, c.text)
		}
	}
}
