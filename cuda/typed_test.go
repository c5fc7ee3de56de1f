package cuda

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Vectors of every type for tests, and a naive second implementation of rounding to 16 bits.

var floatTypes = []DType{Float32, Float16, BFloat16}

// naiveRound is x rounded to what the type holds, by way of the distance between its neighbours.
func naiveRound(dtype DType, x float32) float32 {
	digits, lowest, top := 10, -14, 65504.0
	switch dtype {
	case Float32:
		return x
	case BFloat16:
		digits, lowest, top = 7, -126, 0x1.fep127
	}
	if v := float64(x); v != v || math.IsInf(v, 0) || v == 0 {
		return x
	}
	_, e := math.Frexp(float64(x)) // x = f * 2^e, f in [0.5, 1)
	step := math.Ldexp(1, max(e-1, lowest)-digits)
	rounded := math.RoundToEven(float64(x)/step) * step
	if math.Abs(rounded) > top {
		return float32(math.Copysign(math.Inf(1), rounded))
	}
	return float32(math.Copysign(rounded, float64(x)))
}

func naiveRounds(dtype DType, x []float32) []float32 {
	to := make([]float32, len(x))
	for i, v := range x {
		to[i] = naiveRound(dtype, v)
	}
	return to
}

// packed is a vector of the type with the values of x, rounded. Its memory begins one element past an aligned address.
func packed(dtype DType, x []float32) Vector {
	if dtype == Float32 {
		return Float32s(append(make([]float32, 1, len(x)+1), x...)[1:])
	}
	bits := make([]uint16, len(x)+1)[1:]
	for i, v := range x {
		bits[i] = uint16(math.Float32bits(naiveRound(dtype, v)) >> 16)
		if dtype == Float16 {
			bits[i] = narrowFloat16(v)
		}
	}
	if dtype == Float16 {
		return Float16s(bits)
	}
	return BFloat16s(bits)
}

// unpacked is the values of a vector of any type of floats.
func unpacked(v Vector) []float32 {
	x := make([]float32, v.n)
	switch v.dtype {
	case Float16:
		for i, h := range view[uint16](v) {
			x[i] = widenFloat16(h)
		}
	case BFloat16:
		for i, h := range view[uint16](v) {
			x[i] = math.Float32frombits(uint32(h) << 16)
		}
	default:
		copy(x, view[float32](v))
	}
	return x
}

// awkwardOf is awkward, as the type holds it, with now and then a value at the edge of its range.
func awkwardOf(r *rand.Rand, dtype DType, n int, special bool) Vector {
	x := awkward(r, n, special)
	for i := range x {
		if dtype == Float16 && r.IntN(100) == 0 {
			x[i] = float32(math.Copysign([]float64{65504, 65519, 0x1p-14, 0x1p-24, 0x1.8p-25, 3e-8}[r.IntN(6)], r.NormFloat64()))
		}
	}
	return packed(dtype, x)
}

// cleared is a vector full of a number that no test expects.
func cleared(dtype DType, n int) Vector {
	x := make([]float32, n)
	for i := range x {
		x[i] = -777
	}
	return packed(dtype, x)
}

// idsOf is a vector of the type with these ids.
func idsOf(dtype DType, ids []int64) Vector {
	switch dtype {
	case Int32:
		to := make([]int32, len(ids)+1)[1:]
		for i, id := range ids {
			to[i] = int32(id)
		}
		return Int32s(to)
	case Uint64:
		to := make([]uint64, len(ids))
		for i, id := range ids {
			to[i] = uint64(id)
		}
		return Uint64s(to)
	}
	return Int64s(append([]int64(nil), ids...))
}

// wantVector compares a vector of any type of floats bit for bit.
func wantVector(t *testing.T, what any, got Vector, want []float32) {
	t.Helper()
	x := unpacked(got)
	for i := range want {
		if i >= len(x) || !sameBits(x[i:i+1], want[i:i+1]) {
			t.Fatalf("%v, %v: value %d of %d is %v, want %v", what, got.dtype, i, len(want), x[i:min(i+1, len(x))], want[i])
		}
	}
	if len(x) < len(want) {
		t.Fatalf("%v: %d values, want %d", what, len(x), len(want))
	}
}

