package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// bagCase is a pooling with everything drawn at random: types, mode, weights, padding, ids out of range, open offsets.
type bagCase struct {
	dim         int
	mode        Mode
	padding     int64
	skip, open  bool
	rows        int64
	ids         []int64
	offsets     []int64 // closed
	weights     []float32
	idType      DType
	offsetsType DType
	rowType     DType
	outType     DType
}

func (c bagCase) String() string {
	return fmt.Sprintf("dim %d mode %d padding %d skip %v open %v, %d ids of %v in %d bags by %v, weights %v, "+
		"rows %v, out %v", c.dim, c.mode,
		c.padding, c.skip, c.open, len(c.ids), c.idType, len(c.offsets)-1, c.offsetsType, c.weights != nil,
		c.rowType, c.outType)
}

func drawBags(r *rand.Rand, dim int, rows int64) bagCase {
	c := bagCase{dim: dim, mode: Mode(r.IntN(3)), padding: []int64{NoPadding, 0, 17, 99}[r.IntN(4)], skip: r.IntN(3) == 0,
		open: r.IntN(3) == 0, rows: rows, idType: []DType{Int64, Int32}[r.IntN(2)],
		offsetsType: []DType{Int64, Int32}[r.IntN(2)],
		rowType:     floatTypes[r.IntN(3)]}
	if r.IntN(3) == 0 { // the types that most calls have
		c.idType, c.offsetsType, c.rowType = Int64, Int64, Float32
	}
	c.outType = []DType{Float32, c.rowType}[r.IntN(2)]
	c.ids, c.offsets = randomBags(r, 7, longestOf(r, dim), rows, c.padding)
	if c.skip {
		for i := range c.ids {
			if r.IntN(4) == 0 {
				c.ids[i] = []int64{-1, rows, -9, 1 << 30}[r.IntN(4)]
			}
		}
	}
	if c.mode == Sum && r.IntN(2) == 0 && len(c.ids) > 0 {
		c.weights = awkward(r, len(c.ids), r.IntN(4) == 0)
	}
	return c
}

func (c *bagCase) offsetsVector() Vector {
	if c.open {
		return idsOf(c.offsetsType, c.offsets[:len(c.offsets)-1])
	}
	return idsOf(c.offsetsType, c.offsets)
}

// counted lists the positions of a bag that count.
func (c *bagCase) counted(bag int) (positions []int, skipped int64) {
	for i := c.offsets[bag]; i < c.offsets[bag+1]; i++ {
		switch id := c.ids[i]; {
		case c.padding >= 0 && id == c.padding:
		case id < 0 || id >= c.rows:
			skipped++
		default:
			positions = append(positions, int(i))
		}
	}
	return positions, skipped
}

// naivePool is one bag: the row, where each column's maximum came from, and how many ids were skipped.
func (c *bagCase) naivePool(table []float32, bag int) (out []float32, argmax []int32, skipped int64) {
	positions, skipped := c.counted(bag)
	out, argmax = make([]float32, c.dim), slices.Repeat([]int32{-1}, c.dim)
	terms := make([]float32, len(positions))
	for d := range c.dim {
		for i, p := range positions {
			terms[i] = table[int(c.ids[p])*c.dim+d]
			if c.weights != nil {
				terms[i] = float32(c.weights[p] * terms[i])
			}
		}
		switch {
		case c.mode != Max:
			out[d] = naiveSum(terms)
			if c.mode == Mean && len(terms) > 0 {
				out[d] /= float32(len(terms))
			}
		case len(terms) > 0:
			best := 0
			if at := slices.IndexFunc(terms, func(v float32) bool { return v != v }); at >= 0 {
				best = at
			} else {
				for i, v := range terms {
					if v > terms[best] {
						best = i
					}
				}
			}
			out[d], argmax[d] = terms[best], int32(positions[best])
		}
	}
	return out, argmax, skipped
}

