package round

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// bagSection is a section of a test frame: rows where bags is empty, else bags of a lane.
type bagSection struct {
	table  schema.Table
	lane   uint32
	keys   []uint64
	starts []uint32 // of bags
	values []float32
}

var bagTables = []schema.TableSpec{{Name: "a", Rows: 100, Dim: 2}, {Name: "b", Rows: 10, Dim: 1}}

// bagChunk makes one chunk of a node's contribution. Values are stored as dtype, which has to hold them exactly.
func bagChunk(t testing.TB, dtype schema.DType, node lane.Node, lanes int, chunk, chunks schema.Chunk,
	sections ...bagSection) *SparseChunk {
	t.Helper()
	l := schema.Layout{Kind: schema.KindSparse, DType: dtype, Sections: len(sections)}
	for _, s := range sections {
		l.Keys, l.Bags, l.Values = l.Keys+len(s.keys), l.Bags+len(s.starts), l.Values+dtype.Bytes()*len(s.values)
	}
	f, err := schema.NewFrame(l)
	if err != nil {
		t.Fatal(err)
	}
	f.SetHead(schema.Head{Chunk: chunk, Chunks: chunks, Node: node, Lanes: uint16(lanes), Weight: float64(node.Count)})
	keys, offsets, at := f.Keys(), f.Offsets(), 0
	for i, s := range sections {
		f.SetSection(i, schema.Section{Table: s.table, Dim: uint32(bagTables[s.table].Dim), Count: uint64(len(s.keys))})
		copy(keys, s.keys)
		keys = keys[len(s.keys):]
		if l.Bags > 0 {
			copy(offsets, s.starts)
			offsets = offsets[len(s.starts):]
			f.Bags()[i] = schema.Bags{Lane: s.lane, Count: uint32(len(s.starts))}
		}
		for _, v := range s.values {
			if dtype == schema.DTypeBFloat16 {
				f.Halves()[at] = uint16(math.Float32bits(v) >> 16)
			} else {
				f.Float32s()[at] = v
			}
			at++
		}
	}
	data := f.Seal()
	v, err := schema.Verify(data, schema.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return &SparseChunk{Head: v.Head(), View: v, Bytes: int64(len(data))}
}

func newBagRounds(t testing.TB, lanes int, dtype schema.DType) (*Sparse, *Weights) {
	t.Helper()
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	return newSparse(sparseConfig{backend: backend, lanes: lanes, dType: dtype, held: NewHeld(1), tables: bagTables}),
		new(Weights)
}

func addBags(t testing.TB, s *Sparse, w *Weights, chunks ...*SparseChunk) {
	t.Helper()
	for _, c := range chunks {
		for _, refused := range []*schema.FrameError{c.Check(), s.Check(c, w), s.CheckFinite(c)} {
			if refused != nil {
				t.Fatal(refused)
			}
		}
		if err := s.Add(c, w); err != nil {
			t.Fatal(err)
		}
	}
}

func wantMerged(t testing.TB, s *Sparse, id schema.Table, keys []uint64, rows []float32) {
	t.Helper()
	if _, _, ok := s.Next(); !ok {
		t.Fatal("the round is not complete")
	}
	gotKeys, vector, _, err := s.Merge(id, bagTables[id].Dim, 1)
	if err != nil {
		t.Fatal(err)
	}
	gotRows := make([]float32, vector.Len())
	one := []cuda.Term{{Count: 1, Values: vector}}
	if len(gotRows) > 0 {
		if err := s.config.backend.Average(cuda.Average{Lanes: 1, Weight: 1, Terms: one, Out: cuda.Float32s(gotRows)}); err !=
			nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(gotKeys, keys) || !slices.Equal(gotRows, rows) {
		t.Errorf("table %d: keys %v rows %v, want %v and %v", id, gotKeys, gotRows, keys, rows)
	}
}

// Two lanes by hand: bags {7, 9, 7} and {9} of lane 0, of which the second comes in a chunk of its own, and lane 1 by
// rows, which its own trainer chose. Either type of values gives the same sums.
func TestBagsLiteral(t *testing.T) {
	for _, dtype := range []schema.DType{schema.DTypeFloat32, schema.DTypeBFloat16} {
		s, w := newBagRounds(t, 2, dtype)
		addBags(t, s, w,
			bagChunk(t, dtype, lane.Node{First: 1, Count: 1}, 2, 0, 1,
				bagSection{keys: []uint64{7, 8}, values: []float32{0.5, 0.25, 1, 2}}),
			bagChunk(t, dtype, lane.Node{Count: 1}, 2, 1, 2,
				bagSection{keys: []uint64{9}, starts: []uint32{0}, values: []float32{16, 32}},
				bagSection{table: 1, keys: []uint64{3}, values: []float32{5}}),
			bagChunk(t, dtype, lane.Node{Count: 1}, 2, 0, 2,
				bagSection{keys: []uint64{7, 9, 7}, starts: []uint32{0}, values: []float32{1, 2}}))
		wantMerged(t, s, 0, []uint64{7, 8, 9}, []float32{2.5, 4.25, 1, 2, 17, 34})
		wantMerged(t, s, 1, []uint64{3}, []float32{5})
		s.Close(w, 2)
	}
}

// A section without keys says nothing, whichever lanes' bags of its table are in other chunks.
func TestBagsBesideEmptySections(t *testing.T) {
	s, w := newBagRounds(t, 2, schema.DTypeFloat32)
	root, other := lane.Node{Count: 2}, bagSection{table: 1, keys: []uint64{3}, values: []float32{5}}
	addBags(t, s, w,
		bagChunk(t, schema.DTypeFloat32, root, 2, 0, 2,
			bagSection{lane: 1, keys: []uint64{7}, starts: []uint32{0}, values: []float32{1, 2}}),
		bagChunk(t, schema.DTypeFloat32, root, 2, 1, 2, bagSection{}, other))
	wantMerged(t, s, 0, []uint64{7}, []float32{1, 2})
	wantMerged(t, s, 1, []uint64{3}, []float32{5})
}

// Random bags of several lanes in chunks cut anywhere come out as rows that were summed up before they were sent.
func TestBagsAgainstRows(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 7))
	for range 100 {
		lanes := 1 + random.IntN(6)
		bags, w := newBagRounds(t, lanes, schema.DTypeFloat32)
		rows, rw := newBagRounds(t, lanes, schema.DTypeFloat32)
		for l := range lanes {
			node := lane.Node{First: lane.Lane(l), Count: 1}
			var ids []int64
			var all []bagSection
			offsets, grad := []int64{0}, []float32{}
			for range 1 + random.IntN(90) {
				var keys []uint64
				for range 1 + random.IntN(5) {
					keys = append(keys, random.Uint64N(12))
					ids = append(ids, int64(keys[len(keys)-1]))
				}
				value := []float32{random.Float32() - 0.5, float32(math.Exp2(float64(random.IntN(40))))}
				offsets, grad = append(offsets, int64(len(ids))), append(grad, value...)
				if n := len(all); n == 0 || random.IntN(8) == 0 {
					all = append(all, bagSection{lane: uint32(l)})
				}
				last := &all[len(all)-1]
				last.starts, last.keys, last.values = append(last.starts, uint32(len(last.keys))), append(last.keys, keys...),
					append(last.values, value...)
			}
			for _, i := range random.Perm(len(all)) {
				addBags(t, bags, w, bagChunk(t, schema.DTypeFloat32, node, lanes, schema.Chunk(i), schema.Chunk(len(all)), all[i]))
			}
			keys, sums := make([]int64, 12), make([]float32, 24)
			n, err := rows.config.backend.BagBackward(cuda.BagBackward{Dim: 2, Padding: cuda.NoPadding, R: 100,
				IDs:     cuda.Int64s(ids),
				Offsets: cuda.Int64s(offsets), GradOut: cuda.Float32s(grad), Keys: cuda.Int64s(keys), Out: cuda.Float32s(sums)})
			if err != nil {
				t.Fatal(err)
			}
			addBags(t, rows, rw,
				bagChunk(t, schema.DTypeFloat32, node, lanes, 0, 1, bagSection{keys: signed[uint64](keys[:n]), values: sums[:2*n]}))
		}
		keys, sums, _, err := rows.Merge(0, 2, 1)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]float32, sums.Len())
		if err := rows.config.backend.Copy(cuda.Float32s(want), sums); err != nil {
			t.Fatal(err)
		}
		wantMerged(t, bags, 0, keys, want)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A table has one form in all chunks of a contribution, lanes ascend, and what bags may come to counts in a share.
