package trainer

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"gradbus/lane"
	"gradbus/schema"
)

// denseFrames are frames [node][1 chunk] of values.
func denseFrames(t *testing.T, dtype schema.DType, nodes ...[]float32) [][]*schema.Frame {
	t.Helper()
	var all [][]*schema.Frame
	for _, values := range nodes {
		f, err := schema.NewFrame(schema.Layout{Kind: schema.KindDense, DType: dtype, Values: dtype.Bytes() * len(values)})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range values {
			switch dtype {
			case schema.DTypeFloat32:
				f.Float32s()[i] = v
			case schema.DTypeBFloat16:
				f.Halves()[i] = uint16(math.Float32bits(v) >> 16)
			default:
				f.Halves()[i] = map[float32]uint16{0: 0, 3: 0x4200, 4: 0x4400, -4: 0xc400, 1: 0x3c00}[v]
			}
		}
		all = append(all, []*schema.Frame{f})
	}
	return all
}

// Of one node, of several, of some without samples, in each type: the norm of the sum, over all samples.
func TestGradientNormOfDense(t *testing.T) {
	for _, dtype := range []schema.DType{schema.DTypeFloat32, schema.DTypeBFloat16, schema.DTypeFloat16} {
		for _, c := range []struct {
			nodes   [][]float32
			weights []int
			samples int
			want    float64
		}{
			{[][]float32{{3, 4, 0, 0, 0}}, []int{5}, 5, 1},
			{[][]float32{{3, 4, 0, 0, 0}, {0, -4, 4, 0, 0}}, []int{3, 2}, 5, 1},
			{[][]float32{{4, 4, 4, 4, 4}, {3, 4, 0, 0, 0}, {1, 1, 1, 1, 1}}, []int{0, 1, 0}, 1, 5},
			{[][]float32{{4, 4, 4, 4, 4}, {3, 4, 0, 0, 0}, {1, 0, 3, 0, 0}}, []int{0, 1, 1}, 1, math.Sqrt(16 + 16 + 9)},
			{[][]float32{{4, 4, 4, 4, 4}}, []int{0}, 1, 0},
		} {
			var n gradientNorm
			n.begin(time.Now())
			n.dense(denseFrames(t, dtype, c.nodes...), 0, c.weights)
			if got := n.end(time.Now(), c.samples); got == nil || math.Abs(float64(*got)-c.want) > 1e-12 {
				t.Errorf("%v of %v with %v samples: %v, want %v", dtype, c.nodes, c.weights, got, c.want)
			}
		}
	}
}

// Rows over several nodes and bags, in any mixture, against sums by key.
func TestGradientNormOfRows(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		const dim, keys = 3, 7
		nodes := 1 + random.IntN(3)
		r := &rowSums{dims: []int{dim}, bags: &bagGrads{}}
		sum := make([]float64, dim*keys)
		add := func(key uint64, row []float32) {
			for i, v := range row {
				sum[int(key)*dim+i] += float64(v)
			}
		}
		row := func() []float32 { // small integers, so that any order of sums is exact
			return []float32{float32(random.IntN(9) - 4), float32(random.IntN(9) - 4), float32(random.IntN(9) - 4)}
		}
		for node := range nodes {
			asBags := random.IntN(2) == 0
			r.bags.form = append(r.bags.form, []bool{asBags})
			r.bags.nodes = append(r.bags.nodes, lane.Node{First: lane.Lane(node), Count: 1})
			var sums rows
			var b bagGrad
			if asBags {
				b.given, b.offsets = givenBags, []int64{0}
				for range random.IntN(4) {
					values := row()
					for range random.IntN(4) {
						id := random.IntN(keys)
						b.ids = append(b.ids, int64(id))
						add(uint64(id), values)
					}
					b.values, b.offsets = append(b.values, values...), append(b.offsets, int64(len(b.ids)))
				}
			} else {
				for id := range uint64(keys) {
					if random.IntN(2) == 0 {
						values := row()
						sums.ids, sums.values = append(sums.ids, id), append(sums.values, values...)
						add(id, values)
					}
				}
			}
			r.node = append(r.node, []rows{sums})
			r.bags.lanes, r.bags.there = append(r.bags.lanes, []bagGrad{b}), append(r.bags.there, true)
		}
		want := 0.0
		for _, v := range sum {
			want += v * v
		}
		var n gradientNorm
		n.begin(time.Now())
		n.rows(r)
		if got := n.end(time.Now(), 2); got == nil || math.Abs(float64(*got)-math.Sqrt(want)/2) > 1e-9 {
			t.Fatalf("norm %v, want %v", got, math.Sqrt(want)/2)
		}
	}
}

// What a measurement has cost says when the next one is.
func TestGradientNormIsSeldom(t *testing.T) {
	at := time.Now()
	var n gradientNorm
	n.begin(at)
	if !n.on {
		t.Fatal("the first batch is not measured")
	}
	n.end(at, 1)
	for after, want := range map[time.Duration]bool{normEvery - 1: false, normEvery: true} {
		if n.begin(at.Add(after)); n.on != want {
			t.Errorf("%v later: %v", after, n.on)
		}
	}
	n.cost = 20 * time.Millisecond
	n.end(at, 1)
	for after, want := range map[time.Duration]bool{9 * time.Second: false, 10 * time.Second: true} {
		if n.begin(at.Add(after)); n.on != want {
			t.Errorf("%v after one of 20 ms: %v", after, n.on)
		}
	}
}