func TestBagForwardBits(t *testing.T) {
	eachCase(t, func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool) {
		rows := 2 * rowsFor(dim)
		for range 4 {
			c := drawBags(r, dim, int64(rows))
			table, bags := awkwardOf(r, c.rowType, rows*dim, special), len(c.offsets)-1
			argmax := slices.Repeat([]int32{-7}, bags*dim)
			var report Report
			a := BagForward{Dim: dim, Mode: c.mode, Padding: c.padding, SkipBadIDs: c.skip, OpenOffsets: c.open, Rows: table,
				IDs: idsOf(c.idType, c.ids), Offsets: c.offsetsVector(), Weights: Float32s(c.weights),
				Out: cleared(c.outType, bags*dim), Report: &report}
			if c.mode == Max && r.IntN(4) > 0 {
				a.ArgMax = Int32s(argmax)
			}
			must(t, b.BagForward(a))
			values, skipped := unpacked(table), int64(0)
			for bag := range bags {
				out, at, bad := c.naivePool(values, bag)
				wantVector(t, fmt.Sprintf("%v: bag %d", c, bag), a.Out.Slice(bag*dim, (bag+1)*dim), naiveRounds(c.outType, out))
				if got := argmax[bag*dim:][:dim]; a.ArgMax.Len() > 0 && !slices.Equal(got, at) {
					t.Fatalf("%v: argmax of bag %d is %v, want %v", c, bag, got, at)
				}
				skipped += bad
			}
			if report.skipped != skipped {
				t.Fatalf("%v: %d ids skipped, want %d", c, report.skipped, skipped)
			}
		}
	})
}

// naiveScatter is the gradient by its definition: for each distinct id the terms of its positions.
func (c *bagCase) naiveScatter(grad []float32, argmax []int32) (keys []int64, rows []float32, skipped int64) {
	type place struct{ bag, position, length int }
	places := map[int64][]place{}
	for bag := range len(c.offsets) - 1 {
		positions, bad := c.counted(bag)
		skipped += bad
		for _, p := range positions {
			places[c.ids[p]] = append(places[c.ids[p]], place{bag, p, len(positions)})
		}
	}
	for id := range places {
		keys = append(keys, id)
	}
	slices.Sort(keys)
	for _, id := range keys {
		for d := range c.dim {
			var terms []float32
			for _, p := range places[id] {
				g := grad[p.bag*c.dim+d]
				switch {
				case c.weights != nil:
					g = float32(c.weights[p.position] * g)
				case c.mode == Mean:
					g /= float32(p.length)
				case c.mode == Max && argmax[p.bag*c.dim+d] != int32(p.position):
					g = 0
				}
				terms = append(terms, g)
			}
			rows = append(rows, naiveSum(terms))
		}
	}
	return keys, rows, skipped
}

func TestBagBackwardBits(t *testing.T) {
	eachCase(t, func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool) {
		for range 4 {
			c := drawBags(r, dim, []int64{5, 300}[r.IntN(2)])
			bags := len(c.offsets) - 1
			grad := awkwardOf(r, c.rowType, bags*dim, special)
			var argmax []int32
			if c.mode == Max {
				argmax = make([]int32, bags*dim) // forward's, and now and then a position that is nobody's
				for bag := range bags {
					for d := range dim {
						argmax[bag*dim+d] = -1
						if n := int(c.offsets[bag+1] - c.offsets[bag]); n > 0 && r.IntN(9) > 0 {
							argmax[bag*dim+d] = int32(int(c.offsets[bag]) + r.IntN(n))
						}
					}
				}
			}
			wantKeys, wantRows, skipped := c.naiveScatter(unpacked(grad), argmax)
			var report Report
			room := len(wantKeys) + r.IntN(2)
			keys := make([]int64, room)
			a := BagBackward{Dim: dim, Mode: c.mode, Padding: c.padding, SkipBadIDs: c.skip, OpenOffsets: c.open, R: c.rows,
				IDs: idsOf(c.idType, c.ids), Offsets: c.offsetsVector(), Weights: Float32s(c.weights), ArgMax: Int32s(argmax),
				GradOut: grad,
				Keys:    Int64s(keys), Out: cleared(c.outType, room*dim), Report: &report}
			n, err := b.BagBackward(a)
			must(t, err)
			if !slices.Equal(keys[:n], wantKeys) || report.skipped != skipped {
				t.Fatalf("%v: keys %v and %d skipped, want %v and %d", c, keys[:n], report.skipped, wantKeys, skipped)
			}
			wantVector(t, c, a.Out.Slice(0, n*dim), naiveRounds(c.outType, wantRows))
		}
	})
}
