package rules

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestQuickstart holds Go code in the README to an example that runs.
func TestQuickstart(t *testing.T) {
	atRoot(t)
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("trainer/quickstart_example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(example), "// quickstart:\n\n")
	code, _, ends := strings.Cut(rest, "\n// :quickstart\n")
	if n := strings.Count(code, "\n"); !begins || !ends || n < 20 || n > 45 {
		t.Fatalf("the example has %d lines between its marks", n)
	}
	for _, block := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(readme), -1) {
		if block[1] != code {
			t.Errorf("README.md shows\n%s\ntrainer/quickstart_example_test.go has\n%s", block[1], code)
		}
	}
}