func TestBagsRefused(t *testing.T) {
	root := lane.Node{Count: 2}
	chunk := func(i schema.Chunk, sections ...bagSection) *SparseChunk {
		return bagChunk(t, schema.DTypeFloat32, root, 2, i, 3, sections...)
	}
	rows := bagSection{keys: []uint64{1}, values: []float32{1, 2}}
	bags := func(lane uint32) bagSection {
		return bagSection{lane: lane, keys: []uint64{5, 4}, starts: []uint32{0}, values: []float32{1, 2}}
	}
	other := bagSection{table: 1, keys: []uint64{3}, values: []float32{5}}
	for name, c := range map[string]struct {
		first, second *SparseChunk
		text          string
	}{
		"rows, then bags":     {chunk(0, rows), chunk(1, bags(0)), "do not follow"},
		"bags, then rows":     {chunk(2, rows), chunk(0, bags(0)), "do not follow"},
		"bags, then later":    {chunk(0, bags(0)), chunk(2, bags(1)), ""},
		"bags that go on":     {chunk(0, bags(0)), chunk(1, bags(0)), ""},
		"lanes that fall":     {chunk(0, bags(1)), chunk(1, bags(0)), "do not follow"},
		"another table first": {chunk(0, other), chunk(1, bags(0)), "do not follow"},
		"another table after": {chunk(0, bags(0), other), chunk(1, bags(1)), "do not follow"},
		"NaN": {chunk(0, bags(0)), chunk(1, bagSection{lane: 1, keys: []uint64{8, 9}, starts: []uint32{0, 1},
			values: []float32{1, 2, 3, float32(math.NaN())}}), `column 1 of bag 1 of table "a"`},
	} {
		s, w := newBagRounds(t, 2, schema.DTypeFloat32)
		addBags(t, s, w, c.first)
		refused := c.second.Check()
		if refused == nil {
			refused = s.Check(c.second, w)
		}
		if refused == nil {
			refused = s.CheckFinite(c.second)
		}
		if (refused == nil) != (c.text == "") || refused != nil && !strings.Contains(refused.Detail, c.text) {
			t.Errorf("%s: %v, want %q", name, refused, c.text)
		}
	}
}

