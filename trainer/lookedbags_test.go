package trainer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"gradbus/schema"
)

// pullBags trains a toy whose gradient of a bag is what it pooled, by Fetch or with pooled rows that it looks up
// itself, lane by lane.
func pullBags(t *testing.T, s *Session, m *bagToy, looked bool) {
	t.Helper()
	ctx := testContext(t)
	b, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	pooled := map[int][2][]float32{}
	for at, l := range b.Lanes() {
		n, keys := m.Keys(b.Number(), l, make([][]uint64, 2))
		b.Samples(l, n)
		if n == 0 {
			continue
		}
		offsets := m.Bags(b.Number(), l, make([][]int64, 2))
		var asks []Query
		for i := range keys {
			table := schema.Table(i)
			b.Keys(l, table, keys[i]...)
			b.Bags(l, table, offsets[i])
			room := make([]float32, n*s.Job().Tables[i].Dim)
			for k := range room {
				room[k] = 99 // also where a bag is empty
			}
			asks = append(asks, Query{table, keys[i], room, offsets[i]})
		}
		if !looked {
			continue
		}
		if err := s.LookupInto(ctx, asks); err != nil {
			t.Fatal(err)
		}
		pooled[at] = [2][]float32{asks[0].Rows, asks[1].Rows}
	}
	begin := b.Fetch
	if looked {
		begin = b.SkipFetch
	}
	if err := begin(ctx); err != nil {
		t.Fatal(err)
	}
	for at, l := range b.Lanes() {
		step, err := b.Lane(l)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if step.Samples == 0 {
				continue
			}
			rows := pooled[at][i]
			if !looked {
				rows = step.Pooled(schema.Table(i))
			}
			step.PooledGrad(schema.Table(i), rows)
		}
		if err := step.End(0); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Commit(ctx); err != nil {
		t.Fatal(err)
	}
}

// A program that looks its bags up while the batch is under way has the bits of one that fetches them, and those of
// rows.
func TestLookedBagsHaveTheBitsOfFetch(t *testing.T) {
	t.Parallel()
	server := startServer(t, 2)
	var want [32]byte
	for _, c := range []struct {
		placement string
		looked    bool
	}{{"", false}, {schema.PlacementColumns, false}, {schema.PlacementColumns, true}, {schema.PlacementTables, true}} {
		name := "bags-" + c.placement
		if c.looked {
			name += "-looked"
		}
		job := bagJob(name, c.placement, 1, 4)
		s := joinAll(t, testConfig(t, server), job)[0]
		for range 4 {
			pullBags(t, s, &bagToy{toy: newToy(t, job)}, c.looked)
		}
		got, err := s.Digest(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		if want == [32]byte{} {
			want = got
		}
		if got != want {
			t.Errorf("%s: weights %x, want %x", name, got[:6], want[:6])
		}
	}
}

func TestLookedBagsRefuse(t *testing.T) {
	t.Parallel()
	job := bagJob("bags-refuse", schema.PlacementColumns, 1, 4)
	job.Tables[1].Placement = ""
	s, rows := oneSession(t, job), make([]float32, 2*toyWordDim)
	ctx := testContext(t)
	for want, ask := range map[string]Query{
		"1 offsets: want one more": {0, []uint64{1}, rows[:toyWordDim], []int64{0}},
		"0 offsets: want one more": {0, nil, nil, []int64{}},
		"offset 0 after 1":         {0, []uint64{1}, rows, []int64{0, 1, 0, 1}},
		"want 2 bags of 5":         {0, []uint64{1}, rows[:3], []int64{0, 1, 1}},
		"outside":                  {0, []uint64{1 << 40}, rows[:toyWordDim], []int64{0, 1}},
		"whose shards give rows":   {1, []uint64{1}, rows[:toyTagDim], []int64{0, 1}},
		"want 1 bags of 5":         {0, []uint64{1}, rows, nil},
		"bag 0 of 524289 keys":     {0, make([]uint64, schema.BagKeysMax+1), rows[:toyWordDim], []int64{0, schema.BagKeysMax + 1}},
	} {
		if err := s.LookupInto(ctx, []Query{ask}); !errors.Is(err, ErrWorkload) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %s", err, want)
		}
	}
	each := []Query{{Table: 0, Keys: []uint64{7, 3}, Rows: rows}} // each a bag
	if err := s.LookupInto(ctx, each); err != nil {
		t.Fatal(err)
	}
	got, err := s.Lookup(ctx, []Query{{Table: 0, Keys: []uint64{7, 3}}})
	if err != nil || !slices.Equal(got[0], rows) {
		t.Errorf("%v: %v, want %v", err, rows, got)
	}
}

// One round has each table once, and no more values than it may. A bag has those of its keys, too, and each bag is
// asked for once.
func TestRoundsOfBags(t *testing.T) {
	const dim = evaluationValuesMax / 4
	spec := schema.TableSpec{Dim: dim, Rows: 9, Placement: schema.PlacementTables, Pooling: schema.PoolingSum}
	e := &evaluation{tables: newTables([]schema.TableSpec{spec, {Dim: 1, Rows: 9}}, 1)}
	rows := make([]float32, 6*dim)
	asks := []Query{{0, []uint64{4, 4, 5, 1}, rows, []int64{0, 2, 2, 3, 4, 4, 4}}, {1, []uint64{5}, rows[:1], nil},
		{0, nil, rows[:dim], []int64{0, 0}},
		{0, []uint64{8}, rows[:dim], nil}}
	type round struct {
		bags, keys, rows int
		full             []int32
	}
	var got []round
	for at := (place{}); at.query < len(asks); {
		e.forget()
		e.add(asks, &at)
		b := &e.tables.bags[0][0]
		got = append(got, round{len(b.offsets) - 1, len(e.tables.used[0]), len(e.tables.keys[1]), slices.Clone(b.full)})
	}
	want := []round{{3, 3, 0, []int32{0, 2}}, {3, 1, 1, []int32{0}}, {1, 0, 0, nil}, {1, 1, 0, []int32{0}}}
	if len(got) != len(want) {
		t.Fatalf("rounds %v, want %v", got, want)
	}
	for i, r := range got {
		if w := want[i]; r.bags != w.bags || r.keys != w.keys || r.rows != w.rows || !slices.Equal(r.full, w.full) {
			t.Errorf("round %d: %v, want %v", i, r, w)
		}
	}
}
