package trainer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

// pullToZero trains a toy whose gradient of a row is the row itself, by Fetch or with rows that it looks up itself.
func pullToZero(t *testing.T, s *Session, m *toy, looked bool) {
	t.Helper()
	ctx := testContext(t)
	b, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	var used [2][]uint64
	var rows [2][]float32
	for _, l := range b.Lanes() {
		n, keys := m.Keys(b.Number(), l, make([][]uint64, 2))
		b.Samples(l, n)
		for table, k := range keys {
			b.Keys(l, schema.Table(table), k...)
			used[table] = append(used[table], k...)
		}
	}
	begin := b.Fetch
	if looked {
		rows, begin = lookUp(t, s, used), b.SkipFetch
	}
	if err := begin(ctx); err != nil {
		t.Fatal(err)
	}
	giveRows(t, b, rows)
}

// giveRows gives rows as the gradients of rows, those that were fetched where there are none, and commits the batch.
func giveRows(t *testing.T, b *Batch, rows [2][]float32) {
	t.Helper()
	ctx, s, looked := testContext(t), b.of, b.rowless
	for _, l := range b.Lanes() {
		step, err := b.Lane(l)
		if err != nil {
			t.Fatal(err)
		}
		for table := range rows {
			if step.Samples == 0 {
				continue
			}
			if !looked {
				rows[table] = step.Rows(schema.Table(table))
			}
			var grad []float32
			dim := s.Job().Tables[table].Dim
			for _, id := range step.IDs(schema.Table(table)) {
				grad = append(grad, rows[table][int(id)*dim:int(id+1)*dim]...)
			}
			step.BagGrad(schema.Table(table), cuda.Sum, nil, grad)
		}
		if err := step.End(0); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Commit(ctx); err != nil {
		t.Fatal(err)
	}
}

// lookUp gives the rows of the distinct ones of keys.
func lookUp(t *testing.T, s *Session, used [2][]uint64) (rows [2][]float32) {
	t.Helper()
	var asks []Query
	for table, keys := range used {
		unique, ids := make([]uint64, len(keys)), make([]int64, len(keys))
		n, err := s.Distinct(schema.Table(table), keys, unique, ids)
		if err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			if unique[ids[i]] != key {
				t.Fatalf("table %d: key number %d is %d, and %d by its id", table, i, key, unique[ids[i]])
			}
		}
		rows[table] = make([]float32, n*s.Job().Tables[table].Dim)
		asks = append(asks, Query{Table: schema.Table(table), Keys: unique[:n], Rows: rows[table]})
	}
	if err := s.LookupInto(testContext(t), asks); err != nil {
		t.Fatal(err)
	}
	return rows
}

// A program that looks its rows up while the batch is under way has the bits of one that fetches them.
func TestSkipFetchHasTheBitsOfFetch(t *testing.T) {
	t.Parallel()
	server := startServer(t, 2)
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		var digests [2][32]byte
		for i, name := range []string{"fetched-", "looked-"} {
			job := toyJob(name+apply, 1, 4, apply)
			job.Tables[1].Replicated = apply == schema.ApplyMean
			s := joinAll(t, testConfig(t, server), job)[0]
			for range 6 {
				pullToZero(t, s, newToy(t, job), i == 1)
			}
			var err error
			if digests[i], err = s.Digest(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		if digests[0] != digests[1] {
			t.Errorf("%s: weights %x fetched, %x looked up", apply, digests[0][:6], digests[1][:6])
		}
	}
}

// What is not possible changes nothing, and a batch that nothing was fetched of can be given back.
func TestLookedRefuses(t *testing.T) {
	t.Parallel()
	s, ctx := oneSession(t, pairsJob("looked")), testContext(t)
	b := pairs(t, s)
	rows := make([]float32, 4)
	for want, ask := range map[string]Query{
		"table 1":       {1, nil, nil, nil},
		"2 rows of 2":   {0, []uint64{1, 2}, rows[:3], nil},
		"ascending":     {0, []uint64{2, 1}, rows, nil},
		"outside [0, 1": {0, []uint64{1, 10}, rows, nil},
	} {
		if err := s.LookupInto(ctx, []Query{{0, []uint64{1}, rows[:2], nil}, ask}); !errors.Is(err, ErrWorkload) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %s", err, want)
		}
	}
	if _, err := s.Distinct(0, []uint64{1, 10}, make([]uint64, 2), make([]int64, 2)); !errors.Is(err, ErrWorkload) ||
		!strings.Contains(err.Error(), "key number 1") {
		t.Errorf("%v, want something about key number 1", err)
	}
	if err := b.GiveBack(); err != nil {
		t.Fatal(err)
	}
	if err := b.SkipFetch(ctx); !errors.Is(err, ErrOrder) {
		t.Errorf("%v of a batch that was given back, want %v", err, ErrOrder)
	}
	b = pairs(t, s)
	if err := errors.Join(b.SkipFetch(ctx), b.GiveBack()); !errors.Is(err, ErrOrder) {
		t.Errorf("%v, want %v", err, ErrOrder)
	}
	step, err := b.Lane(0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(step.Rows(0)); got == 0 {
		t.Error("no scratch")
	}
	if err := step.End(0); !errors.Is(err, ErrWorkload) || !strings.Contains(err.Error(), "SkipFetch") {
		t.Errorf("%v, want %v about SkipFetch", err, ErrWorkload)
	}
}

// One round has each table once, and no more values than it may.
func TestRounds(t *testing.T) {
	e := &evaluation{tables: newTables([]schema.TableSpec{{Dim: evaluationValuesMax/2 + 1}, {Dim: 1}}, 1)}
	big := make([]float32, 3*(evaluationValuesMax/2+1))
	asks := []Query{{0, []uint64{1, 2}, big[:2*(evaluationValuesMax/2+1)], nil}, {1, nil, nil, nil},
		{1, []uint64{5, 6}, big[:2], nil}, {1, []uint64{5}, big[:1], nil}}
	var got [][2]int
	for at := (place{}); at.query < len(asks); {
		e.forget()
		keys := e.add(asks, &at)
		got = append(got, [2]int{len(e.tables.keys[0]), len(e.tables.keys[1])})
		if keys != got[len(got)-1][0]+got[len(got)-1][1] {
			t.Errorf("%d keys, want %v", keys, got[len(got)-1])
		}
	}
	if want := [][2]int{{1, 0}, {1, 2}, {0, 1}}; !slices.Equal(got, want) {
		t.Errorf("rounds of %v keys, want %v", got, want)
	}
}