// TestWidening holds every value of the 16-bit types on every backend: an average of one term, of weight 1.
func TestWidening(t *testing.T) {
	bits := make([]uint16, 1<<16)
	for i := range bits {
		bits[i] = uint16(i)
	}
	naive := func(h uint16) float32 {
		sign, e, f := 1.0, int(h>>10&31), float64(h&1023)
		if h>>15 == 1 {
			sign = -1
		}
		switch e {
		case 0:
			return float32(math.Copysign(math.Ldexp(f, -24), sign))
		case 31:
			if f == 0 {
				return float32(math.Inf(int(sign)))
			}
			return nan
		}
		return float32(sign * math.Ldexp(1024+f, e-25))
	}
	onEach(t, func(t *testing.T, b Backend) {
		out := make([]float32, len(bits))
		must(t, b.Average(Average{Lanes: 1, Weight: 1, Terms: []Term{{0, 1, Float16s(bits)}}, Out: Float32s(out)}))
		for i, h := range bits {
			if !sameBits(out[i:i+1], []float32{naive(h)}) {
				t.Fatalf("float16 %#x is %v, want %v", h, out[i], naive(h))
			}
		}
		must(t, b.Average(Average{Lanes: 1, Weight: 1, Terms: []Term{{0, 1, BFloat16s(bits)}}, Out: Float32s(out)}))
		for i, h := range bits {
			if want := math.Float32frombits(uint32(h) << 16); !sameBits(out[i:i+1], []float32{want}) {
				t.Fatalf("bfloat16 %#x is %v, want %v", h, out[i], want)
			}
		}
	})
}

// TestNarrowing stores float32 in 16 bits on every backend: p = 0 - (-1)*g.
func TestNarrowing(t *testing.T) {
	for _, c := range []struct {
		dtype    DType
		in, want float32
	}{
		{Float16, 1 + 0x1p-11, 1}, {Float16, 1 + 0x3p-11, 1 + 0x1p-9}, {Float16, 1 + 0x1.8p-11, 1 + 0x1p-10},
		{Float16, 65519, 65504},
		{Float16, 65520, inf}, {Float16, -65520, -inf}, {Float16, 0x1p-25, 0}, {Float16, 0x1.8p-25, 0x1p-24},
		{Float16, 0x1.8p-24, 0x1p-23},
		{Float16, 0x1.ff8p-15, 0x1.ff8p-15}, {Float16, 0x1.fffp-15, 0x1p-14}, {Float16, -0x1p-149, negativeZero},
		{Float16, nan, nan},
		{BFloat16, 1 + 0x1p-8, 1}, {BFloat16, 1 + 0x3p-8, 1 + 0x1p-6}, {BFloat16, math.MaxFloat32, inf},
		{BFloat16, 0x1p-149, 0},
		{BFloat16, 0x1p-133, 0x1p-133}, {BFloat16, 0x1.8p-133, 0x1p-132}, {BFloat16, nan, nan}, {BFloat16, -inf, -inf},
	} {
		if got := naiveRound(c.dtype, c.in); !sameBits([]float32{got}, []float32{c.want}) {
			t.Errorf("naive: %v as %v is %v, want %v", c.in, c.dtype, got, c.want)
		}
		got := unpacked(packed(c.dtype, []float32{c.in}))
		if !sameBits(got, []float32{c.want}) {
			t.Errorf("%v as %v is %v, want %v", c.in, c.dtype, got, c.want)
		}
	}
	r := rand.New(rand.NewPCG(1, 41))
	const n = 200_000
	in := make([]float32, n)
	for i := range in {
		in[i] = math.Float32frombits(r.Uint32() | 1) // no zeros: p - lr*g is never -0
		// around the range of float16, now and then halfway between two of its values
		if i%2 == 0 {
			in[i] = float32(math.Ldexp(1+r.Float64(), r.IntN(45)-28))
			if i%4 == 0 {
				in[i] = float32(math.Copysign(float64(math.Float32frombits(math.Float32bits(in[i])&^0xfff)), r.Float64()-0.5))
			}
		}
	}
	onEach(t, func(t *testing.T, b Backend) {
		for _, dtype := range []DType{Float16, BFloat16} {
			out := cleared(dtype, n)
			must(t, b.ApplyDense(ApplyDense{Optimizer: SGD{LR: -1}, Weight: 1, Param: packed(dtype, make([]float32, n)),
				Grad: Float32s(in), Out: out}))
			wantVector(t, "stored", out, naiveRounds(dtype, in))
		}
	})
}
