package trainer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// naiveRound is the value nearest to x among those of the type, ties to even, told by what such numbers are: a multiple
// of a unit that grows with the size and does not fall below that of subnormals.
func naiveRound(dtype schema.DType, x float32) float32 {
	digits, smallest, largest := 8, -133, 0x1.fep127
	switch dtype {
	case schema.DTypeFloat32:
		return x
	case schema.DTypeFloat16:
		digits, smallest, largest = 11, -24, 65504
	}
	if x == 0 || math.IsInf(float64(x), 0) {
		return x
	}
	_, exponent := math.Frexp(float64(x))
	unit := math.Ldexp(1, max(exponent-digits, smallest))
	rounded := math.Copysign(math.RoundToEven(float64(x)/unit)*unit, float64(x))
	if math.Abs(rounded) > largest {
		return float32(math.Copysign(math.Inf(1), rounded))
	}
	return float32(rounded)
}

// naiveBits is the bits of a value of the type.
func naiveBits(dtype schema.DType, v float32) uint16 {
	if dtype == schema.DTypeBFloat16 {
		return uint16(math.Float32bits(v) >> 16)
	}
	sign, size := uint16(math.Float32bits(v)>>31<<15), math.Abs(float64(v))
	if math.IsInf(size, 1) {
		return sign | 0x7c00
	}
	if size < 0x1p-14 {
		return sign | uint16(size*0x1p24)
	}
	fraction, exponent := math.Frexp(size)
	return sign | uint16(exponent+14)<<10 | uint16((fraction*2-1)*1024)
}

var halfTypes = []schema.DType{schema.DTypeBFloat16, schema.DTypeFloat16}

func TestRoundLiteral(t *testing.T) {
	r := newRounder(testBackend(t))
	out := make([]uint16, 5)
	for _, c := range []struct {
		dtype schema.DType
		in    []float32
		want  []uint16
	}{
		// 1 + 2^-8 is halfway between 1 and 1 + 2^-7 and goes to 1, whose last bit is 0; 1 + 3*2^-8 goes up to 1 + 2^-6.
		{schema.DTypeBFloat16, []float32{1, 1.00390625, 1.01171875, -1.005, 1e-40},
			[]uint16{0x3f80, 0x3f80, 0x3f82, 0xbf81, 0x0001}},
		// 65519 is nearest to 65504, 65520 halfway to what would be 65536: infinite. 2^-25 is halfway between 0 and 2^-24.
		{schema.DTypeFloat16, []float32{1, 65519, -65520, 0x1p-25, 0x1.8p-25}, []uint16{0x3c00, 0x7bff, 0xfc00, 0, 1}},
	} {
		if err := r.round(halfVector(c.dtype, out), c.in); err != nil || !slices.Equal(out, c.want) {
			t.Errorf("%v of %v is %04x, want %04x (%v)", c.dtype, c.in, out, c.want, err)
		}
	}
}

// What rounding takes away comes back: the sum of what travels stays within half a unit of the sum of the gradients.
func TestFeedBackLiteral(t *testing.T) {
	r := newRounder(testBackend(t))
	out, residual := make([]uint16, 2), make([]float32, 2)
	for i, want := range []struct {
		out      []uint16
		residual []float32
	}{
		{[]uint16{0x3f80, 0x3f81}, []float32{0.00390625, -0.001953125}},
		{[]uint16{0x3f81, 0x3f80}, []float32{0, 0.00390625}}, // 1.0078125 = 1.00390625 + 0.00390625; 1.00390625 is a tie
		{[]uint16{0x3f80, 0x3f81}, []float32{0.00390625, 0.001953125}},
	} {
		sum := []float32{1.00390625, 1.005859375} // of every batch
		if err := r.feedBack(cuda.BFloat16s(out), sum, residual); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(out, want.out) || !slices.Equal(residual, want.residual) {
			t.Errorf("batch %d: %04x with residuals %v, want %04x with %v", i, out, residual, want.out, want.residual)
		}
	}
}

// Any sums over several batches, against the model in float64, bit by bit on the portable and on the best backend.
func TestRoundingAgainstModel(t *testing.T) {
	best, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer best.Close()
	for _, backend := range []cuda.Backend{testBackend(t), best} {
		for _, dtype := range halfTypes {
			seed := rand.Uint64()
			random, r := rand.New(rand.NewPCG(seed, 5)), newRounder(backend)
			const n = 1003
			plain, fed := make([]uint16, n), make([]uint16, n)
			residual, want := make([]float32, n), make([]float32, n)
			for batch := range 8 {
				sum := make([]float32, n)
				for i := range sum {
					sum[i] = (random.Float32() - 0.5) * float32(math.Exp2(float64(random.IntN(44)-28)))
					if random.IntN(10) == 0 {
						sum[i] = math.Float32frombits(math.Float32bits(sum[i]) &^ 0xfff) // ties are likelier
					}
				}
				given := slices.Clone(sum)
				if err := r.round(halfVector(dtype, plain), sum); err != nil {
					t.Fatal(err)
				}
				if err := r.feedBack(halfVector(dtype, fed), sum, residual); err != nil {
					t.Fatal(err)
				}
				for i, s := range given {
					withRest := s + want[i]
					q := naiveRound(dtype, withRest)
					want[i] = float32(float64(withRest) - float64(q))
					if plain[i] != naiveBits(dtype, naiveRound(dtype, s)) || fed[i] != naiveBits(dtype, q) || residual[i] != want[i] {
						t.Fatalf("%s, seed %d, %v, batch %d: %v travels as %04x and %04x with residual %v, want %04x and %04x with %v",
							backend.Name(), seed,
							dtype, batch, s, plain[i], fed[i], residual[i], naiveBits(dtype, naiveRound(dtype, s)),
							naiveBits(dtype, q), want[i])
					}
				}
			}
		}
	}
}

