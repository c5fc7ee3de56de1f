package philox

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math"
	"math/big"
	"slices"
	"testing"
)

// The known answers of Random123 (tests/kat_vectors, philox4x32 10).
func TestBlockKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{
			[4]uint32{}, [2]uint32{},
			[4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
		},
		{
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		if got := Block(c.counter, c.key); got != c.want {
			t.Errorf("Block(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

func TestNameHash(t *testing.T) {
	for _, name := range []string{"", "a", "embedding.weight", "\x00\xff"} {
		h := fnv.New64a()
		h.Write([]byte(name))
		if got := FNV(name); got != h.Sum64() {
			t.Errorf("FNV(%q) = %x, want %x", name, got, h.Sum64())
		}
	}
}

// New folds its arguments as its comment says, here spelt out once more by hand.
func TestNewFolds(t *testing.T) {
	seed, a, b, c := uint64(0x1122334455667788), uint64(3)<<40|9, uint64(7), uint64(1)<<63
	words := func(x uint64) []byte { return binary.LittleEndian.AppendUint64(nil, x) }
	u32 := func(p []byte, i int) uint32 { return binary.LittleEndian.Uint32(p[4*i:]) }
	cipher := func(lo, hi uint64, k [2]uint32) [4]uint32 {
		p := append(words(lo), words(hi)...)
		return Block([4]uint32{u32(p, 0), u32(p, 1), u32(p, 2), u32(p, 3)}, k)
	}
	x := cipher(FNV("dropout"), a, [2]uint32{0x55667788, 0x11223344})
	y := cipher(b, c, [2]uint32{x[0], x[1]})
	high := uint64(y[2]^x[2]) | uint64(y[3]^x[3])<<32
	s := New(seed, "dropout", a, b, c)
	for i := range uint64(3) {
		want := cipher(i, high, [2]uint32{y[0], y[1]})
		for _, w := range want {
			if got := s.uint32(); got != w {
				t.Fatalf("block %d: got %x, want one of %x", i, got, want)
			}
		}
	}
}

// Changing any one of the five arguments changes the sequence.
func TestNewSeparates(t *testing.T) {
	seen := map[uint64]int{}
	for i, s := range []Source{
		New(1, "x", 2, 3, 4), New(2, "x", 2, 3, 4), New(1, "y", 2, 3, 4), New(1, "x", 3, 3, 4), New(1, "x", 2, 2, 4),
		New(1, "x", 2, 3, 5), New(1<<32, "x", 2, 3, 4), New(1, "x", 2<<32, 3, 4), New(1, "x", 2, 4, 3), New(1, "x", 3, 2, 4),
	} {
		v := s.Uint64()
		if j, ok := seen[v]; ok {
			t.Errorf("sequences %d and %d start alike", i, j)
		}
		seen[v] = i
	}
}

func TestUniform32(t *testing.T) {
	for _, c := range []struct {
		bits uint32
		want float32
	}{{0, 0}, {0xff, 0}, {0x100, 0x1p-24}, {0x80000000, 0.5}, {0xffffffff, 1 - 0x1p-24}} {
		if got := uniform32(c.bits); got != c.want {
			t.Errorf("Uniform32(%#x) = %v, want %v", c.bits, got, c.want)
		}
	}
	for _, c := range []struct {
		bits uint32
		want float32
	}{{0, -1}, {0x80000000, 0}, {0xffffffff, 1 - 0x1p-23}, {0x7fffffff, -0x1p-23}} {
		if got := symmetric(c.bits); got != c.want {
			t.Errorf("symmetric(%#x) = %v, want %v", c.bits, got, c.want)
		}
	}
}

func TestLogarithm(t *testing.T) {
	worst := 0.0
	s := New(1, "test", 0, 0, 0)
	for i := range 200_000 {
		x := (float64(s.uint32()) + 0.5) / (1 << 32)
		switch i {
		case 0:
			x = 0x1p-33
		case 1:
			x = 0.5
		case 2:
			x = math.Sqrt2 / 2
		}
		want := math.Log(x)
		worst = max(worst, math.Abs(logarithm(x)-want)/math.Abs(math.Nextafter(want, 0)-want))
	}
	if worst > 2 { // under one unit here, and under one in math.Log
		t.Errorf("logarithm is off by %.2f units in the last place", worst)
	}
}

// Normal64 inverts the distribution: 1/2 erfc(-x/sqrt2) gives back p. An error of e in x moves p by phi(x) e.
func TestNormal64Inverts(t *testing.T) {
	s := New(2, "test", 0, 0, 0)
	check := func(bits uint32) {
		x := normal64(bits)
		low := (float64(bits) + 0.5) / (1 << 32)
		p, q := low, math.Erfc(-x/math.Sqrt2)/2
		if low > 0.5 { // compare on the side where p is small, so that the tail is not lost in rounding
			p, q = (float64(^bits)+0.5)/(1<<32), math.Erfc(x/math.Sqrt2)/2
		}
		density := math.Exp(-x*x/2) / math.Sqrt(2*math.Pi)
		if slack := 1e-14*density*math.Max(1, math.Abs(x)) + 1e-14*p; math.Abs(p-q) > slack {
			t.Fatalf("Normal64(%#x) = %.17g: back to %.17g, want %.17g", bits, x, q, p)
		}
	}
	for _, bits := range []uint32{0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, 322122547, 322122548, 3972844748,
		3972844749, 50, 60, 100} {
		check(bits)
	}
	for range 100_000 {
		check(s.uint32())
	}
}

// Values for ever; they are those of Python's statistics.NormalDist().inv_cdf((bits + 0.5) / 2**32), which is AS 241
// too.
func TestNormal64Golden(t *testing.T) {
	for _, c := range []struct {
		bits uint32
		want uint64
	}{
		{0, 0xc0195a1198fcf3d5}, {1, 0xc018aa6c7fe07fde}, {100, 0xc015da2d11fc6bd1}, {0x12345678, 0xbff77b263457d4ce},
		{0x13333332, 0xbff708522723041a}, {0x13333333, 0xbff7085226b1fc71}, // either side of 0.075, where the branches meet
		{0x80000000, 0x3df40d931ff62707}, {0xc0000000, 0x3fe5956b8784e3d9}, {0xfedcba98, 0x4004ee2dc0c11755},
		{0xffffffff, 0x40195a1198fcf3d5},
	} {
		if got := math.Float64bits(normal64(c.bits)); got != c.want {
			t.Errorf("bits of Normal64(%#x) = %#x, want %#x", c.bits, got, c.want)
		}
	}
}

func TestNormalMoments(t *testing.T) {
	const n = 1 << 20
	s := New(3, "moments", 0, 0, 0)
	var sum, squares, cubes float64
	beyond := 0
	for range n {
		x := s.Normal()
		sum += x
		squares += x * x
		cubes += x * x * x
		if math.Abs(x) > 1.959964 {
			beyond++
		}
	}
	root := math.Sqrt(n) // each within six of its standard deviations
	if m := sum / n; math.Abs(m) > 6/root {
		t.Errorf("mean %v", m)
	}
	if v := squares / n; math.Abs(v-1) > 6*math.Sqrt2/root {
		t.Errorf("variance %v", v)
	}
	if k := cubes / n; math.Abs(k) > 6*math.Sqrt(15)/root {
		t.Errorf("third moment %v", k)
	}
	if f := float64(beyond) / n; math.Abs(f-0.05) > 6*math.Sqrt(0.05*0.95)/root {
		t.Errorf("share beyond 1.96: %v", f)
	}
}

// A mask is zero where the number drawn for it is below p, and the rest makes up for it; the draws are the sequence's.
func TestMask(t *testing.T) {
	const n = 1 << 16
	for _, p := range []float32{0, 0.25, 0.5, 1} {
		s, numbers := New(7, "dropout", 1, 2, 3), New(7, "dropout", 1, 2, 3)
		mask := make([]float32, n)
		s.Mask(mask, p)
		zeros := 0
		for i, v := range mask {
			dropped := numbers.Uniform() < p
			if dropped {
				zeros++
			}
			if dropped != (v == 0) || v != 0 && v != 1/(1-p) {
				t.Fatalf("p %v: value %d is %v, dropped %v", p, i, v, dropped)
			}
		}
		if f := float64(zeros) / n; math.Abs(f-float64(p)) > 6*math.Sqrt(float64(p*(1-p))/n) {
			t.Errorf("p %v: a share of %v is dropped", p, f)
		}
		if s.uint32() != numbers.uint32() {
			t.Errorf("p %v: the sequence goes on elsewhere", p)
		}
	}
}

func TestBelow(t *testing.T) {
	s := New(4, "below", 0, 0, 0)
	if got := s.Below(1); got != 0 {
		t.Errorf("Below(1) = %d", got)
	}
	// Multiplying without drawing again would give the first half of 3*2^30 values two thirds of the draws, not a half.
	const n, bound = 1 << 16, 3 << 30
	low := 0
	for range n {
		v := s.Below(bound)
		if v >= bound {
			t.Fatalf("Below(%d) = %d", uint32(bound), v)
		}
		if v%3 == 0 {
			low++
		}
	}
	if share := float64(low) / n; math.Abs(share-1.0/3) > 6*math.Sqrt(2.0/9/n) {
		t.Errorf("multiples of three: %v of all, want a third", share)
	}
	defer func() {
		if recover() == nil {
			t.Error("Below(0) did not panic")
		}
	}()
	s.Below(0)
}

// The order against a second implementation in big integers: the same draws, exact arithmetic.
func TestPermutation(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 10, 257} {
		got := Permutation(5, 6, n)
		s := New(5, "permutation", 6, uint64(n), 0)
		want := make([]int32, n)
		for i := range want {
			want[i] = int32(i)
		}
		full := new(big.Int).Lsh(big.NewInt(1), 32)
		for i := n - 1; i > 0; i-- {
			bound := big.NewInt(int64(i) + 1)
			unfair := new(big.Int).Mod(full, bound)
			for {
				p := new(big.Int).Mul(big.NewInt(int64(s.uint32())), bound)
				high, low := new(big.Int).DivMod(p, full, new(big.Int))
				if low.Cmp(unfair) >= 0 {
					j := high.Int64()
					want[i], want[j] = want[j], want[i]
					break
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("n = %d: got %v, want %v", n, got, want)
		}
		sorted := slices.Sorted(slices.Values(got))
		for i, v := range sorted {
			if int(v) != i {
				t.Fatalf("n = %d: not a permutation: %v", n, got)
			}
		}
	}
	if slices.Equal(Permutation(5, 6, 100), Permutation(5, 7, 100)) ||
		slices.Equal(Permutation(5, 6, 100), Permutation(6, 6, 100)) {
		t.Error("epochs or seeds share an order")
	}
}

// Made with a second implementation in Python.
func TestPermutationGolden(t *testing.T) {
	want := []int32{6, 2, 9, 5, 7, 4, 0, 1, 8, 3}
	if got := Permutation(1, 0, 10); !slices.Equal(got, want) {
		t.Errorf("Permutation(1, 0, 10) = %v, want %v", got, want)
	}
}

// Values for ever, made with a second implementation in Python.
func TestFillGolden(t *testing.T) {
	for _, c := range []struct {
		kind string
		want []uint32
	}{
		{Zeros, []uint32{0, 0, 0, 0, 0, 0}},
		{Uniform, []uint32{0xbc3d59c7, 0x3d0280af, 0xbc7fb8f3, 0x3d16c455, 0x3d2b84b5, 0x3b072567}},
		{Normal, []uint32{0xbc70bc7e, 0x3d3a6272, 0xbca492b5, 0x3d64d6b6, 0x3d8f054e, 0x3b2974c5}},
	} {
		got := make([]float32, 6)
		if err := FillRow(got, c.kind, 0.05, 42, "embedding.weight", 7); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if i >= len(c.want) || math.Float32bits(v) != c.want[i] {
				t.Errorf("%s %d: %v %#x, want %#x", c.kind, i, v, math.Float32bits(v), c.want)
			}
		}
	}
}

// Every element is where NewFiller's comment says, however long the row is.
func TestFillPlaces(t *testing.T) {
	const seed, name, key = 42, "table", uint64(1)<<40 | 5
	k := block(FNV("initial"), FNV(name), [2]uint32{seed, 0})
	long := make([]float32, 19)
	for n := range len(long) + 1 {
		for _, kind := range []string{Uniform, Normal} {
			row := long[:n]
			if err := FillRow(row, kind, 0.3, seed, name, key); err != nil {
				t.Fatal(err)
			}
			for i, got := range row {
				word := block(uint64(i/4), key, [2]uint32{k[0], k[1]})[i%4]
				want := float32(normal64(word) * float64(float32(0.3)))
				if kind == Uniform {
					want = float32(int32(word>>8)-1<<23) / (1 << 23) * 0.3
				}
				if got != want {
					t.Fatalf("%s: element %d of %d: %v, want %v", kind, i, n, got, want)
				}
			}
		}
	}
	tensor, row := make([]float32, 9), make([]float32, 9)
	if err := errors.Join(FillTensor(tensor, Normal, 1, 1, "w"), FillRow(row, Normal, 1, 1, "w", 0)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tensor, row) {
		t.Error("a tensor is not row 0")
	}
}

func TestFillSeparates(t *testing.T) {
	fill := func(seed uint64, name string, key uint64) float32 {
		v := make([]float32, 1)
		if err := FillRow(v, Normal, 1, seed, name, key); err != nil {
			t.Fatal(err)
		}
		return v[0]
	}
	seen := map[float32]bool{fill(1, "a", 0): true, fill(2, "a", 0): true, fill(1, "b", 0): true, fill(1, "a", 1): true,
		fill(1, "a", 1<<32): true}
	if len(seen) != 5 {
		t.Errorf("values repeat: %v", seen)
	}
}

func TestFillZerosClears(t *testing.T) {
	v := []float32{1, float32(math.Copysign(0, -1)), 3}
	if err := FillTensor(v, Zeros, 0, 1, "b"); err != nil {
		t.Fatal(err)
	}
	for i := range v {
		if math.Float32bits(v[i]) != 0 {
			t.Errorf("element %d: %v", i, v[i])
		}
	}
}

func TestFillUnknownKind(t *testing.T) {
	v := []float32{1}
	err := FillTensor(v, "xavier", 1, 1, "w")
	if !errors.Is(err, ErrKind) || v[0] != 1 {
		t.Errorf("err %v, value %v", err, v[0])
	}
	if want := `initial values of "w": unknown kind of initial values "xavier": want "zeros", "uniform" or "normal"`; err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
}

func BenchmarkFillNormalTable(b *testing.B) {
	row := make([]float32, 64)
	f, err := NewFiller(Normal, 0.05, 1, "embedding.weight")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(4 * 64)
	for i := range uint64(b.N) {
		f.row(row, i)
	}
}

func BenchmarkFillUniformTable(b *testing.B) {
	row := make([]float32, 64)
	f, err := NewFiller(Uniform, 0.05, 1, "embedding.weight")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(4 * 64)
	for i := range uint64(b.N) {
		f.row(row, i)
	}
}

// Any stretch of a row is what the whole row has there.
func TestPartsOfARow(t *testing.T) {
	for _, kind := range []string{Zeros, Uniform, Normal} {
		f, err := NewFiller(kind, 0.5, 3, "w")
		if err != nil {
			t.Fatal(err)
		}
		whole := make([]float32, 41)
		f.row(whole, 9)
		for from := range len(whole) {
			for n := range len(whole) - from + 1 {
				part := make([]float32, n)
				f.Part(part, 9, uint64(from))
				if !slices.Equal(part, whole[from:from+n]) {
					t.Fatalf("%s: values [%d, %d) differ from the row's", kind, from, from+n)
				}
			}
		}
	}
}

// A caller whose context ends by a cause of its own finds that cause in the error.
func TestDrawGivesTheCause(t *testing.T) {
	f, err := NewFiller("normal", 1, 1, "w")
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("called off")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if err := f.Draw(ctx, make([]float32, 1), 0); !errors.Is(err, cause) {
		t.Errorf("%v, want %v", err, cause)
	}
}
