package round

import (
	"slices"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// Each row is divided by the count behind it.
func TestDivideByCounts(t *testing.T) {
	to := make([]float32, 4)
	if divideByCounts(to, []float32{6, 9, 3, 5, 7, 1}, 2); !slices.Equal(to, []float32{2, 3, 5, 7}) {
		t.Errorf("%v", to)
	}
}

// A count that is none is refused, and its row named: it would make the row infinite.
func TestCountsAreChecked(t *testing.T) {
	s := newSparse(sparseConfig{backend: open(t), lanes: 1, held: NewHeld(1),
		tables: []schema.TableSpec{{Name: "t", Rows: 9, Dim: 2, PerRow: true}}})
	for count, refused := range map[float32]bool{0: true, 1: false, 3: false, 1.5: true, -2: true} {
		f, err := schema.NewFrame(schema.Layout{Kind: schema.KindSparse, Values: 16, Keys: 2, Sections: 1})
		if err != nil {
			t.Fatal(err)
		}
		f.SetHead(schema.Head{Job: 1, Generation: 1, Lanes: 1, Chunks: 1, Weight: 1, Node: lane.Root(1)})
		f.SetSection(0, schema.Section{Dim: 2, Count: 2})
		copy(f.Keys(), []uint64{4, 7})
		copy(f.Float32s(), []float32{0.5, 2, 0.5, count})
		v, err := schema.Verify(f.Seal(), schema.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		why := s.CheckFinite(&SparseChunk{Head: v.Head(), View: v})
		if (why != nil) != refused || refused && !strings.Contains(why.Detail, `key 7 of table "t"`) {
			t.Errorf("count %v: %v", count, why)
		}
	}
}