// A chunk costs no allocation, whatever travels and however many lanes are added up.
func TestChunksAllocateNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates; make test-all runs this without it")
	}
	for _, dtype := range []schema.DType{schema.DTypeFloat32, schema.DTypeBFloat16, schema.DTypeFloat16} {
		for _, feedback := range []bool{false, true} {
			const values, lanes = 4096, 4
			p := newLanePlan(0, lanes, lanes)
			p.present([]int{1, 1, 1, 1})
			d := newDenseSums(testBackend(t), lanes, p.slots(), []span{{0, values}}, fixedSpans(values, 1024))
			if feedback {
				d.keepResiduals(1)
			}
			out := cuda.Float32s(make([]float32, values))
			if dtype != schema.DTypeFloat32 {
				out = halfVector(dtype, make([]uint16, values))
			}
			d.frame = func(_, chunk int) cuda.Vector { return out.Slice(1024*chunk, 1024*chunk+1024) }
			d.closed = func(_, _ int) error { return nil }
			if n := testing.AllocsPerRun(20, func() {
				for l := range lanes {
					d.begin(p.lanes[l])
					clear(d.grad(0))
					if err := d.end(); err != nil {
						t.Fatal(err)
					}
				}
			}); n != 0 {
				t.Errorf("%v, error feedback %v: %v allocations a batch", dtype, feedback, n)
			}
		}
	}
}

// nodesOf are the nodes that trainers of a job contribute for.
func nodesOf(trainers, lanes int) (nodes []lane.Node) {
	for i := range trainers {
		first := i * lanes / trainers
		nodes = append(nodes, lane.Nodes(lane.Lane(first), (i+1)*lanes/trainers-first, lanes)...)
	}
	return nodes
}

// Jobs with 16-bit gradients end with the weights that the oracle has when it rounds each trainer's sums: for any
// number of shards, on the portable and on the best backend.
func TestWireTypesAgainstOracle(t *testing.T) {
	const lanes, batches = 6, 6
	best, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer best.Close()
	for shards := 1; shards <= 3; shards++ {
		server := startServer(t, shards)
		for _, trainers := range []int{1, 2, 4} {
			for i, wire := range []schema.Wire{{Gradients: schema.GradientsBFloat16}, {Gradients: schema.GradientsFloat16},
				{Gradients: schema.GradientsBFloat16, ErrorFeedback: true},
				{Gradients: schema.GradientsFloat16, ErrorFeedback: true}} {
				t.Run(fmt.Sprintf("%d shards/%d trainers/%s %v", shards, trainers, wire.Gradients, wire.ErrorFeedback),
					func(t *testing.T) {
						job := toyJob(fmt.Sprintf("wire-%d-%d", trainers, i), trainers, lanes, schema.ApplyUpdate)
						job.Wire = wire
						o := newOracle(t, job)
						o.sent = newOracleWire(job, nodesOf(trainers, lanes))
						losses := make([]float64, batches)
						for b := range losses {
							losses[b], _ = o.step(t, newToy(t, job), schema.Batch(b))
						}
						config := testConfig(t, server)
						if (shards+trainers)%2 == 0 {
							config.Backend = best
						}
						checkOutcomes(t, trainAll(t, config, job, batches), o.digest(t), losses)
					})
			}
		}
		server.Close()
	}
}

// float16 ends at 65504: what lies beyond is refused, in words that say what helps. The same gradient is fine as
// bfloat16.
func TestFloat16OverflowEndsTheJobWithAReason(t *testing.T) {
	server := startServer(t, 2)
	for gradients, fails := range map[string]bool{schema.GradientsFloat16: true, schema.GradientsBFloat16: false} {
		job := toyJob("overflow-"+gradients, 2, 4, schema.ApplyUpdate)
		job.Wire.Gradients = gradients
		w := newToy(t, job)
		w.spoil = func(step *LaneStep, bias []float32) {
			if step.Batch == 2 && step.Lane >= 2 {
				bias[1] = 70000
			}
		}
		errs := runAll(testContext(t), joinAll(t, testConfig(t, server), job), w, 4)
		if fails {
			checkError(t, errs[1], &Refused{}, "batch 2", "lanes [2,", "non_finite", "+Inf", "65504", "bfloat16")
		} else if errs[0] != nil || errs[1] != nil {
			t.Errorf("%s: %v", gradients, errs)
		}
	}
}
