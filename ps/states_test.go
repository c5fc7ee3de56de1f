package ps

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The diagrams of docs/internals/states.md have the transitions of the tables, and no others.
func TestStateDiagrams(t *testing.T) {
	document, err := os.ReadFile("../docs/internals/states.md")
	must(t, err)
	compareDiagram(t, string(document), "## Job\n", jobTransitions[:])
}

var arrow = regexp.MustCompile(`(?m)^ +(\w+) --> (\w+)(?:: .+)?$`)

// compareDiagram compares the first diagram behind a heading with a table.
func compareDiagram[S interface {
	~int
	fmt.Stringer
}](t *testing.T, document, heading string, table [][]S) {
	t.Helper()
	_, document, _ = strings.Cut(document, heading)
	_, document, _ = strings.Cut(document, "```mermaid\n")
	diagram, _, _ := strings.Cut(document, "```")
	var have, want []string
	for _, m := range arrow.FindAllStringSubmatch(diagram, -1) {
		have = append(have, m[1]+" "+m[2])
	}
	for from, all := range table {
		for _, to := range all {
			want = append(want, fmt.Sprint(S(from), " ", to))
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("%sthe diagram has\n%s\nand the table\n%s", heading, strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// A transition that is not in the table panics, and changes nothing.
func TestIllegalTransition(t *testing.T) {
	s := jobRunning
	defer func() {
		if text := fmt.Sprint(recover()); s != jobRunning || !strings.Contains(text, "from running to gathering") {
			t.Errorf("state %v after panic %q", s, text)
		}
	}()
	s.transition(jobGathering)
}
