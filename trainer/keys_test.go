package trainer

import (
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
