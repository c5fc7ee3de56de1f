package schema

import (
	"strings"
	"testing"

	"gradbus/lane"
)

// checkedJob has dense buckets 0 (1 MiB, 256 chunks of 4 KiB) and 1 (5 values), of which shard 1 of two has the odd
// chunks of bucket 0, sparse buckets 2 and 3, and a table of 10 rows, of which each shard has some.
func checkedJob() *Job {
	j := testJob()
	j.ChunkBytes = 4096
	j.Parameters = []Parameter{{Name: "b", Shape: []int{5}, Init: Init{Kind: InitZeros}},
		{Name: "a", Shape: []int{mib}, Init: Init{Kind: InitZeros}}}
	j.Tables = []TableSpec{{Name: "t", Rows: 10, Dim: 2, Partitions: 8, Init: Init{Kind: InitZeros}}}
	return j
}

// form is a frame in short.
type form struct {
	kind   Kind
	head   Head
	values int
	dim    uint32
	table  Table
	keys   []uint64
}

type checked struct {
	name   string
	form   form
	shard  int
	reason Reason
	detail string
}

func checkAll(t *testing.T, cases []checked) {
	t.Helper()
	place := NewPlacement(checkedJob(), 2)
	for _, c := range cases {
		l := Layout{Kind: c.form.kind, Values: 4 * c.form.values, Keys: len(c.form.keys), Sections: min(1, len(c.form.keys))}
		v, err := Verify(build(t, l, c.form.head, func(f *Frame) {
			if l.Sections == 1 {
				f.SetSection(0, Section{c.form.table, c.form.dim, uint64(l.Keys)})
				copy(f.Keys(), c.form.keys)
			}
		}), Limits{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if err := place.CheckFrame(&v, c.shard); ReasonOf(err) != c.reason ||
			err != nil && !strings.Contains(err.Error(), c.detail) {
			t.Errorf("%s: %v, want %v saying %q", c.name, err, c.reason, c.detail)
		}
	}
}

func TestCheckFrameOfChunks(t *testing.T) {
	node := lane.Node{First: 0, Count: 4}
	dense := func(bucket Bucket, chunk, chunks Chunk, offset uint64, values int, weight float64) form {
		return form{kind: KindDense, values: values, head: Head{
			Bucket: bucket, Chunk: chunk, Chunks: chunks, Offset: offset, Node: node, Lanes: 4, Weight: weight}}
	}
	checkAll(t, []checked{
		{"first chunk", dense(0, 0, 256, 0, 1024, 1), 0, ReasonOK, ""},
		{"last chunk", dense(0, 255, 256, 255*1024, 1024, 1), 1, ReasonOK, ""},
		{"small bucket", dense(1, 0, 1, 0, 5, 1), 0, ReasonOK, ""},
		{"nothing", dense(1, 0, 1, 0, 0, 0), 0, ReasonOK, ""},
		{"zeros without weight", dense(1, 0, 1, 0, 5, 0), 0, ReasonOK, ""},
		{"another shard's", dense(1, 0, 1, 0, 5, 1), 1, ReasonUnknownBucket, "bucket 1 is on s0, not on s1"},
		{"no such bucket", dense(4, 0, 1, 0, 5, 1), 0, ReasonUnknownBucket, "the job has 4"},
		{"huge bucket", dense(1<<32-1, 0, 1, 0, 5, 1), 0, ReasonUnknownBucket, "the job has 4"},
		{"dense in a sparse bucket", dense(2, 0, 1, 0, 5, 1), 0, ReasonUnknownBucket, "sparse"},
		{"other chunks", dense(1, 0, 2, 0, 5, 1), 0, ReasonWrongChunk, "it has 1"},
		{"no such chunk", dense(0, 256, 257, 0, 1024, 1), 0, ReasonWrongChunk, "it has 256"},
		{"huge chunk", dense(0, 1<<20-1, 1<<20, 0, 1024, 1), 1, ReasonWrongChunk, "it has 256"},
		{"another offset", dense(0, 1, 256, 0, 1024, 1), 1, ReasonWrongShape, "want 1024"},
		{"too short", dense(1, 0, 1, 0, 4, 1), 0, ReasonWrongShape, "with 4 values: want 5"},
		{"too long", dense(1, 0, 1, 0, 6, 1), 0, ReasonWrongShape, "with 6 values: want 5"},
		{"other lanes", form{kind: KindDense, values: 5, head: Head{
			Bucket: 1, Chunks: 1, Node: node, Lanes: 5, Weight: 1}}, 1, ReasonWrongNode, "the job has 4"},

		{"mean", form{kind: KindMean, values: 5, head: Head{Bucket: 1, Chunks: 1, Lanes: 4, Weight: 1}}, 0, ReasonOK, ""},
		{"mean too short", form{kind: KindMean, values: 4, head: Head{Bucket: 1, Chunks: 1, Lanes: 4, Weight: 1}}, 0,
			ReasonWrongShape, "want 5"},
		{"mean of nobody", form{kind: KindMean, head: Head{Bucket: 1, Chunks: 1, Lanes: 4}}, 0, ReasonOK, ""},
		{"sparse closed", form{kind: KindMean, head: Head{Bucket: 3, Chunks: 1, Lanes: 4, Weight: 1}}, 1, ReasonOK, ""},
		{"sparse closed with values", form{kind: KindMean, values: 1, head: Head{Bucket: 3, Chunks: 1, Lanes: 4}}, 1,
			ReasonUnknownBucket, "sparse"},
	})
}

func TestCheckFrameOfRows(t *testing.T) {
	node := lane.Node{First: 0, Count: 4}
	place := NewPlacement(checkedJob(), 2)
	var even, odd []uint64 // keys by shard
	for key := range uint64(10) {
		if place.OwnerOfKey(0, key) == 0 {
			even = append(even, key)
		} else {
			odd = append(odd, key)
		}
	}
	if len(even) == 0 || len(odd) == 0 {
		t.Fatal("all keys are on one shard")
	}
	sparse := func(bucket Bucket, keys ...uint64) form {
		return form{kind: KindSparse, dim: 2, keys: keys, values: 2 * len(keys),
			head: Head{Bucket: bucket, Chunks: 1, Node: node, Lanes: 4}}
	}
	pull := func(bucket Bucket, chunk Chunk, dim uint32, keys ...uint64) form {
		return form{kind: KindPull, head: Head{Bucket: bucket, Chunk: chunk}, dim: dim, keys: keys}
	}
	lookup := func(table Table, dim uint32, keys ...uint64) form {
		return form{kind: KindLookup, head: Head{Chunks: 1}, table: table, dim: dim, keys: keys}
	}
	checkAll(t, []checked{
		{"rows of shard 0", sparse(2, even...), 0, ReasonOK, ""},
		{"rows of shard 1", sparse(3, odd...), 1, ReasonOK, ""},
		{"no rows", sparse(3), 1, ReasonOK, ""},
		{"sparse in another's bucket", sparse(3, even...), 0, ReasonUnknownBucket, "is not on s0"},
		{"sparse in a dense bucket", sparse(0), 0, ReasonUnknownBucket, "is not on s0"},
		{"another's rows", sparse(2, odd[0]), 0, ReasonUnknownKey, "on s1, not on s0"},
		{"no such row", sparse(2, 10), 0, ReasonUnknownKey, "has 10 rows"},

		{"lookup", lookup(0, 2, even...), 0, ReasonOK, ""},
		{"lookup of another table", lookup(1, 2, 0), 0, ReasonUnknownTable, "table 1: the job has 1"},
		{"lookup of a huge table", lookup(1<<32-1, 2, 0), 0, ReasonUnknownTable, "the job has 1"},
		{"lookup of other rows", lookup(0, 3, 0), 0, ReasonWrongShape, "dim 3 of table \"t\": want 2"},
		{"lookup elsewhere", lookup(0, 2, even...), 1, ReasonUnknownKey, "on s0, not on s1"},
		{"lookup of a bucket", form{kind: KindLookup, head: Head{Bucket: 1, Chunks: 1}}, 0, ReasonUnknownBucket, "has none"},

		{"pull", pull(0, 255, 0), 1, ReasonOK, ""},
		{"pull of what is not there", pull(0, 256, 0), 0, ReasonWrongChunk, "it has 256"},
		{"pull of a sparse result", pull(2, 0, 0), 0, ReasonOK, ""},
		{"pull elsewhere", pull(0, 0, 0), 1, ReasonUnknownBucket, "on s0"},
		{"pull of a partition", pull(7, 9, 2, 3), 1, ReasonOK, ""},
		{"pull of another partition", pull(8, 0, 2, 3), 0, ReasonUnknownBucket, "it has 8"},
		{"pull of a partition elsewhere", pull(7, 0, 2, 3), 0, ReasonUnknownBucket, "on s1"},
		{"pull of other rows", pull(7, 0, 3, 3), 1, ReasonWrongShape, "want 2"},
		{"beat", form{kind: KindHeartbeat}, 0, ReasonOK, ""},
	})
}

// What only some jobs have is refused in the others: flags, and the pieces by which trainers tell what they have.
func TestCheckFrameByPlan(t *testing.T) {
	j := checkedJob()
	j.Apply = ApplyMean
	j.Tables = append(j.Tables, TableSpec{Name: "r", Rows: 10, Dim: 3, Partitions: 2, Replicated: true,
		Init: Init{Kind: InitZeros}})
	update, mean := NewPlacement(checkedJob(), 2), NewPlacement(j, 2)
	j = checkedJob()
	j.Consistency, j.Apply = ConsistencyAsync, ApplyMean
	async := NewPlacement(j, 2)
	pull := func(h Head, sections ...Section) (Head, []Section) {
		h.Kind, h.Flags = KindPull, h.Flags|FlagParameters
		return h, sections
	}
	state := func(h Head, sections ...Section) (Head, []Section) {
		h.Kind, h.Chunks = KindState, max(h.Chunks, 1)
		return h, sections
	}
	type frame func(Head, ...Section) (Head, []Section)
	for _, c := range []struct {
		name     string
		place    *Placement
		of       frame
		head     Head
		sections []Section
		values   int
		want     Reason
	}{
		{"parameters of shards", update, pull, Head{}, nil, 0, ReasonOK},
		{"parameters of trainers", mean, pull, Head{}, nil, 0, ReasonOK},
		{"parameters that nobody has at one version", async, pull, Head{}, nil, 0, ReasonMalformed},
		{"parameters in a sparse bucket", mean, pull, Head{Bucket: 2}, nil, 0, ReasonUnknownBucket},
		{"the same where shards have them", update, pull, Head{Bucket: 2}, nil, 0, ReasonUnknownBucket},
		{"a number that cannot be passed on", mean, pull, Head{Sequence: 1<<64 - 1}, nil, 0, ReasonMalformed},
		{"other lanes", mean, pull, Head{Lanes: 5}, nil, 0, ReasonWrongNode},
		{"rows of trainers", mean, pull, Head{}, []Section{{Table: 1, Dim: 3, Count: 1}}, 0, ReasonOK},
		{"rows of shards", mean, pull, Head{}, []Section{{Table: 0, Dim: 2, Count: 1}}, 0, ReasonUnknownTable},
		{"the same of another job", update, pull, Head{}, []Section{{Table: 0, Dim: 2, Count: 1}}, 0, ReasonMalformed},

		{"a stretch", mean, state, Head{Flags: FlagParameters, Offset: 4}, nil, 1, ReasonOK},
		{"one behind the parameter", mean, state, Head{Flags: FlagParameters, Offset: 5}, nil, 1, ReasonWrongShape},
		{"another shard's", mean, state, Head{Flags: FlagParameters, Bucket: 1, Offset: 1024}, nil, 1, ReasonUnknownBucket},
		{"no such parameter", mean, state, Head{Flags: FlagParameters, Bucket: 2}, nil, 1, ReasonUnknownBucket},
		{"half a step", mean, state, Head{Flags: FlagParameters, Weight: 0.5}, nil, 1, ReasonWrongWeight},
		{"one of a series", mean, state, Head{Flags: FlagParameters | FlagMore}, nil, 1, ReasonMalformed},
		{"nothing", mean, state, Head{}, nil, 0, ReasonOK},
		{"values of nothing", mean, state, Head{}, nil, 1, ReasonWrongShape},
		{"rows", mean, state, Head{}, []Section{{Table: 1, Dim: 3, Count: 1}}, 3, ReasonOK},
		{"rows of a table of shards", mean, state, Head{}, []Section{{Table: 0, Dim: 2, Count: 1}}, 2, ReasonUnknownTable},
		{"a stretch that nobody asks for", update, state, Head{Flags: FlagParameters}, nil, 1, ReasonUnknownKind},
	} {
		h, sections := c.of(c.head, c.sections...)
		l := Layout{Kind: h.Kind, Values: 4 * c.values, Keys: len(sections), Sections: len(sections)}
		v, err := Verify(build(t, l, h, func(f *Frame) { copy(f.Sections(), sections) }), Limits{})
		check(t, err)
		if err := c.place.CheckFrame(&v, 0); ReasonOf(err) != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestCheckJob(t *testing.T) {
	v, err := Verify(build(t, Layout{Kind: KindHeartbeat}, Head{}, nil), Limits{})
	check(t, err)
	for _, c := range []struct {
		run        RunID
		generation Generation
		want       Reason
	}{
		{sampleRun, 1, ReasonOK}, {sampleRun + 1, 1, ReasonForeignJob}, {sampleRun, 2, ReasonOldGeneration},
		{sampleRun, 0, ReasonEarlyGeneration},
	} {
		if got := ReasonOf(v.CheckJob(c.run, c.generation)); got != c.want {
			t.Errorf("run %x generation %d: %v, want %v", c.run, c.generation, got, c.want)
		}
	}
}

// The first key whose row an owner has not, of tables of each placement, as asking for each key alone finds it.
func TestElsewhere(t *testing.T) {
	j := placementJob(8)
	j.Tables = []TableSpec{{Rows: 100, Dim: 2, Partitions: 5},
		{Rows: 100, Dim: 2, Partitions: 5, Placement: PlacementColumns, Pooling: PoolingSum},
		{Rows: 100, Dim: 2, Partitions: 5, Placement: PlacementTables, Pooling: PoolingSum}}
	p := NewPlacement(j, 3)
	for table := range Table(3) {
		for owner := range 3 {
			var has, not []uint64
			for key := range uint64(100) {
				if p.Holds(table, PartitionOf(key, 5), owner) {
					has = append(has, key)
				} else {
					not = append(not, key)
				}
			}
			if at := p.elsewhere(table, has, owner); at != -1 {
				t.Errorf("table %d: key %d is not on shard %d, which has it", table, has[at], owner)
			}
			for _, key := range append(not, 100, 1<<40, 1<<64-1) {
				keys := append(append([]uint64{}, has...), key)
				if at := p.elsewhere(table, keys, owner); at != len(has) {
					t.Errorf("table %d: key %d at %d is missing on shard %d, found %d", table, key, len(has), owner, at)
				}
			}
		}
	}
}
