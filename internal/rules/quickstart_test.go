package rules

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestQuickstart holds the Go code of the README, and the first of docs/programs.md, to an example that runs.
func TestQuickstart(t *testing.T) {
	atRoot(t)
	example, err := os.ReadFile("trainer/quickstart_example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(example), "\t// quickstart:\n")
	code, _, ends := strings.Cut(rest, "\t// :quickstart\n")
	if n := strings.Count(code, "\n"); !begins || !ends || n < 10 || n > 30 {
		t.Fatalf("the example has %d lines between its marks", n)
	}
	code = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(code, "")
	for _, name := range []string{"README.md", "docs/programs.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		block := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindStringSubmatch(string(text))
		if block == nil || block[1] != code {
			t.Errorf("%s shows first\n%s\ntrainer/quickstart_example_test.go has\n%s", name, block, code)
		}
	}
}
