//go:build planted

package simulate

import (
	"flag"
	"os"
	"testing"

	"gradbus/internal/planted"
)

var defect = flag.Uint("defect", 0, "number of the planted defect that this process has; 0: none")

// TestMain plants the defect before any test.
func TestMain(m *testing.M) {
	flag.Parse()
	planted.Plant(planted.Defect(*defect))
	os.Exit(m.Run())
}