// A share counts what bags come to: at most the rows of the table for each lane, not what is in the frame alone.
func TestBagsCost(t *testing.T) {
	s, w := newBagRounds(t, 2, schema.DTypeFloat32)
	keys := make([]uint64, 1000)
	few := bagChunk(t, schema.DTypeFloat32, lane.Node{Count: 2}, 2, 0, 1,
		bagSection{keys: keys[:50], starts: []uint32{0}, values: []float32{1, 2}},
		bagSection{lane: 1, keys: keys, starts: []uint32{0}, values: []float32{1, 2}})
	if want := max(few.Bytes, int64(50*16+100*16)); s.Cost(few) != want {
		t.Errorf("cost %d, want %d", s.Cost(few), want)
	}
	many := bagChunk(t, schema.DTypeFloat32, lane.Node{Count: 2}, 2, 0, 1,
		bagSection{keys: keys[:60], starts: []uint32{0}, values: []float32{1, 2}})
	if got := s.Cost(many); got != 60*16 || got <= many.Bytes {
		t.Errorf("cost %d of %d bytes, want what 60 rows take, %d", got, many.Bytes, 60*16)
	}
	addBags(t, s, w, many)
	if held := s.HeldOf(0, 0); held != 60*16 {
		t.Errorf("a share of %d, want %d", held, 60*16)
	}
}
