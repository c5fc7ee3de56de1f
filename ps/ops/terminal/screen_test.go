package terminal

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/cockroachdb/datadriven"

	"gradbus/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func nan() float64 { return math.NaN() }
func inf() float64 { return math.Inf(1) }

// TestScreens runs testdata/screens: `screen NAME`.
func TestScreens(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/screens", func(t *testing.T, d *datadriven.TestData) string {
		status := samples()[d.CmdArgs[0].Key]
		if status == nil {
			d.Fatalf(t, "no sample %q", d.CmdArgs[0].Key)
		}
		var b strings.Builder
		for line := range strings.Lines(Text(status, events(), time.UTC, "./bin/ps")) {
			b.WriteString(strings.TrimRight(line, " \n") + "\n")
		}
		return b.String()
	})
}

// Nothing is written that a terminal acts upon, whatever the names of hosts and members are.
func TestTextPrints(t *testing.T) {
	t.Parallel()
	for name, status := range samples() {
		for line := range strings.Lines(Text(status, events(), time.UTC, "./bin/ps")) {
			if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s: %q has what does not print", name, line)
			}
		}
	}
}
