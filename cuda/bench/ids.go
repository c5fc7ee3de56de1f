package bench

import (
	"math"

	"gradbus/philox"
)

const (
	seed         = 20
	zipfExponent = 1.05
)

// zipf draws ranks 1..n, rank k with probability in proportion to k^-zipfExponent, by rejection-inversion: a point
// under the curve x^-s is drawn by inverting its integral, and taken for the rank it is nearest to unless it lies above
// that rank's bar, which is seldom.
//
// Source: Hörmann and Derflinger, Rejection-inversion to generate variates from monotone discrete distributions, ACM
// TOMACS 6, 1996.
type zipf struct {
	source       philox.Source
	n            float64
	low, high, s float64 // the integral at 1.5 less 1, and at n+0.5; below s a point needs no second look
}

func newZipf(n int, source philox.Source) *zipf {
	z := &zipf{source: source, n: float64(n)}
	z.low, z.high = integral(1.5)-1, integral(z.n+0.5)
	z.s = 2 - inverse(integral(2.5)-bar(2))
	return z
}

// bar, integral and inverse are x^-s, its integral from 1, and that one's inverse.
func bar(x float64) float64 { return math.Pow(x, -zipfExponent) }
func integral(x float64) float64 {
	return (math.Pow(x, 1-zipfExponent) - 1) / (1 - zipfExponent)
}
func inverse(y float64) float64 { return math.Pow(1+y*(1-zipfExponent), 1/(1-zipfExponent)) }

func (z *zipf) rank() int {
	for {
		u := float64(z.source.Uint64()>>11) * 0x1p-53
		y := z.high + u*(z.low-z.high)
		x := inverse(y)
		k := min(max(math.Floor(x+0.5), 1), z.n)
		if k-x <= z.s || y >= integral(k+0.5)-bar(k) {
			return int(k)
		}
	}
}

// idSource draws ids in [0, rows). It keeps the permutation of its rows, 4 bytes each, for the next draw.
type idSource struct {
	order []int32
}

// draw gives n ids: uniform ones, or Zipf ranks, scattered over the rows by a permutation so that frequent rows are not
// neighbours. The same arguments give the same ids.
func (d *idSource) draw(n, rows int, kind string, stream uint64) []int64 {
	ids := make([]int64, n)
	source := philox.New(seed, "bench ids", uint64(n), uint64(rows), stream)
	if kind != idsZipf {
		for i := range ids {
			ids[i] = int64(source.Below(uint32(rows)))
		}
		return ids
	}
	if len(d.order) != rows {
		d.order = philox.Permutation(seed, 0, rows)
	}
	z := newZipf(rows, source)
	for i := range ids {
		ids[i] = int64(d.order[z.rank()-1])
	}
	return ids
}

// ascending gives n different ids in [0, rows), ascending and evenly spread, as a gradient that was summed before;
// those of another shift lie between.
func ascending(n, rows int, shift uint64) []int64 {
	ids := make([]int64, n)
	gap := max(int64(rows/n), 1)
	for i := range ids {
		ids[i] = int64(i)*int64(rows)/int64(n) + int64(shift)%gap
	}
	return ids
}

// distinct counts the different ones of ids in [0, rows).
func distinct(ids []int64, rows int) int {
	seen := make([]uint64, (rows+63)/64)
	n := 0
	for _, id := range ids {
		word, bit := id/64, uint64(1)<<(id%64)
		if seen[word]&bit == 0 {
			seen[word] |= bit
			n++
		}
	}
	return n
}
