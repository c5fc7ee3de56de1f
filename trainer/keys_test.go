package trainer

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func TestKeySetLiteral(t *testing.T) {
	var s keySet
	for _, c := range []struct {
		in   []uint64
		keys []uint64
		ids  []int64
	}{
		{[]uint64{9, 4, 9}, []uint64{4, 9}, []int64{1, 0, 1}},
		{[]uint64{}, []uint64{}, []int64{}},
		{[]uint64{7}, []uint64{7}, []int64{0}},
		{[]uint64{256, 1, 65536, 256, 0}, []uint64{0, 1, 256, 65536}, []int64{2, 1, 3, 2, 0}},
		{[]uint64{1<<64 - 1, 0, 1 << 63}, []uint64{0, 1 << 63, 1<<64 - 1}, []int64{2, 0, 1}},
		{[]uint64{3, 3, 3}, []uint64{3}, []int64{0, 0, 0}},
	} {
		if err := s.find(c.in); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.keys, c.keys) || !slices.Equal(s.ids, c.ids) {
			t.Errorf("find(%v) = keys %v ids %v, want %v %v", c.in, s.keys, s.ids, c.keys, c.ids)
		}
	}
}

// One set, reused for batches of all sizes, agrees with a sort and a binary search.
func TestKeySetAgainstSort(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	var s keySet
	for range 200 {
		width := random.IntN(65)
		in := make([]uint64, random.IntN(3000))
		for i := range in {
			in[i] = random.Uint64() >> (64 - width)
		}
		if err := s.find(in); err != nil {
			t.Fatal(err)
		}
		want := slices.Clone(in)
		slices.Sort(want)
		want = slices.Compact(want)
		if !slices.Equal(s.keys, want) {
			t.Fatalf("seed %d: %d keys of %d bits: %d distinct, want %d", seed, len(in), width, len(s.keys), len(want))
		}
		for i, key := range in {
			if s.keys[s.ids[i]] != key {
				t.Fatalf("seed %d: occurrence %d has key %d, local id %d is key %d", seed, i, key, s.ids[i], s.keys[s.ids[i]])
			}
		}
	}
}

func TestKeySetReusesMemory(t *testing.T) {
	var s keySet
	in := []uint64{5, 1, 5, 900, 70000}
	if err := s.find(in); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() { _ = s.find(in) }); n != 0 {
		t.Errorf("find allocates %v times a batch, want 0", n)
	}
}

func TestCutLiteral(t *testing.T) {
	// Two tables of dim 2 and 3; a chunk holds 12 values.
	for _, c := range []struct {
		counts []int
		want   []piece
	}{
		{[]int{0, 0}, []piece{}},
		{[]int{6, 0}, []piece{{0, 0, 0, 6}}},
		{[]int{7, 0}, []piece{{0, 0, 0, 6}, {1, 0, 6, 1}}},
		{[]int{3, 3}, []piece{{0, 0, 0, 3}, {0, 1, 0, 2}, {1, 1, 2, 1}}},
		{[]int{0, 4}, []piece{{0, 1, 0, 4}}},
	} {
		got := appendPieces([]piece{}, c.counts, []int{2, 3}, 12)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("cut of %v = %v, want %v", c.counts, got, c.want)
		}
	}
	// A row that is larger than a chunk still travels, alone.
	if got := appendPieces(nil, []int{2}, []int{20}, 12); !reflect.DeepEqual(got, []piece{{0, 0, 0, 1}, {1, 0, 1, 1}}) {
		t.Errorf("cut of rows above the chunk = %v", got)
	}
}

// Every key lands in the request of its shard, and every request fits.
func TestSplitCoversEveryKeyOnce(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 2))
	dims := []int{3, 8, 1}
	for range 100 {
		shards := 1 + random.IntN(5)
		owner := func(table int, key uint64) int { return int(key+uint64(table)) % shards }
		routing := newRouting(dims, shards, 100, owner)
		keys := make([][]uint64, len(dims))
		for table := range keys {
			var s keySet
			in := make([]uint64, random.IntN(300))
			for i := range in {
				in[i] = random.Uint64N(200)
			}
			if err := s.find(in); err != nil {
				t.Fatal(err)
			}
			keys[table] = s.keys
		}
		routing.assign(keys)
		seen := 0
		for shard := range shards {
			for _, pieces := range routing.chunks(shard) {
				values := 0
				for _, p := range pieces {
					values += p.count * dims[p.table]
					for _, at := range routing.positions(shard, p) {
						if owner(p.table, keys[p.table][at]) != shard {
							t.Fatalf("seed %d: key %d of table %d is asked of shard %d", seed, keys[p.table][at], p.table, shard)
						}
						seen++
					}
				}
				if values > 100 {
					t.Fatalf("seed %d: a request of shard %d holds %d values, want at most 100", seed, shard, values)
				}
			}
		}
		want := 0
		for _, k := range keys {
			want += len(k)
		}
		if seen != want {
			t.Fatalf("seed %d: %d of %d keys asked for", seed, seen, want)
		}
	}
}
