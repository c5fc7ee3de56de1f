package cuda

import (
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
