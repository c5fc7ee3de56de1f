package cuda

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
)

// require turns tests that were left out into failures: go test ./cuda/ -args -require avx512,big
var require = flag.String("require", "", "comma-separated things that must be tested here: avx2, avx512, cuda, big")

// leftOut notes that a thing is not tested on this machine, or fails where it is required.
func leftOut(t *testing.T, thing string, why error) {
	t.Helper()
	if slices.Contains(strings.Split(*require, ","), thing) {
		t.Fatalf("%s is required: %v", thing, why)
	}
	t.Logf("%s is not tested here: %v", thing, why)
}

// TestTableBeyond2To31 reads and writes rows whose elements lie beyond 2^31. Only the pages touched cost memory.
func TestTableBeyond2To31(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		if b.Name() == "cuda" {
			t.Log("cuda copies whole tables to the device in this version, so it is not asked")
			return
		}
		const dim, row = 1 << 20, 1<<11 + 3
		m, err := b.Alloc((row + 1) * dim)
		if errors.Is(err, ErrMemory) {
			leftOut(t, "big", err)
			return
		}
		must(t, err)
		defer m.Free()
		table := m.Float32s()
		copy(table[row*dim:], []float32{1, 2, 3})
		out := make([]float32, dim)
		must(t, b.BagForward(bagForward(dim, Sum, NoPadding, table, []int64{row, 0, row}, []int64{0, 3}, out)))
		wantFloats(t, "bag", out[:4], []float32{2, 4, 6, 0})
		g := make([]float32, dim)
		g[2] = 8
		must(t, b.ApplyRows(applyRows(dim, SGD{LR: 0.5}, 2, table, []int64{row}, nil, g, out)))
		wantFloats(t, "row", out[:4], []float32{1, 2, 1, 0})
	})
}
